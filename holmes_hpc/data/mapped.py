"""Files that are mapped and not read: one that becomes shorter kills whoever reads behind its new end (SIGBUS)."""

from __future__ import annotations

import mmap
from typing import Any

import numpy

from holmes_hpc.errors import DataError


def refuse_shrunk(tokens: Any, label: str) -> None:
    """Raise DataError where the file that `tokens` were mapped from has become shorter since; `label` names it."""
    base: Any = getattr(tokens, "stored", tokens)
    first: numpy.memmap[Any, Any] | None = None
    while isinstance(base, numpy.ndarray):
        first = base if isinstance(base, numpy.memmap) else first
        base = base.base
    if first is None or not isinstance(base, mmap.mmap):
        return
    end, size = _end(first, base), base.size()
    if size < end:
        raise DataError(f"{label}: {first.filename} has become shorter under the run: it has {size} bytes, and had at "
                        f"least {end} at the start. Give the run data that nobody writes again, such as a copy.")


def _end(array: numpy.memmap[Any, Any], mapping: mmap.mmap) -> int:
    """Return where in its file a mapping ends."""
    return array.offset - array.offset % mmap.ALLOCATIONGRANULARITY + len(mapping)
