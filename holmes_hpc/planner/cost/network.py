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
from holmes_hpc.values import Group, Reduction
from holmes_hpc.values.levels import ranks_by_node

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

    def reduction(self, reduction: Reduction, groups: Sequence[Group], size_bytes: float) -> Traffic:
        """Return the price of a reduction: inside, across, and the broadcast inside where the sum was sharded."""
        inner = [self.all_reduce(groups[i], size_bytes) for i in reduction.inner]
        share = size_bytes / len(reduction.outer) if reduction.sharded and reduction.outer else size_bytes
        outer = [self.all_reduce(groups[i], share) for i in reduction.outer]
        last = [self._ring(groups[i], size_bytes, len(groups[i].ranks) - 1) for i in reduction.inner
                if reduction.sharded and len(groups[i].ranks) > 1]
        return _in_turn((inner, outer, last))

    def shard_sum(self, reduction: Reduction, groups: Sequence[Group], size_bytes: float) -> Traffic:
        """Return the price of a sum that stays in shards: a reduce-scatter inside, and the shards' sums across."""
        shards = len(reduction.outer) or 1
        return _in_turn([[self._half(groups[i], size_bytes, len(reduction.outer)) for i in reduction.inner],
                         [self.all_reduce(groups[i], size_bytes / shards) for i in reduction.outer]])

    def shard_gather(self, reduction: Reduction, groups: Sequence[Group], size_bytes: float) -> Traffic:
        """Return the price of gathering the shards of what a reduction owns inside each inner group."""
        return _in_turn([[self._half(groups[i], size_bytes, len(reduction.outer)) for i in reduction.inner]])

    def _half(self, group: Group, size_bytes: float, shards: int) -> Traffic:
        """Return the price of a reduce-scatter or all-gather, of so many shards if not 0: half of an all-reduce.

        The engine does it on gloo inside the nodes and then across, where each rank has a shard (`comm.sharding`).
        """
        cluster, count = self.machine.cluster, len(group.ranks)
        if count < 2:
            return Traffic(0.0)
        nodes = (ranks_by_node(group.ranks, lambda rank: cluster.node_of(rank).slot)
                 if self.machine.uses_gloo and shards in (0, count) else None)
        if nodes is None:
            return self._ring(group, (count - 1) / count * size_bytes, count - 1)
        local, parts = len(nodes[0]), len(nodes)
        return _in_turn([[self._ring(Group(group.kind, ranks, LOCAL), (local - 1) / local * size_bytes, local - 1)
                          for ranks in nodes],
                         [self._ring(Group(group.kind, ranks, group.network),
                                     (parts - 1) / parts * size_bytes / local, parts - 1)
                          for ranks in zip(*nodes, strict=True)]])

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


def occupied(parts: Iterable[Mapping[Resource, float]]) -> dict[Resource, float]:
    """Return how long transfers occupy each resource, all together; each is told as its own seconds by resource."""
    busy: dict[Resource, float] = {}
    for part in parts:
        for resource, seconds in part.items():
            busy[resource] = busy.get(resource, 0.0) + seconds
    return busy


def _in_turn(phases: Sequence[Sequence[Traffic]]) -> Traffic:
    """Return the price of phases that follow one another, each of groups side by side."""
    return Traffic(sum(_phase_seconds(phase) for phase in phases), 0.0,
                   occupied(traffic.busy for phase in phases for traffic in phase))


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
