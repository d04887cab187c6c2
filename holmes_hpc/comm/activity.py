"""What a rank is doing now: written by its training thread, read by the thread that watches it.

Where the host runs ahead of a device, what the host does says little: it stands at the end of the step while the
device waits for another rank in its midst. There every state begins at a point in the device's queue, and the rank is
where the last point is that the device has passed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from holmes_hpc.comm.streams import Point, Streams, between
from holmes_hpc.values.doing import OUTSIDE, Doing

__all__ = ["OUTSIDE", "Activity", "Doing", "Wait"]


@dataclass(frozen=True)
class Wait:
    """A wait that has ended, with or without an error."""

    doing: Doing
    seconds: float


class Activity:
    """The state of one rank. `now` is the host's, replaced whole, so that another thread always reads one state.

    `changes` counts the states; a rank whose count stands still makes no progress. `beside` says what another thread
    of the rank does meanwhile, such as writing a checkpoint, with a number that tells each from the one before.
    `at_training` is called by the training thread when its first step begins.
    """

    def __init__(self) -> None:
        self.now = Doing()
        self.changes = 0
        self.beside: tuple[int, str] = (0, "")
        self.last_wait = Wait(Doing(), 0.0)
        self.at_training: Callable[[], None] = lambda: None
        self._waited_seconds = 0.0
        self._mark = (time.perf_counter(), 0.0)
        self._streams: Streams | None = None
        self._ahead: deque[tuple[Point, Doing, int]] = deque()
        self._reading = threading.Lock()
        self._device_waits: deque[tuple[Point, Point]] = deque()

    def follow(self, streams: Streams | None) -> None:
        """From now on the progress of a device counts."""
        self._streams = streams

    def standing(self) -> tuple[Doing, int]:
        """Return what the rank does, on a device what that does, and the number of that state."""
        with self._reading:
            while len(self._ahead) > 1 and self._ahead[1][0].query():
                self._ahead.popleft()
            if not self._ahead:
                return self.now, self.changes
            return self._ahead[0][1:]

    def begin(self, action: str, step: int | None = None) -> None:
        """Say that `action` begins, in another step where `step` is given."""
        before = self.now.step
        self._enter(Doing(before if step is None else step, action))
        if step and not before:
            self.at_training()

    @contextmanager
    def doing_beside(self, what: str) -> Iterator[None]:
        """Mark the body as something that another thread does beside the training."""
        self.beside = (self.beside[0] + 1, what)
        try:
            yield
        finally:
            self.beside = (self.beside[0], "")

    @contextmanager
    def waiting(self, group: int, operation: str, *, on_host: bool = True) -> Iterator[None]:
        """Mark the body as an operation of a group, which may have to wait for its other ranks.

        Unless `on_host` the device alone waits, where there is one.
        """
        before, began = self.now, time.perf_counter()
        doing = replace(before, group=group, operation=operation)
        entered = self._enter(doing)
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            self.last_wait = Wait(doing, seconds)
            left = self._enter(before)
            if before.group == OUTSIDE and entered is not None and left is not None and not on_host:
                self._device_waits.append((entered, left))
            elif before.group == OUTSIDE:
                self._waited_seconds += seconds

    def own_seconds(self) -> float:
        """Return the seconds since the last call that the rank spent outside the operations of groups.

        Call it where the host has just waited for the device, if there is one: waits that it has not passed count for
        the next call.
        """
        while self._device_waits and self._device_waits[0][1].query():
            self._waited_seconds += between(*self._device_waits.popleft())
        self.standing()
        now, waited = time.perf_counter(), self._waited_seconds
        (then, waited_then), self._mark = self._mark, (now, waited)
        return now - then - (waited - waited_then)

    def _enter(self, doing: Doing) -> Point | None:
        """Take up a state; return where it begins in the device's queue."""
        point = self._streams.point() if self._streams is not None else None
        self.now = doing
        self.changes += 1
        if point is not None:
            with self._reading:
                self._ahead.append((point, doing, self.changes))
        return point
