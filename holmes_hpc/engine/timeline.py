"""When each action of a step started and ended on one rank, and what it spent its time on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from holmes_hpc.comm.activity import Activity
from holmes_hpc.values import Action, ActionKind

COMPUTE = frozenset({
    ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT,
    ActionKind.OPTIMIZER,
})
RECEIVES = frozenset({ActionKind.RECEIVE_ACTIVATION, ActionKind.RECEIVE_GRADIENT})


class Timeline:
    """The records of one step; times are seconds since `start()`. `activity` is told of every action."""

    def __init__(self, activity: Activity | None = None) -> None:
        self._activity = activity or Activity()
        self.records: list[tuple[Action, float, float]] = []
        self._zero = 0.0

    def start(self) -> None:
        """Begin a step: forget the records of the last one."""
        self.records.clear()
        self._zero = time.perf_counter()

    @contextmanager
    def record(self, action: Action) -> Iterator[None]:
        """Record the time that the body takes as `action`'s."""
        self._activity.begin(str(action))
        begin = time.perf_counter()
        yield
        self.records.append((action, begin - self._zero, time.perf_counter() - self._zero))

    def seconds(self, kinds: frozenset[ActionKind]) -> float:
        """Return the seconds that actions of these kinds took together."""
        return sum(end - begin for action, begin, end in self.records if action.kind in kinds)

    def compute_seconds(self) -> float:
        """Return the seconds of forwards, backwards and the optimizer."""
        return self.seconds(COMPUTE)

    def receive_wait_seconds(self) -> float:
        """Return the seconds spent waiting for messages of neighbouring stages: the pipeline's bubble."""
        return self.seconds(RECEIVES)

    def reduce_seconds(self) -> float:
        """Return the seconds spent in gradient reductions that nothing hid."""
        return self.seconds(frozenset({ActionKind.REDUCE, ActionKind.GATHER}))
