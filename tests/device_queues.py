"""A stand-in for the queues of a device, which run only when a test lets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

COMPUTE = -99
"""The number of the queue that computes."""


class QueuePoint:
    """A point in a queue; `passed` is the device's time at which it was, None before."""

    def __init__(self) -> None:
        self.passed: float | None = None
        self.held: Callable[[], None] | None = None

    def query(self) -> bool:
        return self.passed is not None

    def elapsed_time(self, end_event: QueuePoint) -> float:
        assert self.passed is not None and end_event.passed is not None, "the device has not been there"
        return 1e3 * (end_event.passed - self.passed)

    def synchronize(self) -> None:
        assert self.held is not None, "the host waits for the device"
        self.held()


class Queues:
    """Queues of things to do, each of which returns whether it could be done; `seconds` is the device's clock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._queues: dict[int, list[Callable[[], bool]]] = {COMPUTE: []}
        self._current = COMPUTE

    def put(self, thing: Callable[[], bool]) -> None:
        self._queues[self._current].append(thing)

    def does(self, thing: Callable[[], object]) -> None:
        """Put something that can always be done."""
        self.put(lambda: (thing(), True)[1])

    def run(self) -> None:
        """Let all queues go on as far as they can."""
        moved = True
        while moved:
            moved = False
            for queue in self._queues.values():
                while queue and queue[0]():
                    queue.pop(0)
                    moved = True

    def point(self) -> QueuePoint:
        point = QueuePoint()
        self.does(lambda: setattr(point, "passed", self.seconds))
        return point

    @contextmanager
    def side(self, number: int) -> Iterator[None]:
        before, self._current = self._current, number
        self._queues.setdefault(number, [])
        try:
            yield
        finally:
            self._current = before

    def wait(self, point: QueuePoint) -> None:
        self.put(point.query)

    def apart(self, count: int) -> bool:
        return True
