"""A flat file of token numbers, mapped into memory: nothing but little-endian uint8, uint16 or uint32."""

from __future__ import annotations

from pathlib import Path

import numpy
from numpy.typing import NDArray

from holmes_hpc.errors import DataError


def open_tokens(path: Path, dtype: str, validation_fraction: float,
                sample_tokens: int) -> tuple[NDArray[numpy.unsignedinteger], NDArray[numpy.unsignedinteger]]:
    """Return the training tokens and, from the end of the file, the validation tokens.

    `sample_tokens` is the number of tokens that a sample reads, its last target included. Raises DataError
    for a file that is missing, unreadable, of a length that `dtype` does not divide, or too short for a
    sample in each part.
    """
    kind = numpy.dtype(dtype).newbyteorder("<")
    size = _size(path)
    if size % kind.itemsize:
        raise DataError(
            f"data.path={path} has {size} bytes, not a multiple of the {kind.itemsize} bytes of "
            f"data.dtype={dtype}: the file is cut short or of another type. Write it again, or set "
            "data.dtype to uint8, uint16 or uint32.")
    count = size // kind.itemsize
    validation = int(count * validation_fraction)
    for part, length in (("training", count - validation), ("validation", validation)):
        if length < sample_tokens:
            raise DataError(
                f"data.path={path} has {count} tokens, {length} of them for {part} "
                f"(data.validation_fraction={validation_fraction}): one sample needs {sample_tokens} "
                "(model.sequence_length and the target of its last token). Use a longer file, a smaller "
                "model.sequence_length, or another data.validation_fraction (above 0, at most 0.5).")
    try:
        tokens = numpy.memmap(path, dtype=kind, mode="r")
    except OSError as error:
        raise DataError(f"data.path={path} cannot be read: {error.strerror}. Make it readable.") from error
    return tokens[: count - validation], tokens[count - validation :]


def _size(path: Path) -> int:
    try:
        if not path.is_file():
            raise DataError(f"data.path={path} is no file{_nearby(path)}. "
                            "Set data.path to a flat file of tokens.")
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"data.path={path} cannot be read: {error.strerror}. Make it readable.") from error


def _nearby(path: Path) -> str:
    """Say what is known about a path that is no file."""
    if path.is_dir():
        return " but a folder"
    return "" if path.parent.is_dir() else f": the folder {path.parent} does not exist on this node"
