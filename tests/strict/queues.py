"""The queues of a device whose host runs ahead: what is put on one runs later, in order, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

COMPUTE = -99
"""The number of the queue that computes."""


class QueuePoint:
    """A point in a queue, as a CUDA event with timing is one."""

    def __init__(self) -> None:
        self.passed = threading.Event()
        self.seconds = 0.0

    def query(self) -> bool:
        return self.passed.is_set()

    def elapsed_time(self, end_event: QueuePoint) -> float:
        if not (self.query() and end_event.query()):
            raise RuntimeError("VIOLATION: a time was asked for that the device has not passed")
        return 1e3 * (end_event.seconds - self.seconds)

    def synchronize(self) -> None:
        self.passed.wait()

    def note(self) -> None:
        self.seconds = time.perf_counter()
        self.passed.set()


class Queues:
    """Queues by number; one is the current one of the thread that trains. An error in one ends the device.

    `fault` is asked for what has ended it, and `fail` told of what does. So many run `apart`; 0: all.
    """

    def __init__(self, fault: Callable[[], str], fail: Callable[[str], None], apart: int) -> None:
        self._fault, self._fail, self._apart = fault, fail, apart
        self._things: dict[int, deque[Callable[[], object]]] = {}
        self._more = threading.Condition()
        self._current = COMPUTE

    def put(self, thing: Callable[[], object]) -> None:
        """Let something be done once all before it on the current queue is."""
        self._check()
        with self._more:
            if self._current not in self._things:
                self._things[self._current] = deque()
                threading.Thread(target=self._run, args=(self._current,), name="strict-queue", daemon=True).start()
            self._things[self._current].append(thing)
            self._more.notify_all()

    def synchronize(self) -> None:
        """Hold the host until all that is on the current queue is done."""
        point = self.point()
        self._hold(point.passed)
        self._check()

    def point(self) -> QueuePoint:
        point = QueuePoint()
        self.put(point.note)
        return point

    @contextmanager
    def side(self, number: int) -> Iterator[None]:
        before, self._current = self._current, number
        try:
            yield
        finally:
            self._current = before

    def wait(self, point: QueuePoint) -> None:
        self.put(lambda: self._hold(point.passed))

    def apart(self, count: int) -> bool:
        return self._apart == 0 or count <= self._apart

    def hold_until(self, event: threading.Event) -> None:
        """Let the current queue wait for an event."""
        self.put(lambda: self._hold(event))

    def _hold(self, event: threading.Event) -> None:
        while not event.wait(0.1) and not self._fault():
            pass

    def _check(self) -> None:
        if fault := self._fault():
            raise RuntimeError(fault)

    def _run(self, number: int) -> None:
        things = self._things[number]
        with torch.no_grad(), torch._C._AutoDispatchBelowADInplaceOrView():
            while not self._fault():
                with self._more:
                    while not things:
                        self._more.wait()
                try:
                    things[0]()
                except Exception as error:  # whatever it is, it ends the device
                    self._fail(f"{type(error).__name__}: {error}")
                things.popleft()
