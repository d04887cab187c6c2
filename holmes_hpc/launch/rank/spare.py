"""File descriptors that a rank keeps for its last words."""

from __future__ import annotations

import os
from contextlib import suppress

_KEPT = 4


class Spare:
    """Holds a few descriptors until `release`, so that a rank that ran out of them can still say so."""

    def __init__(self) -> None:
        self._held: list[int] = []

    def keep(self) -> None:
        """Open them, as far as there are any."""
        with suppress(OSError):
            while len(self._held) < _KEPT:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def release(self) -> None:
        """Give them back."""
        while self._held:
            os.close(self._held.pop())
