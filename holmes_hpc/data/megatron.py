"""Megatron's indexed data set: tokens in PREFIX.bin, and where its sequences lie in PREFIX.idx.

The index, little-endian: magic of 9 bytes, version (uint64), code of the token's type (uint8), number of sequences and
of document borders (uint64 each), tokens of every sequence (int32), its first byte in the .bin (int64), the sequences
at which documents begin and the last ends (int64); multimodal data has a mode (int8) for every sequence after that.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.data.token_types import check_stored
from holmes_hpc.data.tokens import Tokens, crossing, file_size, map_array, read_bytes
from holmes_hpc.errors import DataError
from holmes_hpc.values.packings import INSIDE

MEGATRON = "megatron"
"""The name of this kind of data."""
MAGIC = b"MMIDIDX\0\0"
_OLDER_MAGIC = b"TNTIDX\0\0"
_VERSION = 1
_FIELDS = struct.Struct("<9sQBQQ")
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = {6, 7}  # float64 and float32 in Megatron-Core, the other way round in its ancestors
_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Index:
    """What an .idx says: `lengths` in tokens and `pointers` in bytes by sequence, `documents` as first sequences."""

    path: Path
    dtype: numpy.dtype[Any]
    lengths: NDArray[numpy.int32]
    pointers: NDArray[numpy.int64]
    documents: NDArray[numpy.int64]


class Gathered:
    """Tokens of sequences that lie anywhere in a file, as if one followed the other; a slice reads nothing yet."""

    def __init__(self, stored: NDArray[Any], first_bytes: NDArray[numpy.int64], starts: NDArray[numpy.int64],
                 begin: int, end: int) -> None:
        """Take the file's bytes, each sequence's first byte, its first token's place (and the end), and the part."""
        self.stored, self._first_bytes, self._starts = stored, first_bytes, starts
        self._begin, self._end = begin, end

    def __len__(self) -> int:
        """Return the number of tokens."""
        return self._end - self._begin

    def __getitem__(self, part: slice, /) -> Gathered:
        """Return a part of the tokens; steps are not taken."""
        begin, end, _ = part.indices(len(self))
        return Gathered(self.stored, self._first_bytes, self._starts, self._begin + begin,
                        self._begin + max(begin, end))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Read the tokens, in the file's type unless `dtype` says otherwise."""
        tokens = numpy.empty(len(self), dtype=self.stored.dtype)
        at, sequence = self._begin, int(numpy.searchsorted(self._starts, self._begin, side="right")) - 1
        while at < self._end:
            stop = min(self._end, int(self._starts[sequence + 1]))
            first = int(self._first_bytes[sequence]) // tokens.itemsize + at - int(self._starts[sequence])
            tokens[at - self._begin : stop - self._begin] = self.stored[first : first + stop - at]
            at, sequence = stop, sequence + 1
        return tokens if dtype is None else tokens.astype(dtype)


