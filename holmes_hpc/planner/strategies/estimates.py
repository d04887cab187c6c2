"""From a shape to a candidate: micro-batch size, layers, and a quick estimate that says which are worth simulating."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from holmes_hpc.errors import DepthRefusedError, PlanRefusedError
from holmes_hpc.planner.cost.rank_memory import USABLE_FRACTION
from holmes_hpc.planner.cost.stages import GIB, ComputeCost
from holmes_hpc.planner.layout.ownership import TOKEN_TABLE
from holmes_hpc.planner.layout.pipelines import count_microbatches, overlaps
from holmes_hpc.planner.layout.sharing import sharers
from holmes_hpc.planner.simulation.prices import compute_cost, core_pools, network_cost, stage_seconds
from holmes_hpc.planner.strategies import layer_split
from holmes_hpc.planner.strategies.fleets.stage_table import Held, held_bytes
from holmes_hpc.planner.strategies.layer_split import StageCost
from holmes_hpc.planner.strategies.memory_refusal import capacity_remedies
from holmes_hpc.planner.strategies.proposals import LayoutFacts
from holmes_hpc.planner.strategies.shapes import Shape
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Group
from holmes_hpc.words import counted

_GRADIENT_BYTES = 4
_FEWEST_MICROBATCHES = 4
"""Micro-batches of each pipeline below which a pipeline stands idle for too long."""


@dataclass(frozen=True)
class Candidate:
    """A shape with its micro-batch size and layers, and a closed form's word on its step and its memory."""

    shape: Shape
    micro_batch_size: int
    layers: tuple[int, ...]
    estimate_seconds: float
    fits: bool

    @property
    def facts(self) -> LayoutFacts:
        """What the layout is made from."""
        return LayoutFacts(self.shape.strategy, self.shape.words, self.micro_batch_size, self.layers)


