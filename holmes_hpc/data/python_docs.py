"""Text that ships with CPython: the reference topics of `pydoc_data` and the standard library's sources.

One byte is one token. Every 20th file is kept for validation.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy
from numpy.typing import NDArray

from holmes_hpc.errors import DataError

VOCAB_SIZE = 256
_VALIDATION_EVERY = 20
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"})


def read_python_docs(library: Path | None = None) -> tuple[NDArray[numpy.uint8], NDArray[numpy.uint8]]:
    """Return the training and the validation bytes.

    `library` is the folder of the standard library; default: this Python's. Files that cannot be read are
    left out, and so is `pydoc_data` where a distribution does not ship it. Raises DataError when there are
    too few files for both parts.
    """
    folder = Path(sysconfig.get_paths()["stdlib"]) if library is None else library
    texts = [text for text in map(_read, _source_files(folder, with_topics=library is None)) if text]
    training = [text for index, text in enumerate(texts) if (index + 1) % _VALIDATION_EVERY]
    validation = texts[_VALIDATION_EVERY - 1 :: _VALIDATION_EVERY]
    if not validation:
        raise DataError(
            f"data.name=python_docs: {folder} has {len(texts)} readable Python sources, and "
            f"{_VALIDATION_EVERY} are needed: this Python ships its library in another form (an archive, or "
            "compiled). Use another Python, or data=tokens with data.path.")
    return (numpy.frombuffer(b"".join(training), dtype=numpy.uint8),
            numpy.frombuffer(b"".join(validation), dtype=numpy.uint8))


def _source_files(folder: Path, *, with_topics: bool) -> list[Path]:
    """Return the topics module, where there is one, and then the library's sources sorted by path."""
    topics = _topics_file() if with_topics else None
    library = sorted(_library_files(folder), key=lambda path: path.relative_to(folder).parts)
    return ([topics] if topics else []) + [path for path in library if path != topics]


def _library_files(folder: Path) -> Iterator[Path]:
    for base, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        for name in files:
            if name.endswith(".py"):
                yield Path(base, name)


def _topics_file() -> Path | None:
    try:
        spec = importlib.util.find_spec("pydoc_data.topics")
    except ImportError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _read(path: Path) -> bytes:
    """Return a file's bytes, or none when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
