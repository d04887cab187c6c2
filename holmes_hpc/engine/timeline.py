"""When each action of a step started and ended on one rank, and what it spent its time on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holmes_hpc.comm.activity import Activity
from holmes_hpc.values import Action, ActionKind
from holmes_hpc.values.schedule import RECEIVES

_WAITS = frozenset({*RECEIVES, ActionKind.TAKE_TURN})


@dataclass(frozen=True)
class Flight:
    """When the collective of one bucket was under way, hidden or not: `kind` is REDUCE or GATHER.

    A gather begins at the end of the step before, so its `start` may be negative.
    """

    kind: ActionKind
    reduction: int
    bucket: int
    start: float
    end: float


class Timeline:
    """The records of one step; times are seconds since `start()`.

    `records` say what the rank itself did: for reductions and gathers, how long it waited for them. `flights` say
    when they were on their way. `activity` is told of every action.
    """

    def __init__(self, activity: Activity | None = None) -> None:
        self._activity = activity or Activity()
        self.records: list[tuple[Action, float, float]] = []
        self.flights: list[Flight] = []
        self._zero = 0.0

    def start(self) -> None:
        """Begin a step: forget the records of the last one."""
        self.records.clear()
        self.flights.clear()
        self._zero = time.perf_counter()

    @contextmanager
    def record(self, action: Action) -> Iterator[None]:
        """Record the time that the body takes as `action`'s."""
        self._activity.begin(str(action))
        begin = time.perf_counter()
        yield
        self.records.append((action, begin - self._zero, time.perf_counter() - self._zero))

    def in_flight(self, kind: ActionKind, reduction: int, bucket: int, began: float, ended: float) -> None:
        """Note when a bucket's collective was under way; times are of `time.perf_counter`."""
        self.flights.append(Flight(kind, reduction, bucket, began - self._zero, ended - self._zero))

    def seconds(self, kinds: frozenset[ActionKind]) -> float:
        """Return the seconds that actions of these kinds took together."""
        return sum(end - begin for action, begin, end in self.records if action.kind in kinds)

    def spans(self, kinds: frozenset[ActionKind], since: float) -> list[tuple[float, float]]:
        """Return when actions of these kinds began and ended, of those that began since a `time.perf_counter`."""
        return [(begin, end) for action, begin, end in self.records
                if action.kind in kinds and begin >= since - self._zero]

    def rows(self) -> list[dict[str, Any]]:
        """Return the step's records as a timeline file has them, a reduction's or gather's flights after them.

        A flight's kind is `R~` or `G~`, its action such as `R~0.3`: bucket 3 of reduction 0. What happened several
        times in the step has a row for each time, `G0`, `G0+1` and so on.
        """
        seen: Counter[str] = Counter()
        rows: list[dict[str, Any]] = [
            {"action": _once(str(action), seen), "kind": action.kind.value, "pipeline": action.pipeline,
             "stage": action.stage, "microbatch": action.microbatch, "start": round(start, 6), "end": round(end, 6)}
            for action, start, end in self.records
        ]
        return rows + [
            {"action": _once(f"{flight.kind.value}~{flight.reduction}.{flight.bucket}", seen),
             "kind": f"{flight.kind.value}~",
             "pipeline": -1, "stage": -1, "microbatch": -1, "start": round(flight.start, 6),
             "end": round(flight.end, 6)}
            for flight in self.flights
        ]

    def receive_wait_seconds(self) -> float:
        """Return the seconds spent waiting for neighbouring stages, or for a turn: the pipeline's bubble."""
        return self.seconds(_WAITS)

    def reduce_seconds(self) -> float:
        """Return the seconds spent in gradient reductions that nothing hid."""
        return self.seconds(frozenset({ActionKind.REDUCE, ActionKind.GATHER}))


def _once(name: str, seen: Counter[str]) -> str:
    """Return a name that no record of the step has yet."""
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}+{seen[name] - 1}"
