"""From shapes to estimates: micro-batch size, layers, and the closed form that says which are worth simulating."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from holmes_hpc.errors import DepthRefusedError, PlanRefusedError
from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.layout.pipelines import build_pipelines, count_microbatches
from holmes_hpc.planner.simulation.predict import step_collectives
from holmes_hpc.planner.simulation.prices import core_pools
from holmes_hpc.planner.strategies import layer_split
from holmes_hpc.planner.strategies.closed_form import (
    Floats,
    Hops,
    bucket_counts,
    exposed_gathers,
    exposed_sums,
    extra_warmup,
    passing,
)
from holmes_hpc.planner.strategies.memory import room
from holmes_hpc.planner.strategies.memory_refusal import capacity_remedies
from holmes_hpc.planner.strategies.proposals import LayoutFacts, Proposal, SharedStages
from holmes_hpc.planner.strategies.shape_facts import FactFinder, ShapeFacts, pipelines_of
from holmes_hpc.planner.strategies.shape_refusals import too_deep, too_few
from holmes_hpc.planner.strategies.shapes import Shape
from holmes_hpc.planner.strategies.stage_table import StageCostModel, StageTable
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Group, Pipeline

_FEWEST_MICROBATCHES = 4
"""Micro-batches of each pipeline below which a pipeline stands idle for too long."""


@dataclass(frozen=True)
class Estimated:
    """A shape with its micro-batch size and layers, and a closed form's word on its step and its memory."""

    shape: Shape
    micro_batch_size: int
    layers: tuple[int, ...]
    seconds: float
    fits: bool

    @property
    def facts(self) -> LayoutFacts:
        """What the layout is made from."""
        shape = self.shape
        if shape.shared:
            form = SharedStages(tuple((*stage, count) for stage, count in zip(shape.shared, self.layers, strict=True)))
            return LayoutFacts(shape.strategy, form, self.micro_batch_size)
        return LayoutFacts(shape.strategy, shape.words, self.micro_batch_size, self.layers)


class Estimator:
    """Estimates shapes of one strategy, all of one depth and size together."""

    def __init__(self, task: Task, rules: GroupRules, strategy: str) -> None:
        self.task = task
        self.finder = FactFinder(task, rules, strategy)
        self.cost, self.kinds = self.finder.cost, self.finder.kinds
        self.synchronization = task.synchronization(strategy)
        self.stage_costs = StageCostModel(task)
        self.num_layers = task.architecture.num_layers
        self._tables: dict[int, StageTable] = {}
        self.optimizer = [self.cost.optimizer_seconds(kind.node, 1.0) for kind in self.kinds]
        everyone = tuple(range(task.cluster.world_size))
        self.always = step_collectives(task, Group("world", everyone, task.cluster.shared_network(everyone)))

    def rows(self, facts: ShapeFacts, size: int) -> Floats:
        """Return the rows of `StageTable.row` of every stage, of several kinds the worst."""
        table = self._tables.setdefault(size, StageTable(self.stage_costs, self.kinds, size))
        found = []
        for kinds, tensor, first, last in facts.stage_keys:
            each = numpy.array([table.row(k, tensor, first, last) for k in kinds])
            worst = each.max(axis=0)
            worst[5] = each[:, 5].min()
            found.append(worst)
        return numpy.array(found)[facts.rows]

    def estimate(self, facts: ShapeFacts, size: int) -> list[Estimated | PlanRefusedError]:
        """Return for every shape what is estimated of it, or why it cannot be planned with this size."""
        microbatches = count_microbatches(self.task.settings.global_batch_size, size)
        is_deep = facts.depth > self.num_layers  # which no batch mends
        few: list[PlanRefusedError | None] = [
            None if is_deep else too_few(self.task, shape, size, int(ways), microbatches)
            for shape, ways in zip(facts.shapes, facts.pipelines, strict=True)]
        return _ShapesOfSize(self, facts, size, microbatches).estimates(few)


