"""The data file of one rank: shards one after another in the layout of safetensors, which other tools read too.

Eight bytes (little-endian) give the length of a JSON header, which names each tensor `KEY@OFFSETS` with type, shape and
place; raw data follows (format: https://github.com/huggingface/safetensors). There is nothing in it to execute.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from holmes_hpc.checkpoint.cover import Cover
from holmes_hpc.checkpoint.entries import Entry
from holmes_hpc.checkpoint.index import Shard
from holmes_hpc.errors import CheckpointError

_ALIGNMENT = 8
_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _TYPES}


def write_shards(path: Path, entries: Sequence[Entry], *, hashed: bool = False) -> tuple[Cover, list[Shard]]:
    """Write the entries, contiguous CPU tensors, to a new file and bring it to disk.

    Returns the cover of its header, and where each entry lies, with SHA-256 of both where they are to be `hashed`.

    Raises OSError, and ValueError for a type of tensor that no checkpoint can hold.
    """
    pieces = [piece for entry in entries for piece in entry.pieces()]
    header = _header(pieces)
    shards = []
    with path.open("xb") as file:
        file.write(header)
        begin = len(header)
        for piece in pieces:
            data = _bytes(piece.tensor)
            file.write(data)
            shards.append(Shard(piece.key, piece.shape, piece.offsets, piece.sizes,
                                str(piece.tensor.dtype).removeprefix("torch."), path.name, begin, len(data),
                                zlib.crc32(data), hashlib.sha256(data).hexdigest() if hashed else ""))
            begin += len(data)
        file.flush()
        os.fsync(file.fileno())
    return Cover.of(header, hashed=hashed), shards


def read_shard(file: BinaryIO, shard: Shard, room: bytearray | None = None) -> Tensor:
    """Return a shard's tensor, in `room` where that is large enough, else in memory of its own.

    Raises CheckpointError when bytes are missing or their checksum is another.
    """
    dtype = _DTYPES.get(shard.dtype)
    if dtype is None or shard.length != shard.rectangle.volume * dtype.itemsize:
        raise CheckpointError(f"it is foreign: {shard.key} in {shard.file} is {shard.length} bytes of {shard.dtype}")
    data = memoryview(bytearray(shard.length) if room is None or len(room) < shard.length else room)[:shard.length]
    file.seek(shard.begin)
    if file.readinto(data) != shard.length:  # type: ignore[attr-defined]
        raise CheckpointError(f"a shard is torn: {shard.file} ends within {shard.key}")
    if zlib.crc32(data) != shard.checksum:
        raise CheckpointError(f"a shard is damaged: {shard.key} at {list(shard.offsets)} in {shard.file} does not "
                              "have its checksum")
    if shard.sha256 and hashlib.sha256(data).hexdigest() != shard.sha256:
        raise CheckpointError(f"a shard is not what was saved: {shard.key} at {list(shard.offsets)} in {shard.file} "
                              "does not have its SHA-256")
    return torch.frombuffer(data, dtype=dtype).view(shard.sizes)


def _header(pieces: Sequence[Entry]) -> bytes:
    names: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for piece in pieces:
        if piece.tensor.dtype not in _TYPES:
            raise ValueError(f"{piece.key}: a checkpoint cannot hold {piece.tensor.dtype}")
        end = begin + piece.tensor.numel() * piece.tensor.element_size()
        names[f"{piece.key}@{','.join(map(str, piece.offsets))}"] = {
            "dtype": _TYPES[piece.tensor.dtype], "shape": list(piece.sizes), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(names, separators=(",", ":")).encode()
    text += b" " * (-(len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's memory, without a copy."""
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
