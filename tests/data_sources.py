"""Opening data as a run does, and an independent writer of Megatron's files, for the tests of data."""

import struct

import numpy
from omegaconf import OmegaConf

from holmes_hpc.architecture import Architecture
from holmes_hpc.config.schema import Data, Model
from holmes_hpc.data import Dataset, open_dataset


def open_data(sequence_length=8, vocab_size=256, **data) -> Dataset:
    model = OmegaConf.merge(OmegaConf.structured(Model),
                            {"sequence_length": sequence_length, "vocab_size": vocab_size})
    config = OmegaConf.merge(OmegaConf.structured(Data), {"cache": "unused", **data})
    return open_dataset(config, Architecture.from_config(model))


def whole(data: Dataset, source=0) -> list[int]:
    """Return all tokens of a source, the validation part last."""
    parts = data.sources[source].training, data.sources[source].validation
    return numpy.concatenate([numpy.asarray(part) for part in parts]).tolist()


def write_megatron(prefix, sequences, code=8, letter="H", *, order=None, borders=None, modes=None, version=1,
                   magic=b"MMIDIDX\0\0"):
    """Write PREFIX.bin and PREFIX.idx with `struct` alone; `order` is that of the sequences in the .bin."""
    width, at, pointers, body = struct.calcsize(f"<{letter}"), 0, {}, b""
    for number in order or range(len(sequences)):
        pointers[number] = at
        body += struct.pack(f"<{len(sequences[number])}{letter}", *sequences[number])
        at += width * len(sequences[number])
    borders = list(range(len(sequences) + 1)) if borders is None else borders
    index = magic + struct.pack("<Q", version) + bytes([code]) + struct.pack("<QQ", len(sequences), len(borders))
    for sequence in sequences:
        index += struct.pack("<i", len(sequence))
    for number in range(len(sequences)):
        index += struct.pack("<q", pointers[number])
    for border in borders:
        index += struct.pack("<q", border)
    index += struct.pack(f"<{len(modes)}b", *modes) if modes is not None else b""
    prefix.with_name(prefix.name + ".bin").write_bytes(body)
    prefix.with_name(prefix.name + ".idx").write_bytes(index)
    return prefix
