"""When each action of a step started and ended on one rank, and what it spent its time on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holmes_hpc.comm.activity import Activity
from holmes_hpc.comm.streams import Moment, Streams, between
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
    when they were on their way. `activity` is told of every action. Where the device has `streams` that run behind the
    host, times are of points in them, and who asks for one that the device has not passed yet waits for it. All seconds
    that it tells are divided by `stretch`: in a wind tunnel time passes so much more slowly.
    """

    def __init__(self, activity: Activity | None = None, streams: Streams | None = None,
                 stretch: float = 1.0) -> None:
        self._activity, self._streams, self._stretch = activity or Activity(), streams, stretch
        self._records: list[tuple[Action, Moment, Moment]] = []
        self._flights: list[tuple[ActionKind, int, int, Moment, Moment]] = []
        self._updated = 0
        self._late: list[tuple[Moment, Moment]] = []
        self._zero = self._zero_before = self._now()

    @property
    def records(self) -> list[tuple[Action, float, float]]:
        """What the rank did, with begin and end."""
        return [(action, self._seconds(begin), self._seconds(end)) for action, begin, end in self._records]

    @property
    def flights(self) -> list[Flight]:
        """The collectives that were under way."""
        return [Flight(kind, reduction, bucket, self._seconds(began), self._seconds(ended))
                for kind, reduction, bucket, began, ended in self._flights]

    def start(self) -> None:
        """Begin a step: forget the records of the last one, but for its gathers after the update."""
        self._records.clear()
        self._flights.clear()
        self._zero_before, self._zero = self._zero, self._now()

    def update(self) -> None:
        """Note that the update begins: gathers after it are of the next forward."""
        self._updated = len(self._records)

    def end(self) -> None:
        """End the step."""
        self._late = [(begin, end) for action, begin, end in self._records[self._updated:]
                      if action.kind is ActionKind.GATHER]

    @contextmanager
    def record(self, action: Action) -> Iterator[None]:
        """Record the time that the body takes as `action`'s."""
        self._activity.begin(str(action))
        begin = self._now()
        yield
        self._records.append((action, begin, self._now()))

    def in_flight(self, kind: ActionKind, reduction: int, bucket: int, began: Moment, ended: Moment) -> None:
        """Note when a bucket's collective was under way."""
        self._flights.append((kind, reduction, bucket, began, ended))

    def seconds(self, kinds: frozenset[ActionKind]) -> float:
        """Return the seconds that actions of these kinds took together."""
        return sum(between(begin, end) for action, begin, end in self._records
                   if action.kind in kinds) / self._stretch

    def late_gather_seconds(self) -> float:
        """Return the seconds that the step before waited for gathers after its update."""
        return sum(between(begin, end) for begin, end in self._late) / self._stretch

    def rows(self) -> list[dict[str, Any]]:
        """Return the step's records as a timeline file has them, a reduction's or gather's flights after them.

        A flight's kind is `R~` or `G~`, its action such as `R~0.3`: bucket 3 of reduction 0. What happened several
        times in the step has a row for each time, `G0`, `G0+1` and so on.
        """
        seen: Counter[str] = Counter()
        rows: list[dict[str, Any]] = [
            {"action": _once(str(action), seen), "kind": action.kind.value, "pipeline": action.pipeline,
             "stage": action.stage, "microbatch": action.microbatch, "start": round(start, 6),
             "end": round(end, 6)}
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

    def _now(self) -> Moment:
        return time.perf_counter() if self._streams is None else self._streams.point()

    def _seconds(self, moment: Moment) -> float:
        # What began before the step did is timed from the beginning of the one before.
        return (between(self._zero_before, moment) - between(self._zero_before, self._zero)) / self._stretch


def _once(name: str, seen: Counter[str]) -> str:
    """Return a name that no record of the step has yet."""
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}+{seen[name] - 1}"
