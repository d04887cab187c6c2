"""What unlike pipelines may be chosen from: kinds of nodes, degrees and prices, and closed forms of what they cost."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.layout.node_kinds import Kind, alike_kinds, node_kinds, renamed
from holmes_hpc.planner.simulation.prices import compute_cost
from holmes_hpc.planner.strategies.closed_form import BACKWARD_SHARE, extra_warmup
from holmes_hpc.planner.strategies.fleets.memory import FleetMemory, sharers_hoped_for
from holmes_hpc.planner.strategies.fleets.templates import (
    Batch,
    Segment,
    Template,
    TemplateTable,
    enumerate_segments,
    price_templates,
    stage_rows,
)
from holmes_hpc.planner.strategies.shapes import indivisible, tensor_degrees
from holmes_hpc.planner.strategies.stage_table import StageCostModel, StageCosts
from holmes_hpc.planner.task import Task

_RANKS_A_NODE = 2
"""Of those that sum a layer's gradients, as long as it is not known how many pipelines there will be."""


class Space:
    """What may be chosen from: kinds of nodes, tensor-parallel degrees, and prices."""

    def __init__(self, task: Task, stage_costs: StageCosts | None = None) -> None:
        self.task = task
        self.kinds = node_kinds(task)
        self.stage_costs = stage_costs or StageCostModel(task)
        self.degrees = [tensor_degrees_of(task, kind) for kind in self.kinds]
        self.num_layers = task.architecture.num_layers
        self.extra_warmup = extra_warmup(task.settings)
        self.shards = task.settings.sharded
        self.sum_share = 0.5 if self.shards else 1.0
        """Of an all-reduce: a reduce-scatter is half of it."""
        self._known: dict[int, dict[tuple[Segment, ...], Template | None]] = {}
        self.like = alike_kinds(task)
        self._renamed = functools.cache(self._rename)
        self.segments = enumerate_segments(self.kinds, self.degrees, self.num_layers, task.settings.pipeline, self.like)

    def templates(self, size: int, segments: Sequence[tuple[Segment, ...]] | None = None) -> list[Template]:
        """Return the templates that fit into memory at a micro-batch size; each is priced once, like ones together."""
        wanted = self.segments if segments is None else segments
        known = self._known.setdefault(size, {})
        new = dict.fromkeys(self._renamed(each) for each in wanted if each not in known)
        if new:
            microbatches = self.task.settings.global_batch_size // size
            batch = Batch(size, microbatches, self.extra_warmup, sharers_hoped_for(self.kinds, microbatches))
            unknown = [each for each in new if each not in known]
            known.update(dict.fromkeys(unknown))
            known.update({template.segments: template for template in
                          price_templates(
                              self.stage_costs, self.kinds, unknown, self.num_layers, batch)})
            for each in wanted:
                if each not in known:
                    model = known[self._renamed(each)]
                    known[each] = model and dataclasses.replace(model, segments=each)
        return [template for each in wanted if (template := known[each]) is not None]

    def _rename(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """Return the segments that stand for all that differ from them in like kinds alone."""
        names = self._names(tuple(k for k, _, _ in segments))
        return tuple((names[k], tensor, count) for k, tensor, count in segments)

    @cached_property
    def _names(self) -> Callable[[tuple[int, ...]], dict[int, int]]:
        return functools.cache(lambda order: renamed(order, self.like))

    @cached_property
    def memory(self) -> FleetMemory:
        """Whether fleets fit into memory."""
        return FleetMemory(self.stage_costs, self.kinds, self.num_layers, two_level=self.task.settings.two_level,
                           extra_warmup=self.extra_warmup)

    @property
    def short_of_memory(self) -> bool:
        """Whether some template did not fit."""
        return any(template is None for known in self._known.values() for template in known.values())

    @cached_property
    def _layer_exchange_seconds(self) -> list[tuple[float, float]]:
        """Return, by kind, the seconds that its nodes sum one layer's gradients and gather its parameters."""
        layer = self.stage_costs.layer_gradient_bytes()
        whole = [layer * self.ring_seconds_a_byte(k, len(kind.nodes), _RANKS_A_NODE * len(kind.nodes))
                 for k, kind in enumerate(self.kinds)]
        return [(self.sum_share * seconds, self.gather_share * seconds) for seconds in whole]

    @cached_property
    def _table_by_kind(self) -> list[float]:
        size = self.stage_costs.table_gradient_bytes()
        return [size * self.stage_costs.sync_seconds_a_byte((kind,), (len(kind.nodes),)) for kind in self.kinds]

    @cached_property
    def is_tied(self) -> bool:
        """Whether the first and the last stage hold one table."""
        return self.stage_costs.tied_gradient_bytes() > 0

    @cached_property
    def gather_share(self) -> float:
        """Of an all-reduce of gradients: gathering parameters is half of it, of narrower elements."""
        return 0.5 * compute_cost(self.task).element_bytes / self.task.software.gradient_bytes if self.shards else 0.0

    def sync_seconds(self, template: Template, *, across: bool) -> float:
        """Return about how long the gradients of a template's stages are summed, if all pipelines are alike.

        With `across`, pipelines hold the same layers in different fabrics, so that the whole model's gradients cross.
        What later stages sum while the first ones are in their last backward does not show, nor do parameters that
        are gathered under the first forwards of stages before.
        """
        sums = gathers = hidden = 0.0
        first, one = 0, template.work / len(template.layers)
        for kind, _, count in template.segments:
            most = max(template.layers[first:first + count])
            summed, gathered = self._layer_exchange_seconds[kind]
            sums = max(sums, most * summed - BACKWARD_SHARE * hidden)
            gathers = max(gathers, most * gathered - (1 - BACKWARD_SHARE) * hidden)
            hidden += one * count
            first += count
        return sums + gathers + (self._across_seconds if across else self.table_inside_seconds(template))

    def table_inside_seconds(self, template: Template) -> float:
        """Return how long the token table's gradient is summed inside the fabrics of a template's ends, last of all.

        Between fabrics it is counted into the template's fill.
        """
        seconds, segments = self._table_by_kind, template.segments
        first = seconds[segments[0][0]]
        return max(first, seconds[segments[-1][0]]) if self.is_tied else first

    def tied_across(self, template: Template, size: int) -> float:
        """Return how long the tied table is summed between a first and a last stage in unlike fabrics."""
        return self._table(size).tied(template.segments)

    def stage_rows(self, template: Template, size: int) -> list[tuple[float, ...]]:
        """Return the rows of `StageTable.row` of a template's stages."""
        return stage_rows(self._table(size), template.segments)

    @cached_property
    def _table(self) -> Callable[[int], TemplateTable]:
        return functools.cache(lambda size: TemplateTable(self.stage_costs, self.kinds, size))

    @cached_property
    def optimizer_seconds(self) -> list[float]:
        """Seconds of the optimizer's step for each parameter, by kind."""
        return [compute_cost(self.task).optimizer_seconds(kind.node, 1.0) for kind in self.kinds]

    def inside_seconds_a_byte(self, kind: int, nodes: int) -> float:
        """Return seconds for each byte that some nodes of a kind sum."""
        return self.stage_costs.sync_seconds_a_byte((self.kinds[kind],), (nodes,))

    def ring_seconds_a_byte(self, kind: int, nodes: int, ranks: int) -> float:
        """Return the same where a ring goes through so many ranks of each byte on these nodes, each once."""
        if nodes == 1 or ranks < 2:
            return self.inside_seconds_a_byte(kind, 1)
        return self.inside_seconds_a_byte(kind, nodes) * (1 - 1 / max(ranks, nodes)) / (1 - 1 / nodes)

    @cached_property
    def across_alone_seconds_a_byte(self) -> float:
        """Seconds for each byte that fabrics sum with one another, without what they sum inside."""
        inside = max(self.inside_seconds_a_byte(k, len(kind.nodes)) for k, kind in enumerate(self.kinds))
        return self._across_seconds_a_byte - inside

    def fabrics_of_layers(self, templates: Iterable[Template]) -> list[set[str]]:
        """Return in which fabrics templates hold each layer."""
        held: list[set[str]] = [set() for _ in range(self.num_layers)]
        for template in templates:
            stages = [self.kinds[kind].fabric for kind, _, count in template.segments for _ in range(count)]
            first = 0
            for fabric, layers in zip(stages, template.layers, strict=True):
                for layer in held[first:first + layers]:
                    layer.add(fabric)
                first += layers
        return held

    @cached_property
    def _across_seconds(self) -> float:
        whole = self.num_layers * self.stage_costs.layer_gradient_bytes() + self.stage_costs.table_gradient_bytes()
        return whole * self._across_seconds_a_byte

    @cached_property
    def _across_seconds_a_byte(self) -> float:
        return self.stage_costs.sync_seconds_a_byte(self.kinds, tuple(len(kind.nodes) for kind in self.kinds))

    def spans(self, template: Template) -> frozenset[str]:
        """Return the fabrics that a template lies in."""
        return self._fabrics_of(tuple([kind for kind, _, _ in template.segments]))

    @cached_property
    def _fabrics_of(self) -> Callable[[tuple[int, ...]], frozenset[str]]:
        return functools.cache(lambda kinds: frozenset(self.kinds[kind].fabric for kind in kinds))

    def work_bound(self, size: int, microbatches: int) -> float:
        """Return a step time that no fleet beats: all GPUs busy with layers and the head all the time."""
        rate = sum(kind.total_gpus
                   / min(tensor * self.stage_costs.layer_seconds(kind, tensor, size) for tensor in degrees)
                   for kind, degrees in zip(self.kinds, self.degrees, strict=True))
        head = min(self.stage_costs.end_seconds(kind, tensor, size, first=False, last=True)
                   / self.stage_costs.layer_seconds(kind, tensor, size)
                   for kind, degrees in zip(self.kinds, self.degrees, strict=True) for tensor in degrees)
        return microbatches * (self.num_layers + head) / rate


def tensor_degrees_of(task: Task, kind: Kind) -> tuple[int, ...]:
    """Return the tensor-parallel degrees that nodes of a kind and the model allow, the asked one alone if any."""
    asked = task.settings.tensor
    return tuple(tensor for tensor in range(1, kind.gpus + 1)
                 if kind.gpus % tensor == 0 and asked in (None, tensor) and not indivisible(task, tensor))


def space_of(task: Task) -> Space:
    """Return what a task may choose from: the same for every strategy that asks."""
    space: Space = task.variants.spaces.of("unlike pipelines", lambda: Space(task))
    return space


def space_with_degrees(task: Task) -> Space:
    """Return the space of a task. Raises PlanRefusedError where the asked tensor-parallel degree does not fit."""
    space = space_of(task)
    if not all(space.degrees):
        tensor_degrees(task)  # says which degrees would
        raise PlanRefusedError(f"parallel.tensor={task.settings.tensor} does not divide the GPUs of every node and the "
                               "model's heads. Set it to a smaller number, or to null.")
    return space
