"""Seconds that messages and collectives take, and which NICs they occupy for how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from holmes_hpc.cluster import Machine, Node
from holmes_hpc.cluster.cluster import LOCAL
from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.planner.cost.collectives import Ring
from holmes_hpc.planner.cost.gpu_constants import (
    COLLECTIVE_LAUNCH_SECONDS,
    RING_STEP_SECONDS,
    local_share,
    network_share,
)
from holmes_hpc.planner.known import KnownPrices
from holmes_hpc.values import Group, Level, Operation, Reduction

Resource = tuple[str, str]
"""What transfers share, one direction of it: (node's slot, `out ib`), or (`trunk`, `fabric>fabric`).

Where a node has less towards a fabric than by all its Ethernet, that is one more: (node's slot, `out ethernet>fabric`),
without a fabric for its uplink to all that it has no link of its own to.
"""
Needs = tuple[tuple[Resource, float], ...]
"""How long a transfer occupies each of them."""


@dataclass(frozen=True)
class Traffic:
    """How long a transfer takes on its own, and how long it occupies each shared resource."""

    seconds: float
    latency_seconds: float = 0.0
    busy: dict[Resource, float] = field(default_factory=dict)

    def later(self, seconds: float) -> Traffic:
        """Return the same that is there so much later, without occupying anything for longer."""
        return replace(self, latency_seconds=self.latency_seconds + seconds) if seconds else self

    @cached_property
    def with_latency(self) -> Traffic:
        """The same with its latency as a part of its time, as in a collective whose steps follow one another."""
        return Traffic(self.seconds + self.latency_seconds, 0.0, self.busy) if self.latency_seconds else self

    @cached_property
    def kind(self) -> tuple[float, Needs]:
        """What all transfers that move alike have in common: their seconds alone, and what they need."""
        return max([self.seconds, *self.busy.values()]), tuple(self.busy.items())


class NetworkCost:
    """Prices messages and reductions on a machine. Ranks of a node share its NICs. `known` keeps what it priced."""

    def __init__(self, machine: Machine, known: KnownPrices | None = None) -> None:
        self.machine, self.known = machine, known or KnownPrices(machine)

    def message(self, network: str, sender: int, receiver: int, size_bytes: float) -> Traffic:
        """Return the price of one message of a pipeline edge."""
        cluster = self.machine.cluster
        a, b = cluster.node_of(sender), cluster.node_of(receiver)
        seconds_a_byte, latency, busy = self._hop(network, a, b)
        return Traffic(size_bytes * seconds_a_byte, latency, {key: size_bytes * each for key, each in busy.items()})

    def all_reduce(self, group: Group, size_bytes: float) -> Traffic:
        """Return the price of a ring all-reduce: each node's NICs carry 2 (R - 1) / R times the tensor."""
        count = len(group.ranks)
        if count < 2:
            return Traffic(0.0)
        factor = 2 * (count - 1) / count * size_bytes
        return self._ring(group, factor, 2 * (count - 1))

    def hierarchical_seconds_a_byte(self, ranks: Sequence[int]) -> float:
        """Return about what each byte takes that ranks sum: NICs alone, those of every node that has some of them.

        A ring inside each fabric; over several fabrics once more, over what every node has towards the others.
        """
        cluster = self.machine.cluster
        fabrics: dict[str, dict[str, int]] = {}
        for rank in ranks:
            node = cluster.node_of(rank)
            fabrics.setdefault(node.fabric, {}).setdefault(node.slot, rank)
        seconds = 0.0
        for nodes in fabrics.values():
            inside = tuple(nodes.values())
            alone = self.all_reduce(Group("data", inside, cluster.shared_network(inside)), 1e9)
            seconds = max(seconds, max([0.0, *alone.busy.values()]) / 1e9)
        if len(fabrics) > 1:
            everyone = [rank for nodes in fabrics.values() for rank in nodes.values()]
            pair = tuple(next(iter(nodes.values())) for nodes in fabrics.values())
            traffic = self.all_reduce(Group("data", pair, cluster.shared_network(everyone)), 1e9)
            lanes = max(1, min(len(nodes) for nodes in fabrics.values()))
            seconds += max([0.0, *traffic.busy.values()]) / 1e9 / lanes
        return seconds

    def tensor_ring(self, ranks: Sequence[int]) -> Ring:
        """Return the ring over which a stage's tensor ranks sum, with nothing else under way."""
        cluster = self.machine.cluster
        nodes = [cluster.node_of(rank) for rank in ranks]
        ring: Ring = self.known.tensor_rings.of(tuple(node.slot for node in nodes), lambda: self._tensor_ring(ranks))
        return ring

    def _tensor_ring(self, ranks: Sequence[int]) -> Ring:
        group = Group("tensor", tuple(ranks), self.machine.cluster.shared_network(ranks))
        seconds_a_byte, step, _ = self._ring_rates(group)
        return Ring(1 / seconds_a_byte, step, COLLECTIVE_LAUNCH_SECONDS)

    def summed(self, reduction: Reduction, groups: Sequence[Group], size_bytes: float) -> Traffic:
        """Return the price of the levels that sum the gradients of what a reduction owns."""
        return self._levels(reduction.levels, groups, size_bytes)

    def gathered(self, reduction: Reduction, groups: Sequence[Group], size_bytes: float) -> Traffic:
        """Return the price of the levels that gather the parameters of what a reduction owns."""
        return self._levels(reduction.gathers, groups, size_bytes)

    def _levels(self, levels: Sequence[Level], groups: Sequence[Group], size_bytes: float) -> Traffic:
        """Return the price of levels that follow one another.

        Groups of a level wait for those that they share ranks with, and not for others: the nodes of two fabrics each
        begin to sum across when their own are ready.
        """
        phases: list[_Phase] = []
        for level in levels:
            phases = _joined(phases, [_Phase(groups[i].ranks, self._at_level(level, groups[i], size_bytes))
                                      for i in level.groups])
        return phases[0].traffic if len(phases) == 1 else _side_by_side([phase.traffic for phase in phases])

    def _at_level(self, level: Level, group: Group, size_bytes: float) -> Traffic:
        """Return the price of what one group does at a level."""
        return self._ring(group, *_passed(level, group, size_bytes)) if len(group.ranks) > 1 else Traffic(0.0)

    def inside_seconds(self, level: Level, group: Group, size_bytes: float) -> float:
        """Return what the links inside the nodes of a group take at least for what it does at a level."""
        ranks_on = Counter(self.machine.cluster.node_of(rank) for rank in group.ranks)
        inside = [self._inside(node) for node, count in ranks_on.items() if count > 1]
        passed, steps = _passed(level, group, size_bytes)
        return max([0.0, *(passed * seconds_a_byte + steps * step for seconds_a_byte, step in inside)])

    def _ring(self, group: Group, size_bytes: float, steps: int) -> Traffic:
        """Return the price of `size_bytes` passing every rank of a ring in `steps` steps."""
        slowest, longest, shares = self.known.rings.of((group.network, group.ranks), lambda: self._ring_rates(group))
        return Traffic(size_bytes * slowest + steps * longest, 0.0,
                       {resource: size_bytes * each for resource, each in shares.items()})

    def _hop(self, network: str, a: Node, b: Node) -> tuple[float, float, dict[Resource, float]]:
        """Return seconds a byte of one pair, latency in seconds, and seconds a byte of every shared resource."""
        return self.known.hops.of((network, a.slot, b.slot), lambda: _hop_rates(self.machine, network, a, b))

    def _ring_rates(self, group: Group) -> tuple[float, float, dict[Resource, float]]:
        """Return seconds a byte of a ring, its longest step, and seconds a byte of every shared resource.

        Between nodes each rank of a node drives a NIC, as far as there are so many; inside, the ring goes from rank to
        rank over the node's own links.
        """
        cluster = self.machine.cluster
        ranks_on = Counter(cluster.node_of(rank) for rank in group.ranks)
        nodes = list(ranks_on)
        insides = [self._inside(node) for node, count in ranks_on.items() if count > 1]
        slowest = max([0.0, *(seconds for seconds, _ in insides)])
        longest = max([0.0, *(step for _, step in insides)])
        busy: dict[Resource, float] = {}
        if len(nodes) == 1:
            return slowest, longest, busy
        fewest = len(group.ranks) // len(nodes)
        for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True):
            pair, latency, shares = self._hop(group.network, a, b)
            slowest = max(slowest, pair / max(1, fewest), *shares.values())
            longest = max(longest, latency)
            for key, each in shares.items():
                busy[key] = busy.get(key, 0.0) + each
        return slowest, longest, busy


    def _inside(self, node: Node) -> tuple[float, float]:
        """Return seconds a byte between two ranks of a node, and those of a step of a ring over them.

        A message is a launch of its own, the step of a ring of NCCL is not: its kernel goes round by itself.
        """
        seconds_a_byte, latency, _ = self._hop(LOCAL, node, node)
        return seconds_a_byte, latency if self.machine.uses_gloo else min(latency, RING_STEP_SECONDS)


def _passed(level: Level, group: Group, size_bytes: float) -> tuple[float, int]:
    """Return how many bytes pass every rank of a group's ring at a level, and in how many steps.

    NCCL's rings go round all ranks of a group, so the NICs of a node carry what one rank does, in all its rings
    together, however many ranks of the group it has: 2 (R - 1) / R of the buffer in an all-reduce, and half of it in a
    reduce-scatter or gather (PERFORMANCE.md of nccl-tests, "bus bandwidth").
    """
    count = len(group.ranks)
    if level.operation is Operation.ALL_REDUCE:
        return 2 * (count - 1) / count * (size_bytes / level.parts), 2 * (count - 1)
    if level.operation is Operation.BROADCAST:
        return size_bytes, count - 1
    # Half of an all-reduce, of what the levels inside the nodes leave to each rank.
    return (count - 1) / count * size_bytes / max(1, level.parts // count), count - 1


def occupied(parts: Iterable[Mapping[Resource, float]]) -> dict[Resource, float]:
    """Return how long transfers occupy each resource, all together; each is told as its own seconds by resource."""
    busy: dict[Resource, float] = {}
    for part in parts:
        for resource, seconds in part.items():
            busy[resource] = busy.get(resource, 0.0) + seconds
    return busy


@dataclass(frozen=True)
class _Phase:
    """What some ranks have done so far."""

    ranks: tuple[int, ...]
    traffic: Traffic


def _joined(before: Sequence[_Phase], groups: Sequence[_Phase]) -> list[_Phase]:
    """Return the phases after those of some groups, each of which follows all that it shares ranks with."""
    if not before:
        return [_Phase(group.ranks, _side_by_side([group.traffic])) for group in groups]
    phase_of = {rank: number for number, phase in enumerate(before) for rank in phase.ranks}
    set_of = list(range(len(before) + len(groups)))

    def root(number: int) -> int:
        while set_of[number] != number:
            number = set_of[number]
        return number

    for number, group in enumerate(groups, start=len(before)):
        for earlier in {phase_of[rank] for rank in group.ranks if rank in phase_of}:
            set_of[root(earlier)] = root(number)
    sets: dict[int, tuple[list[_Phase], list[_Phase]]] = {}
    for number, each in enumerate([*before, *groups]):
        sets.setdefault(root(number), ([], []))[number >= len(before)].append(each)
    return [_after(first, then) for first, then in sets.values()]


def _after(first: Sequence[_Phase], then: Sequence[_Phase]) -> _Phase:
    """Return phases side by side and after them others side by side."""
    early, late = ([phase.traffic for phase in phases] for phases in (first, then))
    seconds = early[0].seconds if len(early) == 1 else _phase_seconds(early)
    return _Phase(tuple(dict.fromkeys(rank for phase in (*first, *then) for rank in phase.ranks)),
                  Traffic(seconds + _phase_seconds(late), 0.0, occupied(each.busy for each in (*early, *late))))


def _side_by_side(traffics: Sequence[Traffic]) -> Traffic:
    """Return the price of groups that go on at the same time."""
    return Traffic(_phase_seconds(traffics), 0.0, occupied(traffic.busy for traffic in traffics))


def _phase_seconds(traffics: Sequence[Traffic]) -> float:
    """Return how long groups that run side by side take: the longest alone, or the busiest shared NIC."""
    busy = occupied(traffic.busy for traffic in traffics)
    return max([0.0, *(traffic.seconds for traffic in traffics), *busy.values()])


def _hop_rates(machine: Machine, network: str, a: Node, b: Node) -> tuple[float, float, dict[Resource, float]]:
    inside = a.slot == b.slot
    rate = machine.link(network, a, b)
    achieved = min(local_share(machine.gpu(node).name) for node in (a, b)) if inside else network_share(network)
    busy: dict[Resource, float] = {}
    if not inside:
        for node, other, direction in ((a, b, "out"), (b, a, "in")):
            share = machine.node_bandwidth_gbps(node, network)
            busy[node.slot, f"{direction} {network}"] = 8 / (share * 1e9 * achieved)
            name, gbps = machine.way(node, other) if network == ETHERNET else ("", share)
            if gbps < share:
                busy[node.slot, f"{direction} {network}>{name}"] = 8 / (gbps * 1e9 * achieved)
        trunk = machine.trunk_gbps(a.fabric, b.fabric) if a.fabric != b.fabric else None
        if trunk:
            busy["trunk", f"{a.fabric}>{b.fabric}"] = 8 / (trunk * 1e9 * achieved)
    return 8 / (rate.bandwidth_gbps * 1e9 * achieved), rate.latency_us * 1e-6, busy
