"""The token file of holmes_hpc: a header, the tokens, and where documents end. `docs/data.md` describes it."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import zlib
from array import array
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy
from numpy.typing import NDArray

from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.data.tokens import Tokens, file_size, map_array, read_bytes
from holmes_hpc.errors import DataError
from holmes_hpc.runs.private import umask

MAGIC = b"HOLMTOK\0"
SUFFIX = ".tokens"
HEADER_BYTES = 64
_VERSION = 1
_VERSION_WITH_COUNTS = 2
"""Files that say what counts as a target have a version of their own: older releases would count all of it."""
_FIELDS = struct.Struct("<8sIIQQQ16s4x")
_CHECKSUM = struct.Struct("<I")
_DTYPES = {1: "<u1", 2: "<u2", 4: "<u4"}
_CHUNK_TOKENS = 1 << 22
_UNKNOWN_TOKENIZER = bytes(16)
_LARGEST_VOCABULARY = 2**32


def read_token_file(settings: SourceSettings) -> Tokens:
    """Return the tokens of a file with a header.

    Raises DataError for a file that is missing, unreadable, cut short, longer than its header says, damaged in its
    header, or of an unknown version.
    """
    path = settings.required_path
    size, header = file_size(settings, path), read_bytes(settings, path, HEADER_BYTES)
    where = f"{settings.key('path')}={path}"
    if header[: len(MAGIC)] != MAGIC:
        raise DataError(f"{where} does not begin with the magic of a token file, {MAGIC!r}: it is damaged or something "
                        f"else. Write it again with python -m holmes_hpc.data.write; a file of nothing but tokens has "
                        f"another ending than {SUFFIX}.")
    if len(header) < HEADER_BYTES:
        raise DataError(f"{where} has {size} bytes, and the header of a token file alone has {HEADER_BYTES}: it is cut "
                        "short. Write it again with python -m holmes_hpc.data.write.")
    _, version, width, vocab_size, count, documents, tokenizer = _FIELDS.unpack_from(header)
    if version not in (_VERSION, _VERSION_WITH_COUNTS):
        raise DataError(f"{where} has version {version}, and this holmes_hpc reads {_VERSION} and "
                        f"{_VERSION_WITH_COUNTS}. Use the version of holmes_hpc that wrote it, or write it again.")
    (checksum,) = _CHECKSUM.unpack_from(header, _FIELDS.size)
    if checksum != zlib.crc32(header[: _FIELDS.size]) or width not in _DTYPES:
        raise DataError(f"{where} has a damaged header: its checksum does not fit. Write it again with python -m "
                        "holmes_hpc.data.write, or copy it again from where it came.")
    if vocab_size > 2 ** (8 * width):
        raise DataError(f"{where} states a vocabulary of {vocab_size} tokens, and its tokens of "
                        f"{width} byte{'s' if width > 1 else ''} tell {2 ** (8 * width)} apart: larger ones were cut. "
                        "Write it again with python -m holmes_hpc.data.write.")
    ends_at = _ends_offset(count * width)
    expected = ends_at + 8 * documents if documents else HEADER_BYTES + count * width
    counts_at = expected
    expected += count if version == _VERSION_WITH_COUNTS else 0
    if size != expected:
        raise DataError(f"{where} has {size} bytes, and its header says {expected} ({count} tokens of {width} bytes, "
                        f"{documents} documents): it is {'cut short' if size < expected else 'too long'}. Write it "
                        "again with python -m holmes_hpc.data.write, or copy it again.")
    ends = map_array(settings, path, "<u8", ends_at, documents) if documents else None
    if ends is not None and int(ends[-1]) != count:
        raise DataError(f"{where} has {count} tokens, and its last document ends after {int(ends[-1])}: it is damaged. "
                        "Write it again with python -m holmes_hpc.data.write.")
    return Tokens(map_array(settings, path, _DTYPES[width], HEADER_BYTES, count), vocab_size,
                  None if tokenizer == _UNKNOWN_TOKENIZER else tokenizer, ends,
                  counted=map_array(settings, path, "u1", counts_at, count) if expected > counts_at else None)


class TokenFileWriter:
    """Writes a token file, as a context manager: the file appears, whole, when the block ends without an exception.

    Tokens have the smallest type that holds `vocab_size`. `tokenizer` is what identifies the tokenizer, 16 bytes. With
    `counts` every token says whether it counts as a target. Raises OSError where the disk refuses.
    """

    def __init__(self, path: Path, vocab_size: int, tokenizer: bytes | None = None, *, counts: bool = False) -> None:
        """Prepare to write `path`. Raises ValueError for a vocabulary of no tokens or of more than 2^32."""
        if not 1 <= vocab_size <= _LARGEST_VOCABULARY:
            raise ValueError(f"a vocabulary of {vocab_size} tokens: expected 1 to {_LARGEST_VOCABULARY}")
        self._path, self._vocab_size, self._tokenizer = path, vocab_size, tokenizer or _UNKNOWN_TOKENIZER
        self._width = 1 if vocab_size <= 2**8 else 2 if vocab_size <= 2**16 else 4
        self.num_tokens = 0
        self._ends = array("Q")
        self._has_counts, self._counts_file = counts, ExitStack()

    def __enter__(self) -> Self:
        """Begin a hidden file beside the final one."""
        self._counts = (self._counts_file.enter_context(tempfile.TemporaryFile(dir=self._path.parent))
                        if self._has_counts else None)
        handle, name = tempfile.mkstemp(prefix=f".{self._path.name}.", suffix=".tmp", dir=self._path.parent)
        self._file, self._temporary = os.fdopen(handle, "wb"), Path(name)
        self._file.write(bytes(HEADER_BYTES))
        return self

    def write(self, tokens: NDArray[Any], counted: NDArray[Any] | None = None) -> None:
        """Append tokens, of which those count that `counted` says, or all.

        Raises ValueError for one outside the vocabulary, TypeError for what is no whole number.
        """
        if tokens.dtype.kind not in "ui" and tokens.size:
            raise TypeError(f"tokens of type {tokens.dtype}: expected whole numbers")
        if tokens.size and not (int(tokens.min()) >= 0 and int(tokens.max()) < self._vocab_size):
            raise ValueError(f"tokens {int(tokens.min())} to {int(tokens.max())} in a vocabulary of "
                             f"{self._vocab_size}")
        self._file.write(tokens.astype(_DTYPES[self._width], copy=False).tobytes())
        if self._counts is not None:
            whole = numpy.ones(tokens.size, dtype=numpy.uint8) if counted is None else counted.astype(numpy.uint8)
            self._counts.write(whole.tobytes())
        self.num_tokens += tokens.size

    def append(self, tokens: Tokens) -> None:
        """Append the documents of another file, whose vocabulary is this one's. Raises as `write` does."""
        before = self.num_tokens
        for first in range(0, len(tokens.array), _CHUNK_TOKENS):
            part = slice(first, first + _CHUNK_TOKENS)
            self.write(numpy.asarray(tokens.array[part]),
                       None if tokens.counted is None else numpy.asarray(tokens.counted[part]))
        if tokens.documents is not None:
            self._ends.extend((numpy.asarray(tokens.documents) + numpy.uint64(before)).tolist())

    def end_document(self) -> None:
        """Note that a document ends after the tokens written so far."""
        self._ends.append(self.num_tokens)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        """Finish the file and put it in its place; after an exception, remove it."""
        try:
            with self._file:
                if kind is None:
                    self._finish()
            if kind is None:
                self._temporary.chmod(0o664 & ~umask())
                self._temporary.replace(self._path)
        finally:
            self._temporary.unlink(missing_ok=True)
            self._counts_file.close()

    def _finish(self) -> None:
        if self._ends and self._ends[-1] != self.num_tokens:
            self.end_document()
        if self._ends:
            token_bytes = self.num_tokens * self._width
            self._file.write(bytes(_ends_offset(token_bytes) - HEADER_BYTES - token_bytes))
            self._file.write(numpy.frombuffer(self._ends, dtype=numpy.uint64).astype("<u8").tobytes())
        if self._counts is not None:
            self._counts.seek(0)
            shutil.copyfileobj(self._counts, self._file)
        version = _VERSION if self._counts is None else _VERSION_WITH_COUNTS
        fields = _FIELDS.pack(MAGIC, version, self._width, self._vocab_size, self.num_tokens, len(self._ends),
                              self._tokenizer)
        self._file.seek(0)
        self._file.write(fields + _CHECKSUM.pack(zlib.crc32(fields)))
        self._file.flush()
        os.fsync(self._file.fileno())


def _ends_offset(token_bytes: int) -> int:
    """Return where the ends of documents begin: after the tokens, at a multiple of 8 bytes."""
    return HEADER_BYTES + (token_bytes + 7) // 8 * 8