class StagePrices:
    """Prices of stages that many shapes share, each looked up once."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cost: ComputeCost = compute_cost(task)
        self._seconds: dict[tuple[str, int, tuple[str, ...], int], tuple[float, float]] = {}
        self._held: dict[tuple[tuple[str, ...], int, int], Held] = {}

    def seconds(self, part: tuple[int, ...], units: tuple[str, ...], size: int) -> tuple[float, float]:
        """Return forward and backward of the units on a tensor-parallel group."""
        key = self.task.cluster.node_of(part[0]).gpu, len(part), units, size
        if key not in self._seconds:
            self._seconds[key] = stage_seconds(self.task, self.cost, part, units, size)
        return self._seconds[key]

    def held(self, units: tuple[str, ...], tensor: int, size: int) -> Held:
        """Return what units need on a rank."""
        key = units, tensor, size
        if key not in self._held:
            self._held[key] = held_bytes(self.cost, *key, sharded=self.task.settings.sharded)
        return self._held[key]


class ShapeFacts:
    """What a shape costs whatever the micro-batch size: looked up once, asked for every size."""

    def __init__(self, task: Task, shape: Shape, prices: StagePrices | None = None) -> None:
        self.task, self.shape = task, shape
        self.prices = prices or StagePrices(task)
        self.ways = overlaps([len(parts) for parts in shape.stages])
        self.network = network_cost(task)
        everyone = range(task.cluster.world_size)
        self.one_network = task.cluster.shared_network(everyone) if shape.rules.one_network else None
        self.slowest = [tuple({task.cluster.node_of(part[0]).gpu: part for part in parts}.values())
                        for parts in shape.stages]
        self.kinds = [tuple({(node := task.cluster.node_of(part[0])).gpu: node for part in parts}.values())
                      for parts in shape.stages]
        self.sync_seconds_a_byte = [self._sync(parts) for parts in shape.stages]
        self.table_seconds = self._table()
        self.sharers = [self._sharers(parts) for parts in shape.stages]
        self.crowds = [max(Counter(task.cluster.node_of(part[0]).slot for part in parts).values())
                       for parts in shape.stages]

    def _sync(self, parts: Sequence[tuple[int, ...]]) -> float:
        """Return seconds for each byte of a stage's gradients, its NICs shared by its tensor-parallel ranks."""
        if len(parts) == 1:
            return 0.0
        ranks = tuple(part[0] for part in parts)
        group = Group("data", ranks, self.one_network or self.task.cluster.shared_network(ranks))
        return self.network.all_reduce(group, 1e9).seconds * len(parts[0]) / 1e9

    def _table(self) -> float:
        """Return seconds of summing the token table's gradient, last of all: tied, between both ends' ranks.

        Inside each fabric first, then every node's part of it across.
        """
        first, last = self.shape.stages[0], self.shape.stages[-1]
        tied = self.task.architecture.tied_embeddings and len(self.shape.stages) > 1
        ranks = sorted({part[0] for parts in (first, last)[:1 + tied] for part in parts})
        size = _GRADIENT_BYTES * self.prices.cost.parameter_count((TOKEN_TABLE,), 1)
        if self.one_network:
            whole = Group("data", tuple(ranks), self.one_network)
            return self.network.all_reduce(whole, size).seconds if len(ranks) > 1 else 0.0
        return size * self.network.hierarchical_seconds_a_byte(ranks)

    def _sharers(self, parts: Sequence[tuple[int, ...]]) -> int:
        """Return how many ranks share the optimizer's state of a stage's layers, where they are fewest."""
        owners = Counter(self.task.cluster.node_of(part[0]).fabric for part in parts)
        two_level = self.shape.rules.two_level and not self.shape.rules.one_network
        return min(sharers(owners, fabric, two_level=two_level) for fabric in owners)

    def hop_seconds(self, s: int, size_bytes: float) -> tuple[float, float]:
        """Return one message's time over the hop after stage `s`, and what it occupies of a NIC for all of its node."""
        pair = self.shape.stages[s][0][0], self.shape.stages[s + 1][0][0]
        if pair[0] == pair[1]:
            return 0.0, 0.0
        traffic = self.network.message(self.one_network or self.task.cluster.shared_network(pair), *pair, size_bytes)
        return traffic.seconds + traffic.latency_seconds, self.crowds[s] * max([0.0, *traffic.busy.values()])


def make_candidate(task: Task, shape: Shape, micro_batch_size: int, facts: ShapeFacts | None = None) -> Candidate:
    """Return the candidate. Raises PlanRefusedError when batch, layers or memory do not fit the shape."""
    facts = facts or ShapeFacts(task, shape)
    microbatches, ways = count_microbatches(task.settings.global_batch_size, micro_batch_size), facts.ways
    if microbatches < len(ways) or (shape.equal_pipelines and microbatches % len(ways)):
        raise PlanRefusedError(
            f"{counted(microbatches, 'micro-batch')} for {counted(len(ways), 'pipeline')}: "
            + ("the number must be a multiple of the pipelines' in the megatron strategy. "
               if microbatches >= len(ways) else "each needs at least one. ")
            + _remedy(task, shape, micro_batch_size, len(ways)))
    stages = _Stages(facts, micro_batch_size, microbatches)
    layers = stages.split()
    fits = all(count <= stages.capacity(s) for s, count in enumerate(layers))
    return Candidate(shape, micro_batch_size, layers, stages.estimate(layers), fits)


def _remedy(task: Task, shape: Shape, size: int, pipelines: int) -> str:
    """Return what gives each pipeline a micro-batch: what is at its limit already is not among it."""
    smaller = " or lower parallel.micro_batch_size" if size > 1 else ""
    if task.settings.data is not None:
        fewer = ", or lower parallel.data"
    elif len(shape.stages) < task.architecture.num_layers:
        fewer = ", or use fewer pipelines (a larger parallel.pipeline)"
    elif task.settings.pipeline is None and not smaller:
        fewer = ", or raise model.num_layers: deeper pipelines are fewer"
    else:
        fewer = ""
    enough = "a multiple of" if shape.equal_pipelines else "at least"
    return f"Set train.global_batch_size to {enough} {pipelines * size}{smaller}{fewer}."