class _ShapesOfSize:
    """Shapes of one depth at one micro-batch size."""

    def __init__(self, estimator: Estimator, facts: ShapeFacts, size: int, microbatches: int) -> None:
        self.estimator, self.facts, self.size, self.microbatches = estimator, facts, size, microbatches
        self.task, finder = estimator.task, estimator.finder
        rows = estimator.rows(facts, size)
        self.layer, self.end = rows[..., 0], rows[..., 1]
        # The largest pipelines take as many as a group of the widest stage.
        self.rounds = numpy.ceil(microbatches / facts.widths.max(axis=1))
        served = facts.pipelines[:, None] / facts.widths
        # Of its stage's micro-batches the busiest group has as many whole ones as come out.
        self.served = numpy.ceil(microbatches / facts.widths) / self.rounds[:, None]
        depth, chunks = facts.depth, facts.shapes[0].chunks
        whole = numpy.ceil(microbatches / facts.widths)
        in_flight = whole if self.task.settings.first_schedule(chunks).keeps else numpy.minimum(
            numpy.ceil(served) * numpy.arange(depth, 0, -1), whole)
        fits = room(rows, facts.sharers, in_flight, facts.end_sharers)
        self.caps = numpy.clip(fits, 0, estimator.num_layers) // chunks
        degrees = {int(t): finder.layer_bytes(int(t)) for t in numpy.unique(facts.tensor)}
        self.layer_bytes = numpy.vectorize(degrees.__getitem__, otypes=[float])(facts.tensor)
        ends = numpy.array([finder.end_bytes(tensor, first, last) for _, tensor, first, last in facts.stage_keys])
        self.end_bytes = ends[facts.rows]
        optimizer = numpy.array([max(estimator.optimizer[k] for k in kinds) for kinds, *_ in facts.stage_keys])
        self.optimizer = optimizer[facts.rows]
        boundary = self.task.architecture.boundary_bytes(size, estimator.cost.element_bytes)
        forth, back, alone, latency = (facts.hops[..., i] for i in range(4))
        self.hops = Hops(*(each * boundary + latency for each in (forth, back, alone)))
        self.nic = facts.nic * boundary * microbatches

    def estimates(self, refused: list[PlanRefusedError | None]) -> list[Estimated | PlanRefusedError]:
        cuts = self._cuts(refused)
        best = numpy.full(len(self.facts.shapes), numpy.inf)
        layers = numpy.ones_like(self.layer)
        for i, (cut, good) in enumerate(cuts):
            if i and (cut == cuts[0][0]).all():
                continue
            seconds = numpy.where(good, self.seconds(cut), numpy.inf)
            better = seconds < best
            best = numpy.where(better, seconds, best)
            layers = numpy.where(better[:, None], cut, layers)
        whole = layers.astype(int).tolist()
        fits = numpy.all(layers <= self.caps, axis=1).tolist()
        found: list[Estimated | PlanRefusedError] = []
        for i, (shape, refusal) in enumerate(zip(self.facts.shapes, refused, strict=True)):
            if refusal is None and best[i] == numpy.inf:
                refusal = self._refusal(i)
            found.append(refusal or Estimated(shape, self.size, tuple(whole[i]), float(best[i]), fits[i]))
        return found

    def _cuts(self, refused: list[PlanRefusedError | None]) -> list[tuple[Floats, NDArray[numpy.bool_]]]:
        """Return the cuts of the layers to choose from, and of which shapes they are cuts."""
        asked, total = self.task.settings.layer_split, self.estimator.num_layers
        possible = numpy.array([each is None for each in refused])
        if asked == "adaptive":
            times = [(self.served * self.layer, self.served * self.end)]
            sums = self.facts.exchanges[..., 0] * self.layer_bytes / self.rounds[:, None]
            if (sums > 0).any():
                times.append((times[0][0] + sums, times[0][1]))
            cuts = [layer_split.cut_layers(layer, end, self.caps, total) for layer, end in times]
            return [(layers, good & possible) for layers, good in cuts]
        layers = numpy.ones_like(self.layer)
        for i in numpy.flatnonzero(possible):
            try:
                layers[i] = self._asked_split(asked, int(i))
            except PlanRefusedError as refusal:
                refused[i], possible[i] = refusal, False
        return [(layers, possible)]

    def _check_depth(self) -> None:
        """Raise DepthRefusedError, in words for the settings, when there are more stages than layers."""
        if self.facts.depth > self.estimator.num_layers:
            raise DepthRefusedError(too_deep(self.task, self.facts.depth))

    def _asked_split(self, asked: str | tuple[int, ...], i: int) -> tuple[int, ...]:
        """Return the layers of a shape that a setting names. Raises PlanRefusedError where it does not fit."""
        total, depth = self.estimator.num_layers, self.facts.depth
        self._check_depth()
        if not isinstance(asked, str):
            return layer_split.explicit(total, asked, depth)
        if asked == "uniform":
            return layer_split.uniform(total, depth)
        return layer_split.holmes(total, list(1 / self._layer_seconds()[i]), self.task.settings.alpha)

    def _layer_seconds(self) -> Floats:
        """Return seconds of a step for each layer, computed and summed."""
        return (self.microbatches / self.facts.widths * self.layer
                + 2 * self.facts.exchanges[..., 0] * self.layer_bytes)

    def _refusal(self, i: int) -> PlanRefusedError:
        facts, shape = self.facts, self.facts.shapes[i]
        remedies = capacity_remedies(self.task, facts.depth // shape.chunks, facts.depth, int(facts.tensor[i, 0]),
                                     self.size)
        in_chunks = f", {shape.chunks} chunks" if shape.chunks > 1 else ""
        try:
            self._check_depth()
            layer_split.check_capacities(self.estimator.num_layers, self.caps[i].astype(int).tolist(),
                                         f"{shape.words}{in_chunks}, micro-batch {self.size},", remedies)
        except PlanRefusedError as refusal:
            return refusal
        raise AssertionError

    def seconds(self, layers: Floats) -> Floats:
        """Return the seconds of a step."""
        facts, sync = self.facts, self.estimator.synchronization
        times = layers * self.layer + self.end
        seconds = self._compute_seconds(times)
        sizes = layers * self.layer_bytes + self.end_bytes
        parts = bucket_counts(sizes, sync.bucket_mib)
        table_bytes = self.estimator.finder.table_bytes(1)
        tensor = facts.tensor.max(axis=1)
        sums = facts.exchanges[..., 0] * sizes + facts.exchanges[..., 1]
        sums_shown = exposed_sums(times, self.hops, sums, parts, facts.shared, overlapped=sync.overlap_grad_reduce)
        table = facts.table[:, 0] * table_bytes / tensor + facts.table[:, 1]
        seconds += numpy.where(facts.table_crosses, numpy.maximum(table, sums_shown), table + sums_shown)
        share = self.estimator.cost.element_bytes / self.task.software.gradient_bytes
        gathers = facts.exchanges[..., 2] * sizes * share + facts.exchanges[..., 3]
        gathers[:, 0] += facts.table[:, 2] * table_bytes * share / tensor + facts.table[:, 3]
        seconds += exposed_gathers(times, self.hops, gathers, parts, facts.shared,
                                   overlapped=sync.overlap_param_gather)
        shared_by = facts.sharers if sync.sharded else 1.0
        seconds += (self.optimizer * sizes / self.task.software.gradient_bytes / shared_by).max(axis=1)
        return seconds + self.estimator.always

    def _compute_seconds(self, times: Floats) -> Floats:
        """Return how long the micro-batches take, without sums."""
        settings, chunks = self.task.settings, self.facts.shapes[0].chunks
        hops, served, rounds = self.hops, self.served, self.rounds
        extra = extra_warmup(settings)
        total = times.sum(axis=1)
        if chunks > 1:
            ranks = times.shape[1] // chunks
            times = times.reshape(-1, chunks, ranks).mean(axis=1)
            hops = Hops(*(each[:, :ranks - 1] for each in (hops.forward, hops.backward, hops.alone)))
            served = served[:, :ranks]
        found = passing(times, hops, rounds, served, extra, self.nic / (rounds * chunks))
        seconds = rounds * chunks * found.period + found.fill
        _, cores = core_pools(self.task)
        return numpy.maximum(seconds, self.microbatches * total / sum(cores.values())) if cores else seconds


