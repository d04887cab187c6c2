"""Collectives of several steps, many of them under way at once, begun in one order on all ranks.

A rank begins them in a total order on which all ranks agree, and each step of one after the same step of those
before it. So the operations of every process group come in the same order on all its members, whatever the time at
which a rank gets to them, and no two ranks can wait for each other.

On CPUs `Lane.poll`, which is called often, begins the next step of whatever has arrived, and so does the thread of
`comm/progress.py` while the rank is blocked. On a device whose queues run behind the host all steps are put on them at
once (`Collective.chain`): a queue for the steps of each number, each step behind a point of the one before. Where
queues hold each other up (`Communicator.side_streams`), they are polled there too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from torch.distributed import ProcessGroup, Work

from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.progress import Progress
from holmes_hpc.comm.streams import Moment, Streams

_ENDS = -1
"""The number of the side queue in which collectives end."""

class Step(Protocol):
    """One operation of a group: `begin` starts it, `end` uses what has arrived."""

    group: ProcessGroup
    doing: str

    def begin(self) -> list[Work]: ...

    def end(self) -> None: ...


class Collective:
    """Steps that follow each other. `began` and `ended` say when it was on the network.

    A step's place says what it does (sum inside the node, across nodes, between fabrics), and None stands where this
    rank has no part in it, so that the same operation has the same place on all ranks.
    """

    def __init__(self, steps: Sequence[Step | None], communicator: Communicator,
                 then: Callable[[], None] | None = None) -> None:
        self._steps = steps if any(step is not None for step in steps) else ()
        self._communicator, self._then = communicator, then
        self._works: list[Work] = []
        self._arrived: list[float] = []
        self.at_arrival: Callable[[], None] | None = None
        self.begun = self.number = 0
        self.began: Moment = 0.0
        self.ended: Moment = 0.0
        self.done = False

    @property
    def length(self) -> int:
        """The number of steps."""
        return len(self._steps)

    def arrived(self) -> bool:
        """Return whether the step under way is over, without waiting."""
        if self.at_arrival is not None and len(self._arrived) >= len(self._works):
            return True
        return all(work.is_completed() for work in self._works)

    def begin(self) -> None:
        """Begin the next step."""
        step = self._steps[self.begun]
        self._works, self._arrived = [], []
        if step is not None:
            self.began = self.began or self._now()
            with self._communicator.naming(step.group, step.doing):
                self._works = step.begin()
        for work in self._works:
            _when_done(work, self._arrived, self.at_arrival)
        self.begun += 1

    def end(self) -> None:
        """Wait for the step under way and use what has arrived."""
        step = self._steps[self.begun - 1]
        if step is not None:
            for work in self._works:
                self._communicator.wait(work, step.group, step.doing)
            known = self._communicator.streams is None and len(self._arrived) == len(self._works) > 0
            self.ended = max(self._arrived) if known else self._now()
            self._works = []
            step.end()
        if self.begun == len(self._steps):
            self._finish()

    def chain(self, streams: Streams) -> None:
        """Put all steps on the queues of a device, each behind the one before; the host waits for none.

        What a step leaves to do once it is over stands in the queue of the next one, which it holds up no longer than
        the order of steps does.
        """
        behind, works, last = streams.point(), list[Work](), None
        own = [(number, step) for number, step in enumerate(self._steps) if step is not None]
        for number, step in [*own, (_ENDS, None)]:
            with streams.side(number):
                if last is None:
                    streams.wait(behind)
                    self.began = streams.point()
                else:
                    self._queue_end(last, works)
                if step is None:
                    self.ended = streams.point()
                else:
                    with self._communicator.naming(step.group, step.doing, noted=False):
                        works = step.begin()
                last = step
        self.begun = len(self._steps)

    def join(self, streams: Streams) -> None:
        """Let the current queue wait until the chain is over, and use what it has left."""
        step = next(step for step in reversed(self._steps) if step is not None)
        with self._communicator.naming(step.group, step.doing):
            streams.wait(self.ended)  # type: ignore[arg-type]
        self._finish()

    def _now(self) -> Moment:
        streams = self._communicator.streams
        return time.perf_counter() if streams is None else streams.point()

    def _queue_end(self, step: Step, works: Sequence[Work]) -> None:
        for work in works:
            self._communicator.wait(work, step.group, step.doing, noted=False)
        step.end()

    def _finish(self) -> None:
        self.done = True
        if self._then is not None:
            self._then()


class Lane:
    """The collectives of one phase of a rank, in the order in which they were added.

    With `early` false, `poll` begins no later steps; `finish` does. That keeps the order where one group does the
    first step of one collective and a later step of another. With `streams` nothing is left to poll: all steps are on
    the device's queues, those of one collective before those of the next. `progress` polls while the rank is blocked.
    """

    def __init__(self, streams: Streams | None = None, progress: Progress | None = None, *, early: bool = True) -> None:
        self._streams, self._early = streams, early
        self._progress = progress if streams is None and early and progress is not None and progress.told else None
        self._pending: list[Collective] = []
        self._added = 0
        self._inside = False
        if self._progress is not None:
            self._progress.watch(self)

    @property
    def pending(self) -> bool:
        """Whether something is under way."""
        return bool(self._pending)

    def add(self, collective: Collective) -> None:
        """Begin a collective. One without steps is done at once."""
        self._added += 1
        collective.number = self._added
        if not collective.length:
            return
        if self._streams is not None:
            collective.chain(self._streams)
        else:
            if self._progress is not None:
                collective.at_arrival = self._progress.arrived
            collective.begin()
        self._pending.append(collective)

    def poll(self) -> None:
        """Let everything go on that can, without waiting."""
        if self._early and self._pending and self._streams is None:
            self.go_on()

    def waits_for_steps(self) -> bool:
        """Return whether another thread may let something go on: not while this lane itself waits."""
        return not self._inside and any(each.begun < each.length for each in self._pending)

    def finish(self, collective: Collective | None = None) -> None:
        """Wait until a collective and those before it are done; None: until all are.

        On a device's queues the current one waits, and the host does not.
        """
        last = self._added if collective is None else collective.number
        self._inside = True
        while waiting := [each for each in self._pending if each.number <= last]:
            if self._streams is not None:
                waiting[0].join(self._streams)
            else:
                self._finish_level(waiting)
            self._pending = [each for each in self._pending if not each.done]
        self._inside = False

    def go_on(self) -> None:
        """Begin the next steps of what has arrived."""
        # A step may begin when everything before has begun its step of the same number, or has no such step.
        reached = 1 << 30
        inside, self._inside = self._inside, True
        for each in self._pending:
            while not each.done and each.arrived():
                if each.begun < each.length and each.begun >= reached:
                    break
                each.end()
                if not each.done:
                    each.begin()
            if each.begun < each.length:
                reached = min(reached, each.begun)
        self._pending = [each for each in self._pending if not each.done]
        self._inside = inside

    def _finish_level(self, waiting: Sequence[Collective]) -> None:
        level = min(each.begun for each in waiting)
        for each in waiting:
            if each.begun == level:
                each.end()
                if not each.done:
                    each.begin()


def _when_done(work: Work, times: list[float], then: Callable[[], None] | None) -> None:
    """Note the time at which an operation is over, where torch can tell."""
    def over(_: object) -> None:
        times.append(time.perf_counter())
        if then is not None:
            then()

    try:
        work.get_future().add_done_callback(over)
    except RuntimeError:
        return
