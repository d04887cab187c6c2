"""How long a step of a placed fleet takes: the closed form with the NICs and nodes that its pipelines then share."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from holmes_hpc.planner.simulation.predict import step_collectives
from holmes_hpc.planner.strategies.closed_form import (
    Floats,
    Hops,
    bucket_counts,
    exposed_gathers,
    exposed_sums,
    passing,
)
from holmes_hpc.planner.strategies.fleets.knapsack import Fleet
from holmes_hpc.planner.strategies.fleets.space import Space
from holmes_hpc.planner.strategies.fleets.templates import Template
from holmes_hpc.values import Group


@dataclass(frozen=True)
class Placed:
    """A fleet with the stages of all pipelines together in nodes, or each pipeline together; see `placement.place`."""

    fleet: Fleet
    size: int
    stages_together: bool


@dataclass(frozen=True)
class _Row:
    """A template of a placed fleet: how often it is there and how many micro-batches it takes, at most.

    `crossing` says of each layer whether it lies in several fabrics, `holders` how many pipelines each fabric has.
    """

    at: int
    placed: Placed
    template: Template
    copies: int
    microbatches: int
    crossing: tuple[bool, ...]
    holders: Mapping[str, int]


def placed_seconds(space: Space, placed: Sequence[Placed]) -> list[float]:
    """Return about how long a step of each placed fleet takes."""
    passes, shown = [0.0] * len(placed), [0.0] * len(placed)
    rows = sorted((row for at, each in enumerate(placed) for row in _rows(space, at, each)),
                  key=lambda row: row.template.depth)
    for _, group in itertools.groupby(rows, key=lambda row: row.template.depth):
        same = list(group)
        for row, seconds, exposed in zip(same, *_Rows(space, same).seconds(), strict=True):
            passes[row.at] = max(passes[row.at], seconds)
            shown[row.at] = max(shown[row.at], exposed)
    everyone = tuple(range(space.task.cluster.world_size))
    always = step_collectives(space.task, Group("world", everyone, space.task.cluster.shared_network(everyone)))
    return [a + b + always for a, b in zip(passes, shown, strict=True)]


def _rows(space: Space, at: int, placed: Placed) -> Iterator[_Row]:
    copies = Counter(template for template, _ in placed.fleet.pipelines)
    most: dict[Template, int] = {}
    for template, count in placed.fleet.pipelines:
        most[template] = max(count, most.get(template, 0))
    crossing = tuple(len(fabrics) > 1 for fabrics in space.fabrics_of_layers(copies))
    holders = Counter(itertools.chain.from_iterable(
        space.spans(template) for template, count in copies.items() for _ in range(count)))
    for template, count in most.items():
        yield _Row(at, placed, template, copies[template], count, crossing, holders)


class _Rows:
    """Rows of one depth, as arrays."""

    def __init__(self, space: Space, rows: Sequence[_Row]) -> None:
        self.space, self.rows = space, rows
        stages_rows = numpy.array([space.stage_rows(row.template, row.placed.size) for row in rows])
        self.layers = numpy.array([row.template.layers for row in rows], dtype=float)
        self.times = self.layers * stages_rows[..., 0] + stages_rows[..., 1]
        self.stages = [[(k, tensor, count) for k, tensor, count in row.template.segments for _ in range(count)]
                       for row in rows]
        hops = [self._hops(row, stages) for row, stages in zip(rows, self.stages, strict=True)]
        forth, back, alone = (numpy.array([[hop[i] for hop in each] for each in hops]).reshape(len(rows), -1)
                       for i in range(3))
        self.hops = Hops(forth, back, alone)
        self.nic = numpy.array([max([0.0, *(hop[3] for hop in each)]) for each in hops])

    def seconds(self) -> tuple[list[float], list[float]]:
        """Return how long the micro-batches of each row take, and what shows of sums and gathers."""
        space, count = self.space, numpy.array([row.microbatches for row in self.rows], dtype=float)
        found = passing(self.times, self.hops, count, 1.0, space.extra_warmup, self.nic)
        sync = space.task.synchronization("auto")
        sizes = self.layers * space.stage_costs.layer_gradient_bytes()
        parts = bucket_counts(sizes / numpy.array([[t for _, t, _ in stages] for stages in self.stages]),
                              sync.bucket_mib)
        inside, across = self._sums(sizes)
        shared = self._shared()
        sums = exposed_sums(self.times, self.hops, inside * space.sum_share + across, parts, shared,
                            overlapped=sync.overlap_grad_reduce)
        table = numpy.array([self._table(row) for row in self.rows])
        gathers = exposed_gathers(self.times, self.hops, inside * space.gather_share, parts, shared,
                                  overlapped=sync.overlap_param_gather)
        optimizer = (sizes / space.task.software.gradient_bytes * self._optimizer()).max(axis=1)
        alone = numpy.array([len(row.placed.fleet.pipelines) == 1 for row in self.rows])
        shown = numpy.where(alone, optimizer, sums + table + gathers + optimizer)
        return (count * found.period + found.fill).tolist(), shown.tolist()

    def _hops(self, row: _Row, stages: Sequence[tuple[int, int, int]]) -> list[tuple[float, float, float, float]]:
        return [self._hop(row, s, before, after) for s, (before, after) in enumerate(itertools.pairwise(stages))]

    def _hop(self, row: _Row, s: int, before: tuple[int, int, int], after: tuple[int, int, int]
             ) -> tuple[float, float, float, float]:
        """Return a message's seconds behind the others of its node, forth and back; alone; what all need of a NIC."""
        kinds, stage_costs = self.space.kinds, self.space.stage_costs
        (k, t, _), (other, u, _) = before, after
        if before == after and self._stays(row, s, before):
            return 0.0, 0.0, 0.0, 0.0
        hop = stage_costs.hop(kinds[k], kinds[other], row.placed.size)
        busy = hop.node_seconds * max(self._in_node(row, stage) for stage in (before, after))
        return (max(hop.seconds, u * busy), max(hop.seconds, t * busy), max(hop.seconds, max(t, u) * hop.node_seconds),
                max(t, u) * busy)

    def _stays(self, row: _Row, s: int, stage: tuple[int, int, int]) -> bool:
        """Return whether the hop after a stage, to one of its own segment, stays inside a node."""
        k, tensor, count = stage
        gpus = self.space.kinds[k].gpus
        if row.placed.stages_together:
            return row.copies * tensor < gpus
        first = next(i for i, each in enumerate(self.stages_of(row)) if each == stage)
        return count * tensor <= gpus or (s - first + 1) * tensor % gpus != 0

    @staticmethod
    def stages_of(row: _Row) -> list[tuple[int, int, int]]:
        """Return the segment of every stage."""
        return [segment for segment in row.template.segments for _ in range(segment[2])]

    def _in_node(self, row: _Row, stage: tuple[int, int, int]) -> float:
        """Return how many pipelines have a stage in one node."""
        k, tensor, count = stage
        most = self.space.kinds[k].gpus / tensor
        return min(row.copies, most) if row.placed.stages_together else max(1.0, most / count)

    def _sums(self, sizes: Floats) -> tuple[Floats, Floats]:
        """Return seconds of each stage's sum inside its fabric, as if whole, and of what crosses fabrics."""
        space = self.space
        inside, across = numpy.zeros_like(sizes), numpy.zeros_like(sizes)
        table = space.stage_costs.table_gradient_bytes()
        for i, row in enumerate(self.rows):
            first = 0
            for s, stage in enumerate(self.stages[i]):
                held = row.template.layers[s]
                end = table * (not space.is_tied) * ((s == 0) + (s == len(self.stages[i]) - 1))
                inside[i, s] = (sizes[i, s] + end) * space.ring_seconds_a_byte(stage[0], *self._ring(row, stage))
                share = sum(row.crossing[first:first + held]) / held
                across[i, s] = (sizes[i, s] + end) * share * space.across_alone_seconds_a_byte if share else 0.0
                first += held
        return inside, across

    def _ring(self, row: _Row, stage: tuple[int, int, int]) -> tuple[int, int]:
        """Return how many nodes and ranks sum what a stage holds; of unlike pipelines all in its fabric."""
        k, tensor, count = stage
        kind = self.space.kinds[k]
        holders = row.holders[kind.fabric]
        in_node = kind.gpus // tensor if row.placed.stages_together else max(1, kind.gpus // (tensor * count))
        nodes = -(-row.copies // in_node) if holders == row.copies else holders
        return min(len(kind.nodes), nodes), holders

    def _shared(self) -> NDArray[numpy.bool_]:
        """Return which stages share NICs: those of a segment whose pipelines fill nodes, and all that cross."""
        depth = self.times.shape[1]
        shared = numpy.zeros((len(self.rows), depth, depth), dtype=bool)
        for i, (row, stages) in enumerate(zip(self.rows, self.stages, strict=True)):
            if any(row.crossing):
                shared[i] = True
            elif not row.placed.stages_together:
                shared[i] = [[a == b for b in stages] for a in stages]
            shared[i] |= numpy.eye(depth, dtype=bool)
        return shared

    def _table(self, row: _Row) -> float:
        """Return seconds of a tied table's sum, last of all."""
        if not self.space.is_tied or row.template.depth == 1:
            return 0.0
        across = self.space.tied_across(row.template, row.placed.size)
        return across or self.space.table_inside_seconds(row.template) * self.space.sum_share

    def _optimizer(self) -> Floats:
        space = self.space
        return numpy.array([[space.optimizer_seconds[k] / tensor / (row.copies if space.shards else 1)
                             for k, tensor, _ in stages] for row, stages in zip(self.rows, self.stages, strict=True)])