class ShapeSearch:
    """Estimates of shapes of one strategy and rules, by micro-batch size."""

    def __init__(self, task: Task, shapes: Sequence[Shape]) -> None:
        self.estimator = Estimator(task, shapes[0].rules, shapes[0].strategy)
        alike: dict[tuple[int, int], list[Shape]] = {}
        for shape in shapes:
            alike.setdefault((len(shape.stages), shape.chunks), []).append(shape)
        self.facts = [self.estimator.finder.find(each) for each in alike.values()]

    def estimates(self, size: int) -> Iterator[Estimated | PlanRefusedError]:
        """Yield what is estimated of every shape, or why it cannot be planned with this size; by depth."""
        for facts in self.facts:
            yield from self.estimator.estimate(facts, size)

    def fitting(self, size: int) -> list[Estimated]:
        """Return the estimates of those that fit into memory and have a micro-batch for every pipeline."""
        return [each for each in self.estimates(size) if isinstance(each, Estimated) and each.fits]

    def for_task(self, task: Task) -> ShapeSearch:
        """Return the search for a task that differs in its recomputation alone: facts do not depend on that."""
        other = copy.copy(self)
        other.estimator = Estimator(task, self.estimator.finder.rules, self.facts[0].shapes[0].strategy)
        return other


def estimate_shapes(task: Task, shapes: Sequence[Shape]) -> list[Estimated | PlanRefusedError]:
    """Return what is estimated of shapes with every micro-batch size that is worth it, in the order of the shapes."""
    found: dict[tuple[int, int], Estimated | PlanRefusedError] = {}
    for (rules, strategy), own in _by(shapes, lambda shape: (shape.rules, shape.strategy)).items():
        estimator = Estimator(task, rules, strategy)
        for same in _by(shapes, lambda shape: (len(shape.stages), shape.chunks), own).values():
            facts = estimator.finder.find([shapes[i] for i in same])
            sizes = {i: micro_batch_sizes(task, shapes[i]) for i in same}
            for size in sorted(set(itertools.chain.from_iterable(sizes.values()))):
                found.update({(i, size): each for i, each in zip(same, estimator.estimate(facts, size), strict=True)
                              if size in sizes[i]})
    return [found[each] for each in sorted(found)]


