"""What other programs computed on this machine's cores while a run went on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_STAT = Path("/proc/stat")
_FIELDS = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; what follows is in the first two already"""
_IDLE = (3, 4)
SPARE_SHARE = 0.2
"""With a larger share of the cores idle, others took nothing from the run."""
FELT_SHARE = 0.1
"""Below this share of the cores, others are the system's own bustle."""


class OtherLoad:
    """Measures from its making on, by the kernel's own accounts; `stat` reads /proc/stat, `own` and `clock` seconds."""

    def __init__(self, stat: Callable[[], str] = _STAT.read_text, own: Callable[[], float] | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._stat, self._own, self._clock = stat, own or _own_seconds, clock
        self._begin = self._read()

    def cores(self) -> tuple[float, int] | None:
        """Return how many cores others held on average, and how many there are; None where that was not felt.

        Call it when all processes of the run have ended and been waited for: only then the kernel counts them as ours.
        """
        before, now = self._begin, self._read()
        if before is None or now is None or now[2] <= before[2]:
            return None
        busy, idle, seconds, own = (last - first for first, last in zip(before, now, strict=True))
        cores = round((busy + idle) / seconds)
        others = (busy - own) / seconds
        if cores < 1 or idle > SPARE_SHARE * (busy + idle) or others < FELT_SHARE * cores:
            return None
        return min(others, float(cores)), cores

    def _read(self) -> tuple[float, float, float, float] | None:
        """Return seconds: the cores' busy and idle ones, of the clock, and our own; None where nothing tells."""
        try:
            words = self._stat().partition("\n")[0].split()
            ticks = [int(word) for word in words[1:_FIELDS + 1]]
        except (OSError, ValueError):
            return None
        if words[:1] != ["cpu"] or len(ticks) < _FIELDS:
            return None
        each = os.sysconf("SC_CLK_TCK")
        idle = sum(ticks[place] for place in _IDLE)
        return (sum(ticks) - idle) / each, idle / each, self._clock(), self._own()


def _own_seconds() -> float:
    """Return the CPU seconds of this process and of all its descendants that were waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
