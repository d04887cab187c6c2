"""Transfers that share NICs and trunks: how fast each one moves, as others come and go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holmes_hpc.planner.network_cost import Resource, Traffic

_ENOUGH = 1e-9
"""Part of a resource's time that counts as nothing, and of a transfer that counts as moved."""


@dataclass(slots=True)
class Flow:
    """A transfer under way: the fraction that is left, and the fraction that moves in a second."""

    number: int
    needs: Mapping[Resource, float]
    fastest: float
    left: float = 1.0
    rate: float = 0.0
    since: float = 0.0
    changes: int = 0

    @property
    def end(self) -> float:
        """When it will have moved, if nothing changes."""
        return self.since + self.left / self.rate


@dataclass
class Links:
    """Every resource gives all transfers that use it equal parts of its time.

    A transfer moves as fast as its scarcest resource lets it, and never faster than alone; what it leaves of the
    others goes to the rest (progressive filling). The two directions of a NIC are resources of their own.
    """

    flows: dict[int, Flow] = field(default_factory=dict)
    users: dict[Resource, dict[int, Flow]] = field(default_factory=dict)

    def start(self, number: int, now: float, traffic: Traffic) -> list[Flow]:
        """Start transfer `number`; return the flows whose end is now another one, it among them."""
        seconds = max([traffic.seconds, *traffic.busy.values()])
        flow = Flow(number, traffic.busy, 1.0 / seconds, since=now)
        self.flows[number] = flow
        for key in traffic.busy:
            self.users.setdefault(key, {})[number] = flow
        return self._share(now, self._near([flow]))

    def finish(self, number: int, now: float) -> list[Flow]:
        """Take a transfer that has moved away; return the flows whose end is now another one."""
        flow = self.flows.pop(number)
        for key in flow.needs:
            del self.users[key][number]
        others = [other for key in flow.needs for other in self.users[key].values()]
        return self._share(now, self._near(others))

    def _near(self, flows: Iterable[Flow]) -> list[Flow]:
        """Return all flows that share something with these, directly or through others."""
        found = {flow.number: flow for flow in flows}
        todo = list(found.values())
        keys: set[Resource] = set()
        while todo:
            for key in todo.pop().needs:
                if key not in keys:
                    keys.add(key)
                    new = {number: flow for number, flow in self.users[key].items() if number not in found}
                    found.update(new)
                    todo += new.values()
        return list(found.values())

    def _share(self, now: float, flows: list[Flow]) -> list[Flow]:
        rates = _fair_rates(flows)
        changed = []
        for flow in flows:
            rate = rates[flow.number]
            if rate != flow.rate:
                if flow.rate:
                    flow.left = max(0.0, flow.left - (now - flow.since) * flow.rate)
                flow.since, flow.rate = now, rate
                flow.changes += 1
                changed.append(flow)
        return changed


def _fair_rates(flows: list[Flow]) -> dict[int, float]:
    """Return the rate of every flow by progressive filling over the resources that they share."""
    if len(flows) == 1:
        return {flows[0].number: flows[0].fastest}
    rates: dict[int, float] = {}
    free: dict[Resource, float] = {}
    count: dict[Resource, int] = {}
    for flow in flows:
        for key in flow.needs:
            free[key] = 1.0
            count[key] = count.get(key, 0) + 1
    left = flows
    while left:
        wished = [min([flow.fastest, *(free[key] / (count[key] * need) for key, need in flow.needs.items() if need)])
                  for flow in left]
        # Those that an equal part does not hold up leave the rest to the others; else the most held up are settled.
        held_up = [rate / flow.fastest for flow, rate in zip(left, wished, strict=True)]
        free_ones, worst = max(held_up) >= 1 - _ENOUGH, min(held_up) * (1 + _ENOUGH)
        rest = []
        for flow, rate, part in zip(left, wished, held_up, strict=True):
            if part < 1 - _ENOUGH if free_ones else part > worst:
                rest.append(flow)
                continue
            rates[flow.number] = rate
        for flow in left:
            if flow.number in rates:
                for key, need in flow.needs.items():
                    free[key] = max(_ENOUGH, free[key] - rates[flow.number] * need)
                    count[key] -= 1
        left = rest
    return rates