def _by(shapes: Sequence[Shape], key: Callable[[Shape], Any], members: Iterable[int] | None = None
        ) -> dict[Any, list[int]]:
    """Return the indices of shapes by a key."""
    found: dict[Any, list[int]] = {}
    for i in range(len(shapes)) if members is None else members:
        found.setdefault(key(shapes[i]), []).append(i)
    return found


def propose_shape(task: Task, estimated: Estimated) -> Proposal:
    """Return the layout of a shape on the nodes of `task`."""
    shape, size = estimated.shape, estimated.micro_batch_size
    microbatches = count_microbatches(task.settings.global_batch_size, size)

    def build() -> tuple[Pipeline, ...]:
        return build_pipelines(shape.stages, estimated.layers, microbatches)

    return Proposal(estimated.facts, task, shape.rules, estimated.seconds, estimated.fits, build, shape.chunks)


def estimate(task: Task, shape: Shape, micro_batch_size: int) -> Estimated:
    """Return what is estimated of one shape. Raises PlanRefusedError when batch, layers or memory do not fit it."""
    estimator = Estimator(task, shape.rules, shape.strategy)
    found = estimator.estimate(estimator.finder.find([shape]), micro_batch_size)[0]
    if isinstance(found, PlanRefusedError):
        raise found
    return found


def micro_batch_sizes(task: Task, shape: Shape) -> tuple[int, ...]:
    """Return the asked size, or the powers of two that leave each pipeline at least four micro-batches.

    Where none does, the smallest size alone is tried.
    """
    if task.settings.micro_batch_size is not None:
        return (int(task.settings.micro_batch_size),)
    batch = task.settings.global_batch_size
    pipelines = pipelines_of(shape)
    sizes = [2**i for i in range(batch.bit_length()) if batch % 2**i == 0]
    if shape.equal_pipelines:
        sizes = [size for size in sizes if batch // size % pipelines == 0] or sizes[:1]
    return tuple(size for size in sizes if batch // size >= _FEWEST_MICROBATCHES * pipelines) or (sizes[0],)