def _too_deep(task: Task, depth: int) -> str:
    """Return why a layout has more stages than layers, by those settings that were set."""
    settings, layers = task.settings, task.architecture.num_layers
    asked = {f"parallel.{name}": value for name in ("pipeline", "data", "tensor")
             if (value := getattr(settings, name)) is not None}
    if settings.chunks > 1:
        asked["parallel.chunks"] = settings.chunks
    words = " and ".join(f"{name}={value}" for name, value in asked.items()) or "this layout"
    change = f"Change {' or '.join(asked)}, or raise" if asked else "Raise"
    make = "makes" if len(asked) < 2 else "make"
    return (f"{words} on {counted(task.cluster.world_size, 'rank')} {make} {depth} pipeline stages, which need at "
            f"least as many layers, and the model has {layers}. {change} model.num_layers to at least {depth}.")


def micro_batch_sizes(task: Task, shape: Shape) -> tuple[int, ...]:
    """Return the asked size, or the powers of two that leave each pipeline at least four micro-batches.

    Where none does, the smallest size alone is tried.
    """
    if task.settings.micro_batch_size is not None:
        return (int(task.settings.micro_batch_size),)
    batch = task.settings.global_batch_size
    pipelines = len(overlaps([len(parts) for parts in shape.stages]))
    sizes = [2**i for i in range(batch.bit_length()) if batch % 2**i == 0]
    if shape.equal_pipelines:
        sizes = [size for size in sizes if batch // size % pipelines == 0] or sizes[:1]
    return tuple(size for size in sizes if batch // size >= _FEWEST_MICROBATCHES * pipelines) or (sizes[0],)


class _Stages:
    """What the stages of a shape cost for a micro-batch size."""

    def __init__(self, facts: ShapeFacts, micro_batch_size: int, microbatches: int) -> None:
        self.facts, self.task, self.shape, self.size = facts, facts.task, facts.shape, micro_batch_size
        self.microbatches, self.pipelines = microbatches, len(facts.ways)
        task, shape = facts.task, facts.shape
        self.prices, self.cost = facts.prices, facts.prices.cost
        depth = len(shape.stages)
        self.fixed_units = [
            tuple(unit for unit in task.architecture.stage_units(0, 0, first=s == 0, last=s == depth - 1))
            for s in range(depth)
        ]

    def split(self) -> tuple[int, ...]:
        """Return the layers of each stage."""
        asked, total, depth = self.task.settings.layer_split, self.task.architecture.num_layers, len(self.shape.stages)
        if depth > total:
            raise DepthRefusedError(_too_deep(self.task, depth))
        if not isinstance(asked, str):
            return layer_split.explicit(total, asked, depth)
        if asked == "uniform":
            return layer_split.uniform(total, depth)
        costs = [self.stage_cost(s) for s in range(depth)]
        if asked == "holmes":
            return layer_split.holmes(total, [1 / cost.layer_seconds for cost in costs], self.task.settings.alpha)
        remedies = capacity_remedies(self.task, depth // self.shape.chunks, depth, len(self.shape.stages[0][0]),
                                     self.size)
        in_chunks = f", {self.shape.chunks} chunks" if self.shape.chunks > 1 else ""
        return layer_split.adaptive(total, costs, f"{self.shape.words}{in_chunks}, micro-batch {self.size},", remedies)

    def stage_cost(self, s: int) -> StageCost:
        """Return what a layer costs in stage `s` over a step, compute and gradient sync, and how many fit."""
        parts = self.shape.stages[s]
        turns = self.microbatches / len(parts)
        layer = turns * sum(self._compute(s, ("layers.0",)))
        fixed = turns * sum(self._compute(s, self.fixed_units[s])) if self.fixed_units[s] else 0.0
        return StageCost(layer + self._sync_seconds(s, 1), fixed, self.capacity(s))

    def estimate(self, layers: Sequence[int]) -> float:
        """Return the seconds of a step: the busiest stage, filling and draining, hops, and the gradient sync."""
        times = [sum(self._compute(s, self._units(s, count))) for s, count in enumerate(layers)]
        turns = [self.microbatches / len(parts) for parts in self.shape.stages]
        hops = [self._hop_seconds(s) for s in range(len(layers) - 1)]
        period = len(layers) // self.shape.chunks
        busiest = max(sum(turns[s] * times[s] for s in range(r, len(layers), period)) for r in range(period))
        waits = [turns[s] * busy for s, (_, busy) in enumerate(hops)]
        steady = max([busiest, *waits])
        if self.task.settings.first_schedule().alternates and self.task.settings.warmup_extra == 0:
            # Neighbours play ping-pong: each micro-batch also pays the hops, unless enough is in flight.
            steady += self.microbatches / self.pipelines * max([0.0, *(alone for alone, _ in hops)])
        fill = (sum(times) - max(times)) / self.shape.chunks + 2 * sum(alone for alone, _ in hops)
        sync = max(self._sync_seconds(s, count) for s, count in enumerate(layers)) * self.shape.chunks
        sync += self.facts.table_seconds
        _, cores = core_pools(self.task)
        work = self.microbatches * sum(times) / sum(cores.values()) if cores else 0.0
        return max(steady + fill, work) + sync

    def _units(self, s: int, layers: int) -> tuple[str, ...]:
        return (*("layers.0",) * layers, *self.fixed_units[s])

    def _compute(self, s: int, units: tuple[str, ...]) -> tuple[float, float]:
        """Return forward and backward of the slowest part of a stage."""
        times = [self.prices.seconds(part, units, self.size) for part in self.facts.slowest[s]]
        return max(forward for forward, _ in times), max(backward for _, backward in times)

    def _sync_seconds(self, s: int, layers: int) -> float:
        """Return the gradient sync of some layers of a stage."""
        size = _GRADIENT_BYTES * layers * self.cost.parameter_count(("layers.0",), len(self.shape.stages[s][0]))
        return self.facts.sync_seconds_a_byte[s] * size

    def _hop_seconds(self, s: int) -> tuple[float, float]:
        return self.facts.hop_seconds(s, self.task.architecture.boundary_bytes(self.size, self.cost.element_bytes))

    def capacity(self, s: int) -> int:
        """Return how many layers fit into the memory of a stage's smallest GPU."""
        parts, tensor = self.shape.stages[s], len(self.shape.stages[s][0])
        depth, settings, chunks = len(self.shape.stages), self.task.settings, self.shape.chunks
        served = -(-self.pipelines // len(parts))
        in_flight = (-(-self.microbatches // len(parts)) if settings.first_schedule().keeps
                     else min(served * (depth - s), -(-self.microbatches // len(parts))))
        layer = self.prices.held(("layers.0",), tensor, self.size)
        fixed = self.prices.held(self.fixed_units[s], tensor, self.size)
        count = self.facts.sharers[s]
        each = layer.whole + layer.divided / count + in_flight * layer.kept
        ends = fixed.whole + fixed.divided / self._end_sharers(s) + in_flight * fixed.kept
        ends += self.cost.workspace_bytes(("layers.0", *self.fixed_units[s]), self.size, tensor)
        least = self.task.architecture.num_layers
        for node in self.facts.kinds[s]:
            used = self.cost.static_gib(node, 0) * GIB + ends
            free = self.task.machine.memory_gib(node) * USABLE_FRACTION * GIB - used
            least = min(least, max(0, int(free // each) // chunks))
        return least

    def _end_sharers(self, s: int) -> int:
        """Return how many ranks share the optimizer's state of a stage's ends.

        Megatron sums a tied table whole between pairs of the first and the last stage, so that nobody shares it.
        """
        widths = {len(self.shape.stages[0]), len(self.shape.stages[-1])}
        in_pairs = self.shape.rules.one_network and self.task.architecture.tied_embeddings
        return 1 if in_pairs and len(self.shape.stages) > 1 and widths != {1} else self.facts.sharers[s]