def read_megatron(settings: SourceSettings, vocab_size: int) -> Tokens:
    """Return the tokens of a pair of files; `data.path` is their common prefix, or the name of either.

    `vocab_size` is the model's. Raises DataError for a file that is missing, unreadable or cut short, an unknown magic,
    version or type, and two files that do not belong together.
    """
    prefix = settings.required_path
    if prefix.suffix in (".bin", ".idx"):
        prefix = prefix.with_suffix("")
    index = _read_index(settings, prefix.with_name(prefix.name + ".idx"))
    path = prefix.with_name(prefix.name + ".bin")
    size, width = file_size(settings, path), index.dtype.itemsize
    count, contiguous, last_byte = _survey(settings, index)
    if last_byte > size or (contiguous and last_byte != size):
        times = size // last_byte if last_byte and size % last_byte == 0 else 1
        wider = f"; tokens of {width * times} bytes and not {width} would fit" if times in (2, 4, 8) else ""
        raise _wrong(settings, path, f"has {size} bytes, and {index.path} describes {last_byte}: the two do not belong "
                                     f"together, or one is cut short{wider}")
    stored = map_array(settings, path, index.dtype, 0, size // width)
    check_stored(settings, path, stored, vocab_size)
    inside = settings.packing in INSIDE and len(index.documents) > 1
    if contiguous and not inside:
        return Tokens(stored, notes=_crossing(settings, index))
    starts = numpy.concatenate([numpy.zeros(1, numpy.int64), numpy.cumsum(index.lengths, dtype=numpy.int64)])
    ends = starts[index.documents[1:]].astype(numpy.uint64) if inside else None
    return Tokens(stored if contiguous else Gathered(stored, index.pointers, starts, 0, count), documents=ends,
                  notes=_crossing(settings, index))


def _crossing(settings: SourceSettings, index: _Index) -> tuple[str, ...]:
    """Say what becomes of documents where the user did not. Their ends are only worked out where they are needed."""
    number = len(index.documents) - 1
    return (crossing(number),) if number > 1 and settings.packing_unsaid else ()


def _read_index(settings: SourceSettings, path: Path) -> _Index:
    size, header = file_size(settings, path), read_bytes(settings, path, _FIELDS.size)
    if header.startswith(_OLDER_MAGIC):
        raise _wrong(settings, path, "is an index of the older kind TNTIDX (--dataset-impl lazy or cached), which is "
                                     "not read")
    if not header.startswith(MAGIC):
        raise _wrong(settings, path, f"does not begin with {MAGIC!r}, so it is no index of Megatron")
    if size < _FIELDS.size:
        raise _wrong(settings, path, f"has {size} bytes, less than the {_FIELDS.size} of its header: it is cut short")
    _, version, code, sequences, borders = _FIELDS.unpack(header)
    if version != _VERSION:
        raise _wrong(settings, path, f"has version {version}, and version {_VERSION} is the one that is read")
    if code in _FLOATS:
        raise _wrong(settings, path, f"says that the tokens are floating-point numbers (type code {code})")
    if code not in _DTYPES:
        raise _wrong(settings, path, f"has the type code {code}, and known ones are {', '.join(map(str, _DTYPES))}")
    expected = _FIELDS.size + 12 * sequences + 8 * borders
    if size not in (expected, expected + sequences):
        raise _wrong(settings, path, f"has {size} bytes, and its header ({sequences} sequences, {borders} document "
                                     f"borders) says {expected}: it is cut short or damaged")
    lengths = map_array(settings, path, "<i4", _FIELDS.size, sequences)
    pointers = map_array(settings, path, "<i8", _FIELDS.size + 4 * sequences, sequences)
    documents = map_array(settings, path, "<i8", _FIELDS.size + 12 * sequences, borders)
    if borders and not (documents.min() >= 0 and documents.max() <= sequences):
        raise _wrong(settings, path, f"has document borders outside its {sequences} sequences: it is damaged")
    if size > expected and map_array(settings, path, "<i1", expected, sequences).any():
        raise _wrong(settings, path, "describes multimodal sequences, and only text is trained on")
    return _Index(path, numpy.dtype(_DTYPES[code]), lengths, pointers, documents)


def _survey(settings: SourceSettings, index: _Index) -> tuple[int, bool, int]:
    """Return the tokens of all sequences, whether they follow one another, and the byte after the last.

    Reads the index in chunks: one of a large data set has gigabytes.
    """
    width, count, last_byte, contiguous = index.dtype.itemsize, 0, 0, True
    for first in range(0, len(index.lengths), _CHUNK):
        sizes = numpy.asarray(index.lengths[first : first + _CHUNK], dtype=numpy.int64)
        begins = numpy.asarray(index.pointers[first : first + _CHUNK])
        if sizes.min() < 0 or begins.min() < 0 or (begins % width).any():
            raise _wrong(settings, index.path, "has a sequence of negative length or at an impossible byte: it is "
                                               "damaged")
        expected = (count + numpy.cumsum(sizes) - sizes) * width
        contiguous = contiguous and bool((begins == expected).all())
        last_byte = max(last_byte, int((begins + sizes * width).max()))
        count += int(sizes.sum())
    return count, contiguous, last_byte


def _wrong(settings: SourceSettings, path: Path, fact: str) -> DataError:
    return DataError(f"{settings.key('path')}={settings.path}: {path} {fact}. Make both files again with Megatron's "
                     "preprocess_data, copy them again, or set the path to another pair.")
