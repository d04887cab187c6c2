"""What the closed form knows of shapes whatever their micro-batches: their stages, hops and exchanges, as arrays."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy
from numpy.typing import NDArray

from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.layout.node_kinds import Kind, node_kinds
from holmes_hpc.planner.layout.ownership import TOKEN_TABLE
from holmes_hpc.planner.layout.pipelines import count_overlaps, overlaps
from holmes_hpc.planner.layout.sharing import sharers
from holmes_hpc.planner.simulation.prices import compute_cost, network_cost
from holmes_hpc.planner.strategies.closed_form import Floats
from holmes_hpc.planner.strategies.exchange import Exchange, Exchanges
from holmes_hpc.planner.strategies.shapes import Part, Shape
from holmes_hpc.planner.task import Task

_TOGETHER = 0.5
"""Of the time that hops on one NIC are under way: how much of it they are so together."""
Parts = tuple[Part, ...]


@dataclass(frozen=True)
class Stage:
    """One stage of a shape: its data-parallel parts, and what follows from where they lie.

    `kinds` are the kinds of its nodes, `nodes` has a bit for each node; `sharers` is how many ranks share the
    optimizer's state of its layers, where they are fewest.
    """

    kinds: tuple[int, ...]
    nodes: int
    sharers: int
    exchange: Exchange


@dataclass(frozen=True, eq=False)
class Edge:
    """The hops between two stages: seconds a byte of a message, alone and behind the others of its node, each way.

    `loads` says how long each NIC is occupied for each byte of every micro-batch of a step: out of and into each
    node, over Ethernet and over its fabric's network.
    """

    alone: float
    latency: float
    forward: float
    backward: float
    loads: Floats
    busiest: float


@dataclass
class ShapeFacts:
    """Facts of several shapes of one depth: rows are shapes, columns stages or the hops between them.

    `rows[i, s]` is the index in `stage_keys` of what is to be priced: kinds, degree, and whether it is an end.
    Hops have four columns more: seconds a byte forth, back and alone, and latency; exchanges those of `Exchange`.
    `table` is the exchange of a tied token table, which `table_crosses` says of whether it leaves a fabric.
    """

    shapes: Sequence[Shape]
    rows: NDArray[numpy.int64]
    stage_keys: list[tuple[tuple[int, ...], int, bool, bool]]
    widths: Floats
    tensor: NDArray[numpy.int64]
    pipelines: Floats
    sharers: Floats
    end_sharers: Floats
    exchanges: Floats
    hops: Floats
    nic: Floats
    shared: NDArray[numpy.bool_]
    table: Floats
    table_crosses: NDArray[numpy.bool_]
    estimated: dict[object, object] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """The number of stages."""
        return int(self.rows.shape[1])


class FactFinder:
    """Finds facts of shapes, each stage's and each hop's once."""

    def __init__(self, task: Task, rules: GroupRules, strategy: str) -> None:
        self.task, self.rules = task, rules
        self.cost = compute_cost(task)
        self.exchanges = Exchanges(task, rules, task.synchronization(strategy))
        self.one_network = self.exchanges.one_network
        self.network = network_cost(task)
        self.kinds: tuple[Kind, ...] = node_kinds(task)
        kind_of = {node.slot: k for k, kind in enumerate(self.kinds) for node in kind.nodes}
        place = {node.slot: i for i, node in enumerate(task.cluster.nodes)}
        nodes = [task.cluster.node_of(rank) for rank in range(task.cluster.world_size)]
        self.node = numpy.array([place[node.slot] for node in nodes])
        self.kind = numpy.array([kind_of[node.slot] for node in nodes])
        self.first = functools.cache(lambda parts: numpy.array([part[0] for part in parts]))
        self.fabric = [node.fabric for node in nodes]
        self.stage = functools.cache(self._stage)
        self.edge = functools.cache(self._edge)
        self.tied = task.architecture.tied_embeddings

    def find(self, shapes: Sequence[Shape]) -> ShapeFacts:
        """Return the facts of shapes of one depth."""
        depth = len(shapes[0].stages)
        keys: dict[tuple[tuple[int, ...], int, bool, bool], int] = {}
        found = [[self.stage(parts) for parts in shape.stages] for shape in shapes]
        rows = [[keys.setdefault((stage.kinds, len(parts[0]), s == 0, s == depth - 1), len(keys))
                 for s, (stage, parts) in enumerate(zip(stages, shape.stages, strict=True))]
                for stages, shape in zip(found, shapes, strict=True)]
        hops = [self._hops(shape) for shape in shapes]
        tables = [self._table(shape) for shape in shapes]
        nodes = [[stage.nodes for stage in stages] for stages in found]
        return ShapeFacts(
            shapes=shapes, rows=numpy.array(rows), stage_keys=list(keys),
            widths=numpy.array([[len(parts) for parts in shape.stages] for shape in shapes], dtype=float),
            tensor=numpy.array([[len(parts[0]) for parts in shape.stages] for shape in shapes]),
            pipelines=numpy.array([pipelines_of(shape) for shape in shapes], dtype=float),
            sharers=numpy.array([[stage.sharers for stage in stages] for stages in found], dtype=float),
            end_sharers=numpy.array([[1 if self._in_pairs(shape) else stage.sharers for stage in stages]
                                     for stages, shape in zip(found, shapes, strict=True)], dtype=float),
            exchanges=numpy.array([[_columns(stage.exchange) for stage in stages] for stages in found]),
            hops=numpy.array([each for each, _ in hops]).reshape(len(shapes), depth - 1, 4),
            nic=numpy.array([busiest for _, busiest in hops]),
            shared=numpy.array([[[a & b != 0 for b in each] for a in each] for each in nodes]),
            table=numpy.array([_columns(exchange) for exchange, _ in tables]),
            table_crosses=numpy.array([crosses for _, crosses in tables]))

    def _stage(self, parts: Parts) -> Stage:
        owners = tuple(part[0] for part in parts)
        fabrics = Counter(self.fabric[rank] for rank in owners)
        two_level = self.rules.two_level and not self.rules.one_network
        first = self.first(parts)
        nodes = sum(1 << node for node in set(self.node[first].tolist()))
        return Stage(tuple(sorted(set(self.kind[first].tolist()))), nodes,
                     min(sharers(fabrics, fabric, two_level=two_level) for fabric in fabrics),
                     self.exchanges.of(owners, len(parts[0])))

    def _edge(self, before: Parts, after: Parts) -> Edge:
        """Return the hops between two stages, the worst of all pairs of their parts that pass micro-batches."""
        shares, left, right = _pairs(len(before), len(after))
        senders, receivers = self.first(before)[left], self.first(after)[right]
        a, b = self.node[senders], self.node[receivers]
        t, u = len(before[0]), len(after[0])
        # Every rank of the receiving stage gets a whole activation, or its shard of it.
        shards = t if self.task.settings.sequence_parallel and t == u else 1
        back, forth = t / shards, u / shards
        crossing = a != b
        kinds = (self.kind[senders] * len(self.kinds) + self.kind[receivers]) * 2 + crossing
        alone = latency = busy = 0.0
        ways = set()
        for i in {int(kind): i for i, kind in enumerate(kinds.tolist()) if senders[i] != receivers[i]}.values():
            network, seconds, wait, occupied = self._message(int(senders[i]), int(receivers[i]))
            alone, latency, busy = max(alone, seconds / shards), max(latency, wait), max(busy, occupied)
            ways.add(network == ETHERNET)
        nodes = len(self.task.cluster.nodes)
        loads = numpy.zeros((2, 2, nodes))
        if not busy:
            return Edge(alone, latency, 0.0, 0.0, loads.reshape(-1), 0.0)
        a, b, left, right = a[crossing], b[crossing], left[crossing], right[crossing]
        load = [numpy.bincount(ends, shares[crossing] * busy, nodes) for ends in (a, b)]
        loads[int(True in ways)] = load[0] * forth + load[1] * back, load[1] * forth + load[0] * back
        alone = max(alone, busy * forth, busy * back)
        return Edge(alone, latency, busy * forth * _crowd(left, (a, b), nodes),
                    busy * back * _crowd(right, (a, b), nodes), loads.reshape(-1), float(loads.max()))

    def _hops(self, shape: Shape) -> tuple[list[tuple[float, float, float, float]], float]:
        """Return of each hop seconds a byte, forth, back and alone, and latency; then how long a NIC is busy.

        Hops that share a NIC are often under way together; half of what they would then wait is counted.
        """
        edges = [self.edge(*pair) for pair in itertools.pairwise(shape.stages)]
        crossing = [edge for edge in edges if edge.forward]
        if len(crossing) < 2:
            return [(max(edge.alone, edge.forward), max(edge.alone, edge.backward), edge.alone, edge.latency)
                    for edge in edges], crossing[0].busiest if crossing else 0.0
        loads = numpy.array([edge.loads for edge in edges])
        total = loads.sum(axis=0)
        with numpy.errstate(divide="ignore", invalid="ignore"):
            crowd = numpy.where(loads > 0, total / loads, 1.0).max(axis=1)
        stretch = (1 + (crowd - 1) * _TOGETHER).tolist()
        return [(max(edge.alone, edge.forward * each), max(edge.alone, edge.backward * each), edge.alone, edge.latency)
                for edge, each in zip(edges, stretch, strict=True)], float(total.max())

    @functools.cached_property
    def _messages(self) -> dict[tuple[int, int, bool], tuple[str, float, float, float]]:
        return {}

    def _message(self, a: int, b: int) -> tuple[str, float, float, float]:
        """Return network, seconds a byte, latency and what a byte occupies of a NIC; equal nodes have the same."""
        kinds = int(self.kind[a]), int(self.kind[b]), bool(self.node[a] == self.node[b])
        if kinds not in self._messages:
            network = self.one_network or self.task.cluster.shared_network((a, b))
            traffic = self.network.message(network, a, b, 1.0)
            self._messages[kinds] = (network, traffic.seconds, traffic.latency_seconds,
                                     max([0.0, *traffic.busy.values()]))
        return self._messages[kinds]

    def _in_pairs(self, shape: Shape) -> bool:
        """Return whether a tied table is summed whole between pairs of both ends, so that nobody shares its state."""
        widths = {len(shape.stages[0]), len(shape.stages[-1])}
        return self.rules.one_network and self.tied and len(shape.stages) > 1 and widths != {1}

    def _table(self, shape: Shape) -> tuple[Exchange, bool]:
        """Return the exchange of a tied table between both ends, and whether it leaves their fabrics."""
        first, last = shape.stages[0], shape.stages[-1]
        if not self.tied or len(shape.stages) == 1:
            return Exchange(), False
        owners = [tuple(part[0] for part in parts) for parts in (first, last)]
        crosses = len({self.fabric[rank] for ranks in owners for rank in ranks}) > 1
        tensor = max(len(first[0]), len(last[0]))
        if self._in_pairs(shape) and len(first) == len(last) and not set(owners[0]) & set(owners[1]):
            return self.exchanges.in_pairs(owners[0], owners[1], tensor), crosses
        return self.exchanges.of(tuple(sorted({*owners[0], *owners[1]})), tensor), crosses

    def layer_bytes(self, tensor: int) -> float:
        """Return the bytes of a layer's gradients on one of `tensor` ranks."""
        return self.task.software.gradient_bytes * self.cost.parameter_count(("layers.0",), tensor)

    def table_bytes(self, tensor: int) -> float:
        """Return the same of the token table."""
        return self.task.software.gradient_bytes * self.cost.parameter_count((TOKEN_TABLE,), tensor)

    def end_bytes(self, tensor: int, first: bool, last: bool) -> float:
        """Return the same of what a stage holds beside layers, without a tied table."""
        units = [unit for unit in self.task.architecture.stage_units(0, 0, first=first, last=last)
                 if not (unit == TOKEN_TABLE and self.tied and first != last)]
        return self.task.software.gradient_bytes * self.cost.parameter_count(tuple(units), tensor) if units else 0.0


def pipelines_of(shape: Shape) -> int:
    """Return how many pipelines the stages of a shape make."""
    return count_overlaps(frozenset(map(len, shape.stages)))


@functools.lru_cache(maxsize=1024)
def _pairs(before: int, after: int) -> tuple[Floats, NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Return of every pair of parts of two stages that pass micro-batches their share of a step's, and both parts."""
    ways = overlaps((before, after))
    left, right = (numpy.array([parts[i] for _, parts in ways]) for i in range(2))
    return numpy.array([float(share) for share, _ in ways]), left, right


def _crowd(parts: NDArray[numpy.int64], ends: tuple[NDArray[numpy.int64], NDArray[numpy.int64]], nodes: int) -> int:
    """Return how many parts at most send from one node to others, or from others to it."""
    most = 0
    for end in ends:
        pairs = numpy.unique(parts * nodes + end)
        most = max(most, int(numpy.bincount(pairs % nodes).max()))
    return most


def _columns(exchange: Exchange) -> tuple[float, float, float, float]:
    return exchange.sum_a_byte, exchange.sum_latency, exchange.gather_a_byte, exchange.gather_latency
