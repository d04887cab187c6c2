"""From a shape to a candidate: micro-batch size, layers, and a quick estimate that says which are worth simulating."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner import layer_split
from holmes_hpc.planner.compute_cost import GIB, ComputeCost
from holmes_hpc.planner.layer_split import StageCost
from holmes_hpc.planner.memory import USABLE_FRACTION
from holmes_hpc.planner.network_cost import NetworkCost
from holmes_hpc.planner.pipelines import count_microbatches, overlaps
from holmes_hpc.planner.predict import compute_cost, core_pools, stage_seconds
from holmes_hpc.planner.settings import Task
from holmes_hpc.planner.shapes import Shape
from holmes_hpc.values import Group

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
    def words(self) -> str:
        """The layout for people."""
        return (f"{self.shape.words}, layers {'+'.join(map(str, self.layers))}, "
                f"micro-batch {self.micro_batch_size}")


def make_candidate(task: Task, shape: Shape, micro_batch_size: int) -> Candidate:
    """Return the candidate. Raises PlanRefusedError when batch, layers or memory do not fit the shape."""
    microbatches = count_microbatches(task.settings.global_batch_size, micro_batch_size)
    ways = overlaps([len(parts) for parts in shape.stages])
    if microbatches < len(ways) or (shape.equal_pipelines and microbatches % len(ways)):
        raise PlanRefusedError(
            f"{microbatches} micro-batches for {len(ways)} pipelines: "
            + ("the number must be a multiple of the pipelines' in the megatron strategy. "
               if microbatches >= len(ways) else "each needs at least one. ")
            + "Change train.global_batch_size or parallel.micro_batch_size, or use fewer pipelines "
              "(a larger parallel.pipeline).")
    stages = _Stages(task, shape, micro_batch_size, microbatches, len(ways))
    layers = stages.split()
    fits = all(count <= stages.capacity(s) for s, count in enumerate(layers))
    return Candidate(shape, micro_batch_size, layers, stages.estimate(layers), fits)


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

    def __init__(self, task: Task, shape: Shape, micro_batch_size: int, microbatches: int, pipelines: int) -> None:
        self.task, self.shape, self.size, self.pipelines = task, shape, micro_batch_size, pipelines
        self.microbatches = microbatches
        self.cost: ComputeCost = compute_cost(task)
        self.network = NetworkCost(task.machine)
        depth = len(shape.stages)
        self.fixed_units = [
            tuple(unit for unit in task.architecture.stage_units(0, 0, first=s == 0, last=s == depth - 1))
            for s in range(depth)
        ]

    def split(self) -> tuple[int, ...]:
        """Return the layers of each stage."""
        asked, total, depth = self.task.settings.layer_split, self.task.architecture.num_layers, len(self.shape.stages)
        layer_split.check_enough(total, depth)
        if not isinstance(asked, str):
            return layer_split.explicit(total, asked, depth)
        if asked == "uniform":
            return layer_split.uniform(total, depth)
        costs = [self.stage_cost(s) for s in range(depth)]
        if asked == "holmes":
            return layer_split.holmes(total, [1 / cost.layer_seconds for cost in costs], self.task.settings.alpha)
        return layer_split.adaptive(total, costs)

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
        if self.task.settings.schedule in ("1f1b", "auto", "interleaved") and self.task.settings.warmup_extra == 0:
            # Neighbours play ping-pong: each micro-batch also pays the hops, unless enough is in flight.
            steady += self.microbatches / self.pipelines * max([0.0, *(alone for alone, _ in hops)])
        fill = (sum(times) - max(times)) / self.shape.chunks + 2 * sum(alone for alone, _ in hops)
        sync = max(self._sync_seconds(s, count) for s, count in enumerate(layers)) * self.shape.chunks
        _, cores = core_pools(self.task)
        work = self.microbatches * sum(times) / sum(cores.values()) if cores else 0.0
        return max(steady + fill, work) + sync

    def _units(self, s: int, layers: int) -> tuple[str, ...]:
        return (*("layers.0",) * layers, *self.fixed_units[s])

    def _compute(self, s: int, units: tuple[str, ...]) -> tuple[float, float]:
        """Return forward and backward of the slowest part of a stage."""
        slowest = {self.task.cluster.node_of(part[0]).gpu: part for part in self.shape.stages[s]}
        times = [stage_seconds(self.task, self.cost, part, units, self.size) for part in slowest.values()]
        return max(forward for forward, _ in times), max(backward for _, backward in times)

    def _sync_seconds(self, s: int, layers: int) -> float:
        """Return the gradient sync of some layers of a stage, its NICs shared by its tensor-parallel ranks."""
        parts = self.shape.stages[s]
        if len(parts) == 1:
            return 0.0
        ranks = tuple(part[0] for part in parts)
        everyone = range(self.task.cluster.world_size)
        shared = self.task.cluster.shared_network(everyone if self.shape.rules.one_network else ranks)
        size = 4 * layers * self.cost.parameter_count(("layers.0",), len(parts[0]))
        return self.network.all_reduce(Group("data", ranks, shared), size).seconds * len(parts[0])

    def _hop_seconds(self, s: int) -> tuple[float, float]:
        """Return one message's time over the hop after stage `s`, and what it occupies of a NIC for all of its node."""
        before, after = self.shape.stages[s], self.shape.stages[s + 1]
        pair = before[0][0], after[0][0]
        if pair[0] == pair[1]:
            return 0.0, 0.0
        everyone = range(self.task.cluster.world_size)
        network = self.task.cluster.shared_network(everyone if self.shape.rules.one_network else pair)
        size = self.task.architecture.boundary_bytes(self.size, self.cost.element_bytes)
        traffic = self.network.message(network, *pair, size)
        slots = [self.task.cluster.node_of(part[0]).slot for part in before]
        crowd = max(slots.count(slot) for slot in set(slots))
        return traffic.seconds + traffic.latency_seconds, crowd * max([0.0, *traffic.busy.values()])

    def capacity(self, s: int) -> int:
        """Return how many layers fit into the memory of a stage's smallest GPU."""
        parts, tensor = self.shape.stages[s], len(self.shape.stages[s][0])
        depth, settings, chunks = len(self.shape.stages), self.task.settings, self.shape.chunks
        served = -(-self.pipelines // len(parts))
        in_flight = (-(-self.microbatches // len(parts)) if settings.schedule == "gpipe"
                     else min(served * (depth - s), -(-self.microbatches // len(parts))))
        fixed, layer = self.fixed_units[s], ("layers.0",)
        bytes_a_layer = (self.cost.parameter_count(layer, tensor) * sum(self.cost.state_bytes)
                         + in_flight * self.cost.activation_bytes(layer, self.size, tensor))
        least = self.task.architecture.num_layers
        for node in {self.task.cluster.node_of(part[0]) for part in parts}:
            used = (self.cost.static_gib(node, self.cost.parameter_count(fixed, tensor)) * GIB
                    + in_flight * self.cost.activation_bytes(fixed, self.size, tensor))
            free = self.task.machine.memory_gib(node) * USABLE_FRACTION * GIB - used
            least = min(least, max(0, int(free // bytes_a_layer) // chunks))
        return least
