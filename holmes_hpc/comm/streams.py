"""The queues of a device beside the one that computes, so that operations follow each other without the host.

The host runs ahead of a GPU: what it sees as over lies behind. So nothing that follows on the device may wait until the
host sees its turn; it is put on a queue at once, behind a point of another one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Point(Protocol):
    """A point in a queue, as torch's events with timing are."""

    def query(self) -> bool:
        """Return whether the device has passed it, without waiting."""

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from here to another point, both passed."""

    def synchronize(self) -> None:
        """Hold the host until the device has passed it."""


Moment = float | Point
"""Of `time.perf_counter`, or a point in a device's queue."""


class Streams(Protocol):
    """The queues of one device, as one thread sees them: one of them is the current one."""

    def point(self) -> Point:
        """Return a new point at the end of the current queue."""

    def side(self, number: int) -> AbstractContextManager[object]:
        """Return a context in which a side queue is the current one, made at its first use."""

    def wait(self, point: Point) -> None:
        """Let what follows in the current queue wait for a point of another one."""

    def apart(self, count: int) -> bool:
        """Return whether so many queues run without waiting for each other, unless they are told to."""


class CudaStreams:
    """The streams of a GPU, which CUDA spreads over `queues` hardware queues. Not yet run on one.

    What waits at the head of a hardware queue holds up all that other streams have put behind it.
    """

    def __init__(self, device: torch.device, queues: int) -> None:
        self._device, self._queues = device, queues
        self._sides: dict[int, torch.cuda.Stream] = {}

    def point(self) -> Point:
        """Return an event recorded on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def side(self, number: int) -> AbstractContextManager[object]:
        """Return a context in which a stream of this number is the current one."""
        if number not in self._sides:
            self._sides[number] = torch.cuda.Stream(self._device)
        return torch.cuda.stream(self._sides[number])

    def wait(self, point: Any) -> None:
        """Let the current stream wait for an event."""
        torch.cuda.current_stream(self._device).wait_event(point)

    def apart(self, count: int) -> bool:
        """Return whether each of so many streams has a hardware queue of its own."""
        return count <= self._queues


def between(begin: Moment, end: Moment) -> float:
    """Return the seconds between two moments of one kind; the host waits for points that the device has yet to pass."""
    if isinstance(begin, float) or isinstance(end, float):
        return float(end) - float(begin)  # type: ignore[arg-type]
    for point in (begin, end):
        if not point.query():
            point.synchronize()
    return begin.elapsed_time(end) / 1e3
