"""Transfers that share NICs and trunks: how fast each one moves, as others come and go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from holmes_hpc.planner.cost.network import Needs, Resource, Traffic

_ENOUGH = 1e-9
"""Part of a resource's time that counts as nothing, and of a transfer that counts as moved."""


@dataclass(slots=True, eq=False)
class Shared:
    """A NIC's direction or a trunk, and who uses it; `free` and `count` are what is left of it and for how many."""

    users: dict[Lane, None] = field(default_factory=dict)
    free: float = 1.0
    count: int = 0


@dataclass(slots=True, eq=False)
class Lane:
    """Transfers under way that need the same: each moves the fraction `rate` of itself in a second."""

    kind: tuple[float, Needs]
    needs: tuple[tuple[Shared, float], ...]
    fastest: float
    rate: float = 0.0
    flows: dict[int, Flow] = field(default_factory=dict)

    def first(self) -> Flow:
        """Return the transfer that ends first: they move alike, so it is the one that started first."""
        flow = next(iter(self.flows.values()))
        flow.changes += 1
        return flow


@dataclass(slots=True, eq=False)
class Flow:
    """A transfer under way: the fraction that was left at `since`, when its rate last changed.

    `changes` counts how often its end was announced; only the last time holds.
    """

    number: int
    lane: Lane
    since: float
    left: float = 1.0
    changes: int = 0

    @property
    def rate(self) -> float:
        """The fraction that moves in a second."""
        return self.lane.rate

    @property
    def end(self) -> float:
        """When it will have moved, if nothing changes."""
        return self.since + self.left / self.lane.rate


@dataclass
class Links:
    """Every resource gives all transfers that use it equal parts of its time.

    A transfer moves as fast as its scarcest resource lets it, and never faster than alone; what it leaves of the
    others goes to the rest (progressive filling). The two directions of a NIC are resources of their own. Transfers
    that need the same move alike, so rates are shared out between lanes of them.
    """

    flows: dict[int, Flow] = field(default_factory=dict)
    lanes: dict[tuple[float, Needs], Lane] = field(default_factory=dict)
    shared: dict[Resource, Shared] = field(default_factory=dict)

    def start(self, number: int, now: float, traffic: Traffic) -> list[Flow]:
        """Start transfer `number`; return of every lane whose rate is now another one the flow that ends first."""
        lane = self.lanes.get(traffic.kind)
        if lane is None:
            lane = self.lanes[traffic.kind] = self._new_lane(traffic)
        self.flows[number] = lane.flows[number] = Flow(number, lane, now)
        return self._share(now, _near([lane]))

    def finish(self, number: int, now: float) -> list[Flow]:
        """Take a transfer that has moved away; return the flows that are now the first to end in their lane."""
        lane = self.flows.pop(number).lane
        del lane.flows[number]
        if not lane.flows:
            del self.lanes[lane.kind]
            for shared, _ in lane.needs:
                del shared.users[lane]
        others = [other for shared, _ in lane.needs for other in shared.users]
        rate = lane.rate
        changed = self._share(now, _near(others)) if others else []
        if lane.flows and lane.rate == rate:
            changed.append(lane.first())
        return changed

    def _new_lane(self, traffic: Traffic) -> Lane:
        seconds, needs = traffic.kind
        found = []
        for resource, need in needs:
            shared = self.shared.get(resource)
            if shared is None:
                shared = self.shared[resource] = Shared()
            found.append((shared, need))
        lane = Lane(traffic.kind, tuple(found), 1.0 / seconds)
        for shared, _ in lane.needs:
            shared.users[lane] = None
        return lane

    def _share(self, now: float, lanes: list[Lane]) -> list[Flow]:
        changed = []
        for lane, rate in _fair_rates(lanes):
            if rate != lane.rate:
                for flow in lane.flows.values():
                    if now > flow.since:
                        flow.left = max(0.0, flow.left - (now - flow.since) * lane.rate)
                        flow.since = now
                lane.rate = rate
                changed.append(lane.first())
        return changed


def _near(lanes: Iterable[Lane]) -> list[Lane]:
    """Return all lanes that share something with these, directly or through others."""
    found = dict.fromkeys(lanes)
    todo = list(found)
    if len(todo) == 1 and all(len(shared.users) == 1 for shared, _ in todo[0].needs):
        return todo  # as nearly always, and it goes on for every transfer
    seen: set[Shared] = set()
    while todo:
        for shared, _ in todo.pop().needs:
            if shared not in seen:
                seen.add(shared)
                for lane in shared.users:
                    if lane not in found:
                        found[lane] = None
                        todo.append(lane)
    return list(found)


def _fair_rates(lanes: list[Lane]) -> list[tuple[Lane, float]]:
    """Return the rate of every lane's flows by progressive filling over the resources that they share."""
    if len(lanes) == 1:
        lane = lanes[0]
        return [(lane, min([lane.fastest, *(1.0 / (len(lane.flows) * need) for _, need in lane.needs if need)])
                 if len(lane.flows) > 1 else lane.fastest)]
    for lane in lanes:
        for shared, _ in lane.needs:
            shared.free, shared.count = 1.0, 0
    for lane in lanes:
        number = len(lane.flows)
        for shared, _ in lane.needs:
            shared.count += number
    rates: list[tuple[Lane, float]] = []
    left = lanes
    while left:
        wished = list(map(_wished, left))
        # Those that an equal part does not hold up leave the rest to the others; else the most held up are settled.
        held_up = [rate / lane.fastest for lane, rate in zip(left, wished, strict=True)]
        free_ones, worst = max(held_up) >= 1 - _ENOUGH, min(held_up) * (1 + _ENOUGH)
        rest, settled = [], []
        for lane, rate, part in zip(left, wished, held_up, strict=True):
            if part < 1 - _ENOUGH if free_ones else part > worst:
                rest.append(lane)
            else:
                settled.append((lane, rate))
        if rest:
            _take(settled)
        rates += settled
        left = rest
    return rates


def _wished(lane: Lane) -> float:
    """Return the rate of a lane's flows with an equal part of what is free of everything that they need."""
    wished = lane.fastest
    for shared, need in lane.needs:
        if need:
            rate = shared.free / (shared.count * need)
            if rate < wished:
                wished = rate
    return wished


def _take(settled: list[tuple[Lane, float]]) -> None:
    """Take what settled lanes use from what is free for the others."""
    for lane, rate in settled:
        number = len(lane.flows)
        for shared, need in lane.needs:
            used, free = rate * need, shared.free
            for _ in range(number):
                free = max(_ENOUGH, free - used)
            shared.free = free
            shared.count -= number
