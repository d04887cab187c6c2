"""When the reductions and gathers of a simulated step start and end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from holmes_hpc.planner.cost.network import Traffic, occupied
from holmes_hpc.schedule.policies import Place
from holmes_hpc.values import ActionKind, Reduction, Schedule
from holmes_hpc.values.schedule import LAST_BACKWARDS

Key = tuple[int, int]
"""(reduction, part)."""
Move = Callable[[float, Traffic, Callable[[float], None], str], None]
Wake = Callable[[float, int], None]


@dataclass(frozen=True)
class Bucket:
    """A part of a reduction or gather.

    `stages[place]` is, for a reduction, the fraction of the stage's last backward after which its gradients are
    there, and for a gather the fraction of the stage's first forward after which its parameters are needed.
    """

    traffic: Traffic
    stages: Mapping[Place, float] = field(default_factory=dict)


def last_backwards(schedule: Schedule) -> dict[tuple[int, Place], int]:
    """Return where in its list a rank has the last backward of each of its stages (its weight part, if split)."""
    return {(rank, (action.pipeline, action.stage)): at for rank, actions in schedule.actions.items()
            for at, action in enumerate(actions) if action.kind in LAST_BACKWARDS}


class Collectives:
    """The state of all reductions and gathers. The parts of a reduction follow one another, as do a rank's gathers."""

    def __init__(self, schedule: Schedule, reductions: Sequence[Reduction], traffic: Sequence[Traffic],
                 buckets: Mapping[int, Sequence[Bucket]], gathers: Mapping[int, Sequence[Bucket]],
                 overlap_gathers: bool, move: Move, wake: Wake, at: Callable[..., None]) -> None:
        self.owners = [reduction.owners for reduction in reductions]
        self.parts = {index: buckets.get(index) or (Bucket(whole),) for index, whole in enumerate(traffic)}
        self.gathers, self.overlap_gathers = gathers, overlap_gathers
        self.move, self.wake, self.at = move, wake, at
        self.latest: dict[Key, float] = {}
        self.ready: set[Key] = set()
        self.gatherers = {rank for index in gathers for rank in self.owners[index]}
        self.missing: dict[Key, dict[int, int]] = {}
        self.at_action: set[tuple[int, int, int]] = set()
        self.next_part = dict.fromkeys(self.parts, 0)
        self.moving: set[int] = set()
        self.waiting: dict[tuple[str, int], list[int]] = {}
        self.entered: dict[int, int] = {}
        self.gathered: dict[Key, float] = {}
        self.gather_waits: dict[Key, list[int]] = {}
        self.after: dict[tuple[int, Place], list[tuple[float, int, int]]] = {}
        self.needs: dict[tuple[int, Place], list[tuple[float, Key]]] = {}
        """By rank and stage, until its first forward: what of its parameters is gathered under that."""
        places = {(rank, (action.pipeline, action.stage)) for rank, actions in schedule.actions.items()
                  for action in actions if action.kind is ActionKind.FORWARD}
        places_of: dict[int, list[Place]] = {}
        for rank, place in sorted(places):
            places_of.setdefault(rank, []).append(place)
        for index, parts in self.parts.items():
            for number, part in enumerate(parts):
                self.missing[index, number] = self._missing(index, number, part, places_of)
        if overlap_gathers:
            for index, parts in gathers.items():
                for number, part in enumerate(parts):
                    for rank in self.owners[index]:
                        for place in places_of.get(rank, ()):
                            if place in part.stages:
                                self.needs.setdefault((rank, place), []).append((part.stages[place], (index, number)))

    def _missing(self, index: int, number: int, part: Bucket, places_of: Mapping[int, list[Place]]) -> dict[int, int]:
        """Note what a part waits for on each of its owners: stages, or the owner's own action."""
        missing = {}
        for rank in self.owners[index]:
            here = [(place, part.stages[place]) for place in places_of.get(rank, ()) if place in part.stages]
            missing[rank] = max(1, len(here))
            if not here:
                self.at_action.add((index, number, rank))
            for place, fraction in here:
                self.after.setdefault((rank, place), []).append((fraction, index, number))
        return missing

    def begin(self) -> None:
        """Start the gathers that the step before left to this one."""
        if self.overlap_gathers:
            self._next_gather(0.0, {index: deque(range(len(self.gathers[index])))
                                    for index in sorted(self.gathers, reverse=True)}, set())

    def ready_after(self, rank: int, place: Place) -> Sequence[tuple[float, int, int]]:
        """Return (fraction, reduction, part) of what becomes ready in the last backward of a stage."""
        return self.after.get((rank, place), ())

    def enter(self, when: float, index: int, number: int, rank: int) -> None:
        """One owner will have some of the gradients of a part at `when`; it starts when none is missing any more."""
        key = index, number
        missing = self.missing[key]
        missing[rank] -= 1
        self.latest[key] = max(when, self.latest.get(key, 0.0))
        if missing[rank] == 0:
            del missing[rank]
            if not missing:
                self.at(self.latest[key], self._start_part, key)

    def _start_part(self, now: float, key: Key) -> None:
        self.ready.add(key)
        self._next_part(now, key[0])

    def is_reduced(self, now: float, rank: int, index: int) -> bool:
        """Return whether a reduction is complete; if not, the rank is woken when it is."""
        for number in range(len(self.parts[index])):
            if (index, number, rank) in self.at_action:
                self.at_action.discard((index, number, rank))
                self.enter(now, index, number, rank)
        if self.next_part[index] == len(self.parts[index]):
            return True
        self.waiting.setdefault(("R", index), []).append(rank)
        return False

    def _next_part(self, now: float, index: int) -> None:
        number = self.next_part[index]
        if index in self.moving or number == len(self.parts[index]) or (index, number) not in self.ready:
            return
        self.moving.add(index)
        traffic = self.parts[index][number].traffic

        def moved(end: float) -> None:
            self.moving.discard(index)
            self.next_part[index] += 1
            self._next_part(end, index)
            if self.next_part[index] == len(self.parts[index]):
                for rank in self.waiting.pop(("R", index), ()):
                    self.wake(end, rank)

        self.move(now, traffic.with_latency, moved, f"R{index}")

    def is_gathered(self, now: float, rank: int, index: int) -> bool:
        """Return whether a gather at the end of the step is complete; if not, the rank is woken when it is."""
        if (index, -1) in self.gathered or index not in self.gathers:
            return True
        self.waiting.setdefault(("G", index), []).append(rank)
        self.entered[index] = self.entered.get(index, 0) + 1
        if self.entered[index] == len(self.owners[index]):
            def moved(end: float) -> None:
                self.gathered[index, -1] = end
                for each in self.waiting.pop(("G", index)):
                    self.wake(end, each)

            self.move(now, _sum([part.traffic for part in self.gathers[index]]), moved, f"G{index}")
        return False

    def _next_gather(self, now: float, left: dict[int, deque[int]], occupied: set[int]) -> None:
        """Start every gather whose owners have no earlier one under way or before them.

        Of each reduction the next part is looked at, since its owners have the others behind it.
        """
        blocked = set(occupied)
        everyone = len(self.gatherers)
        for index, numbers in list(left.items()):
            if len(blocked) == everyone:
                break
            owners = self.owners[index]
            if blocked.isdisjoint(owners):
                key = index, numbers.popleft()
                if not numbers:
                    del left[index]
                occupied.update(owners)
                self._gather(now, key, left, occupied)
            blocked.update(owners)

    def _gather(self, now: float, key: Key, left: dict[int, deque[int]], occupied: set[int]) -> None:
        def moved(end: float) -> None:
            self.gathered[key] = end
            occupied.difference_update(self.owners[key[0]])
            self._next_gather(end, left, occupied)
            for rank in self.gather_waits.pop(key, ()):
                self.wake(end, rank)

        self.move(now, self.gathers[key[0]][key[1]].traffic.with_latency, moved, f"G{key[0]}")

    def is_gathered_for(self, rank: int, place: Place) -> bool:
        """Return whether the parameters of a stage are all there; if not, the rank is woken to ask again."""
        for _, key in self.needs.get((rank, place), ()):
            if key not in self.gathered:
                self.gather_waits.setdefault(key, []).append(rank)
                return False
        return True

    def forward_end(self, rank: int, place: Place, seconds: float) -> float:
        """Return the earliest end of the first forward of a stage that waited for its parameters layer by layer."""
        needs = self.needs.pop((rank, place))
        return max((self.gathered[key] + (1 - fraction) * seconds for fraction, key in needs))


def _sum(traffics: Sequence[Traffic]) -> Traffic:
    return Traffic(sum(traffic.seconds + traffic.latency_seconds for traffic in traffics), 0.0,
                   occupied(traffic.busy for traffic in traffics))
