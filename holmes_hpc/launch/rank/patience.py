"""How long a rank waits for another one at the start: for progress, and not for the end."""

from __future__ import annotations

import time
from collections.abc import Callable

from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.beats import read_beat

LOOK_SECONDS = 1.0


class Patience:
    """Waits for a rank `seconds` from the last time that its signs of life told something new; `said` is the last."""

    def __init__(self, folder: RunFolder, rank: int, seconds: float,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._seconds, self._clock = folder.beat_path(rank), seconds, clock
        self._before, self._waited = clock(), 0.0
        self._next_look = self._before
        self.said = ""

    def is_over(self) -> bool:
        """Look, once a second at most, and say whether that rank was waited for long enough."""
        now = self._clock()
        self._waited += min(now - self._before, 2 * LOOK_SECONDS)  # more was a pause of this process
        self._before = now
        if now >= self._next_look or self._waited > self._seconds:
            self._next_look = now + LOOK_SECONDS
            beat = read_beat(self._path)
            if beat is not None and beat.action != self.said:
                self.said, self._waited = beat.action, 0.0
        return self._waited > self._seconds
