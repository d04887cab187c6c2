"""Python looks for cycles of garbage the more often the more values are made, and a search makes millions."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_RARE = (200_000, 50, 100)
"""Values made between two looks for cycles, by generation."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for cycles rarely inside: a search makes hardly any, and on 512 GPUs a fifth of its time went there.

    What was set before is set again afterwards; a collector that was switched off stays so.
    """
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(*map(max, before, _RARE))
    try:
        yield
    finally:
        gc.set_threshold(*before)
