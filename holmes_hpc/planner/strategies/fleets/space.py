"""What unlike pipelines may be chosen from: kinds of nodes, degrees and prices, and closed forms of what they cost."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.layout.node_kinds import Kind, node_kinds
from holmes_hpc.planner.strategies.fleets.knapsack import Fleet
from holmes_hpc.planner.strategies.fleets.memory import FleetMemory, sharers_hoped_for
from holmes_hpc.planner.strategies.fleets.stage_table import CostPricing, StagePricing
from holmes_hpc.planner.strategies.fleets.templates import (
    BACKWARD_SHARE,
    Segment,
    Template,
    enumerate_segments,
    price_templates,
)
from holmes_hpc.planner.strategies.shapes import indivisible, tensor_degrees
from holmes_hpc.planner.task import Task


class Space:
    """What may be chosen from: kinds of nodes, tensor-parallel degrees, and prices."""

    def __init__(self, task: Task, pricing: StagePricing | None = None) -> None:
        self.task = task
        self.kinds = node_kinds(task)
        self.pricing = pricing or CostPricing(task)
        self.degrees = [tensor_degrees_of(task, kind) for kind in self.kinds]
        self.num_layers = task.architecture.num_layers
        self._known: dict[int, dict[tuple[Segment, ...], Template | None]] = {}
        self.segments = enumerate_segments(self.kinds, self.degrees, self.num_layers, task.settings.pipeline)

    def templates(self, size: int, segments: Sequence[tuple[Segment, ...]] | None = None) -> list[Template]:
        """Return the templates that fit into memory at a micro-batch size; each is priced once."""
        wanted = self.segments if segments is None else segments
        known = self._known.setdefault(size, {})
        new = [each for each in wanted if each not in known]
        if new:
            shared_by = sharers_hoped_for(self.kinds, self.task.settings.global_batch_size // size)
            known.update(dict.fromkeys(new))
            known.update({template.segments: template for template in
                          price_templates(self.pricing, self.kinds, new, self.num_layers, size, shared_by)})
        return [template for each in wanted if (template := known[each]) is not None]

    @cached_property
    def memory(self) -> FleetMemory:
        """Whether fleets fit into memory."""
        return FleetMemory(self.pricing, self.kinds, self.num_layers, two_level=self.task.settings.two_level)

    @property
    def short_of_memory(self) -> bool:
        """Whether some template did not fit."""
        return any(template is None for known in self._known.values() for template in known.values())

    @cached_property
    def _layer_sync_seconds(self) -> list[float]:
        """Return, by kind, the seconds that its nodes sum one layer's gradients."""
        layer = self.pricing.layer_gradient_bytes()
        return [layer * self.pricing.sync_seconds_a_byte((kind,), (len(kind.nodes),)) for kind in self.kinds]

    @cached_property
    def _table_by_kind(self) -> list[float]:
        size = self.pricing.table_gradient_bytes()
        return [size * self.pricing.sync_seconds_a_byte((kind,), (len(kind.nodes),)) for kind in self.kinds]

    @cached_property
    def is_tied(self) -> bool:
        """Whether the first and the last stage hold one table."""
        return self.pricing.tied_gradient_bytes() > 0

    def sync_seconds(self, template: Template, *, across: bool) -> float:
        """Return about how long the gradients of a template's stages are summed, if all pipelines are alike.

        With `across`, pipelines hold the same layers in different fabrics, so that the whole model's gradients cross.
        """
        seconds, first, hidden = 0.0, 0, 0.0
        for kind, _, count in template.segments:
            most = max(template.layers[first:first + count])
            seconds = max(seconds, most * self._layer_sync_seconds[kind] - hidden)
            hidden += BACKWARD_SHARE * template.work * count / template.depth
            first += count
        return seconds + (self._across_seconds if across else self._table_seconds(template))

    def _table_seconds(self, template: Template) -> float:
        """Return how long the token table's gradient is summed inside the fabrics of a template's ends, last of all.

        Between fabrics it is counted into the template's hops.
        """
        kinds = {template.segments[0][0], template.segments[-1][0]} if self.is_tied else {template.segments[0][0]}
        return max(self._table_by_kind[kind] for kind in kinds)

    def placed_seconds(self, fleet: Fleet, size: int, *, together: bool) -> float:
        """Return about how long a step takes with the stages placed as `placement.place` does."""
        copies = Counter(template for template, _ in fleet.pipelines)
        longest = sync = 0.0
        counts: dict[Template, int] = {}
        for template, count in fleet.pipelines:
            counts[template] = max(count, counts.get(template, 0))
        for template, count in counts.items():
            crowds = [(kind, tensor, stages, self._stages_in_node(kind, tensor, stages, copies[template], together))
                      for kind, tensor, stages in template.segments]
            period, first = template.period, 0
            for (k, t, n, in_a), (other, u, m, in_b) in itertools.pairwise(crowds):
                hop = self.pricing.hop(self.kinds[k], self.kinds[other], size)
                period = max(period, max(in_a / n, in_b / m) * max(t, u) * hop.node_seconds)
            longest = max(longest, template.fill + count * period)
            hidden = 0.0
            for k, _, n, in_node in crowds:
                most = max(template.layers[first:first + n])
                bytes_in_node = min(1.0 if together else n, in_node) * most * self.pricing.layer_gradient_bytes()
                node = self.kinds[k]
                seconds = self.pricing.sync_seconds_a_byte((node,), (len(node.nodes),))
                sync = max(sync, bytes_in_node * seconds - hidden)
                hidden += BACKWARD_SHARE * template.work * n / template.depth
                first += n
        if len(fleet.pipelines) == 1:
            return longest
        return longest + sync + self._crossing_seconds(copies) + max(map(self._table_seconds, copies))

    def _crossing_seconds(self, templates: Iterable[Template]) -> float:
        """Return how long the gradients of the layers are summed that pipelines hold in unlike fabrics."""
        held: list[set[str]] = [set() for _ in range(self.num_layers)]
        for template in templates:
            stages = [self.kinds[kind].fabric for kind, _, count in template.segments for _ in range(count)]
            first = 0
            for fabric, layers in zip(stages, template.layers, strict=True):
                for layer in held[first:first + layers]:
                    layer.add(fabric)
                first += layers
        crossing = sum(len(fabrics) > 1 for fabrics in held)
        table = self.pricing.table_gradient_bytes() if len(held[0]) > 1 else 0.0
        return (crossing * self.pricing.layer_gradient_bytes() + table) * self._across_seconds_a_byte

    def _stages_in_node(self, k: int, tensor: int, stages: int, copies: int, together: bool) -> float:
        """Return how many stages of a segment are in a node, scaled so that a border has its part of them."""
        most = self.kinds[k].gpus / tensor
        return min(copies, most) * stages if together else max(float(stages), most)

    @cached_property
    def _across_seconds(self) -> float:
        whole = self.num_layers * self.pricing.layer_gradient_bytes() + self.pricing.table_gradient_bytes()
        return whole * self._across_seconds_a_byte

    @cached_property
    def _across_seconds_a_byte(self) -> float:
        return self.pricing.sync_seconds_a_byte(self.kinds, tuple(len(kind.nodes) for kind in self.kinds))

    def spans(self, template: Template) -> frozenset[str]:
        """Return the fabrics that a template lies in."""
        return frozenset(self.kinds[kind].fabric for kind, _, _ in template.segments)

    def work_bound(self, size: int, microbatches: int) -> float:
        """Return a step time that no fleet beats: all GPUs busy with layers and the head all the time."""
        rate = sum(kind.total_gpus / min(tensor * self.pricing.layer_seconds(kind, tensor, size) for tensor in degrees)
                   for kind, degrees in zip(self.kinds, self.degrees, strict=True))
        head = min(self.pricing.end_seconds(kind, tensor, size, first=False, last=True)
                   / self.pricing.layer_seconds(kind, tensor, size)
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
