"""Tokens mapped into memory, and what every reader of a file of them needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy

from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.errors import DataError
from holmes_hpc.foreign import open_regular


class TokenArray(Protocol):
    """What tokens need: a length, and slices that `numpy.asarray` reads."""

    def __len__(self) -> int:
        """Return the number of tokens."""

    def __getitem__(self, part: slice, /) -> Any:
        """Return some of the tokens without reading them."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of one source, and what its file says about them.

    `vocab_size` and `tokenizer` (its identity) are None where the file does not say; `documents` holds the place
    after the last token of every document, or is None; `counted` says by token whether it counts as a target, None
    where all do.
    """

    array: TokenArray
    vocab_size: int | None = None
    tokenizer: bytes | None = None
    documents: TokenArray | None = None
    notes: tuple[str, ...] = ()
    """what a user should be told of the source"""
    counted: TokenArray | None = None


def map_array(settings: SourceSettings, path: Path, dtype: Any, offset: int, count: int) -> Any:
    """Return `count` numbers that begin at byte `offset` of a file, without reading them. Raises DataError."""
    if not count:  # which cannot be mapped
        return numpy.empty(0, dtype=dtype)
    with readable(settings, path):
        return numpy.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(count,))


def read_bytes(settings: SourceSettings, path: Path, count: int) -> bytes:
    """Return the first `count` bytes of a file, or all where it is shorter. Raises DataError."""
    with readable(settings, path), open_regular(path) as file:
        return file.read(count)


def file_size(settings: SourceSettings, path: Path) -> int:
    """Return the bytes of a file. Raises DataError where it is missing, empty or cannot be looked at."""
    with readable(settings, path):
        if path.is_file():
            if size := path.stat().st_size:
                return size
            raise DataError(f"{settings.key('path')}={path} is empty (0 bytes): whatever wrote it did not get to its "
                            f"tokens. Write it again, or set {settings.key('path')} to another file.")
    raise DataError(f"{settings.key('path')}={path} is no file{nearby(path)}. Set {settings.key('path')} to a file of "
                    "tokens that every node can read.")


@contextmanager
def readable(settings: SourceSettings, path: Path) -> Iterator[None]:
    """Turn the errors of reading `path` into DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{settings.key('path')}={settings.path}: {path} cannot be read: {error.strerror or error}. "
                        "Make it readable on every node.") from error


def nearby(path: Path) -> str:
    """Say what is known about a path that is no file."""
    if path.is_dir():
        return " but a folder"
    return "" if path.parent.is_dir() else f": the folder {path.parent} does not exist on this node"


def crossing(documents: int) -> str:
    """Say what a user may not expect of samples that are windows of one long line."""
    return (f"samples run across the ends of its {documents} documents, attention included; data.packing=documents "
            "keeps it inside each")
