"""The clock of a device that only waits: absolute deadlines, so that no wake-up that comes late delays the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_WAITED_SECONDS = 0.001
"""A host that was held up for less was not waiting for others: what it waited for had been there before."""
_SLICE_SECONDS = 0.004
"""So often collectives under way may go on while the device is busy."""


@dataclass(frozen=True)
class Lateness:
    """How late a rank woke up from its waits of a step: mean and worst, seconds of this machine."""

    mean_seconds: float
    worst_seconds: float


ON_TIME = Lateness(0.0, 0.0)


class DeviceClock:
    """When the device of a rank is free, as a time of `time.perf_counter`; it goes on from step to step.

    While the device is busy and something is `pending`, `poll` lets collectives go on.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter,
                 sleep: Callable[[float], None] = time.sleep) -> None:
        self._clock, self._sleep = clock, sleep
        self.free: float | None = None
        self.poll: Callable[[], None] = lambda: None
        self.pending: Callable[[], bool] = bool
        self._late: list[float] = []

    def run(self, seconds: float) -> None:
        """Be busy for some seconds after what came before, and return when they are over."""
        self.free = (self._clock() if self.free is None else self.free) + seconds
        while (left := self.free - self._clock()) > 0:
            if self.pending():
                self._sleep(min(left, _SLICE_SECONDS))
                self.poll()
            else:
                self._sleep(left)
        self._late.append(-left)

    def waited(self, seconds: float) -> None:
        """Take note that the host waited for others so long, and that the device has been idle until now, if it did."""
        if seconds > _WAITED_SECONDS:
            self.not_before(self._clock())

    def not_before(self, when: float) -> None:
        """Let nothing begin on the device before a time."""
        self.free = when if self.free is None else max(self.free, when)

    def lateness(self) -> Lateness:
        """Return how late the wake-ups since the last call were."""
        late, self._late = self._late, []
        return Lateness(sum(late) / len(late), max(late)) if late else ON_TIME
