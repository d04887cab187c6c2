"""How far the opening of data is: told while it goes on, since text of terabytes takes hours to become tokens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

Tell = Callable[[str], None]
"""Takes what is done now, to be put behind `has been`."""

RECORD_BYTES = 256
_MEBIBYTE = 2**20
_EVERY_SECONDS = 1.0


def silent(words: str) -> None:
    """Tell nobody."""


class Portion:
    """How much of `total_bytes` is done with: `what` says with what, and `of` names where they lie.

    Told at once and then every second, if anything was done in it.
    """

    def __init__(self, tell: Tell, what: str, total_bytes: int, of: str,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._what, self._total, self._of, self._clock = tell, what, total_bytes, of, clock
        self._done = 0
        self._told: float | None = None
        self.add(0)

    def add(self, count: int) -> None:
        """Take it that so many more bytes are done."""
        self._done += count
        now = self._clock()
        if self._told is None or now >= self._told + _EVERY_SECONDS:
            self._told = now
            self._tell(f"{self._what} at {self._done / _MEBIBYTE:.1f} of {self._total / _MEBIBYTE:.1f} MiB of "
                       f"{self._of}")


def write_words(descriptor: int, words: str) -> None:
    """Leave words in a file for the processes that wait for its lock."""
    record = words.encode(errors="replace")[:RECORD_BYTES].ljust(RECORD_BYTES)
    os.pwrite(descriptor, record, 0)


def read_words(descriptor: int) -> str:
    """Return the words that are left in a file, "" where there are none."""
    try:
        found = os.pread(descriptor, RECORD_BYTES, 0).decode(errors="replace").strip()
    except OSError:
        return ""
    return found if found.isprintable() else ""
