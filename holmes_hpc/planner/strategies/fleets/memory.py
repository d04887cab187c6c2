"""Memory of fleets: who shares the optimizer's state is known only once all pipelines are."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy
from numpy.typing import NDArray

from holmes_hpc.planner.layout.node_kinds import Kind
from holmes_hpc.planner.layout.sharing import sharers
from holmes_hpc.planner.strategies.fleets.knapsack import Fleet, share_microbatches
from holmes_hpc.planner.strategies.fleets.templates import (
    Batch,
    Segment,
    Template,
    TemplateTable,
    price_templates,
    stage_rows,
)
from holmes_hpc.planner.strategies.memory import room
from holmes_hpc.planner.strategies.stage_table import StageCosts


def sharers_hoped_for(kinds: Sequence[Kind], microbatches: int) -> Callable[[tuple[Segment, ...]], Sequence[int]]:
    """Return for a template by how many ranks each stage's optimizer state is shared if all goes well.

    As many pipelines like it as the GPUs allow; where there is room for one alone, some other one beside it.
    """
    gpus = [kind.total_gpus for kind in kinds]
    total = sum(gpus)

    def count(segments: tuple[Segment, ...]) -> Sequence[int]:
        taken: dict[int, int] = {}
        depth = 0
        for kind, tensor, stages in segments:
            taken[kind] = taken.get(kind, 0) + tensor * stages
            depth += stages
        copies = min(gpus[kind] // each for kind, each in taken.items())
        if copies == 1 and sum(taken.values()) < total:
            copies = 2
        return [min(copies, microbatches)] * depth

    return count


class FleetMemory:
    """Whether fleets fit, with the optimizer's state shared as `groups.find_groups` will let them share it."""

    def __init__(self, stage_costs: StageCosts, kinds: Sequence[Kind], num_layers: int, *, two_level: bool,
                 extra_warmup: int | None) -> None:
        self.extra_warmup = extra_warmup
        self.stage_costs, self.kinds, self.num_layers, self.two_level = stage_costs, kinds, num_layers, two_level
        self.table = functools.cache(lambda size: TemplateTable(stage_costs, kinds, size))

    def fitted(self, fleet: Fleet, size: int, syncs: Callable[[Template], float]) -> tuple[Fleet, bool]:
        """Return the fleet and whether it fits, its layers cut anew where it only fits so."""
        owners = self._owners(fleet)
        if all(self._fits(template, owners, size) for template in dict(fleet.pipelines)):
            return fleet, True
        shared_by = {template.segments: [int(min(each)) for each in self._shared_by(template, owners)]
                     for template in dict(fleet.pipelines)}
        cut = {template.segments: template for template in price_templates(
            self.stage_costs, self.kinds, list(shared_by), self.num_layers,
            Batch(size, sum(count for _, count in fleet.pipelines), self.extra_warmup, shared_by.__getitem__))}
        if len(cut) < len(shared_by):
            return fleet, False
        templates = [cut[template.segments] for template, _ in fleet.pipelines]
        again = share_microbatches(templates, [syncs(template) for template in templates],
                                   sum(count for _, count in fleet.pipelines))
        if again is None:
            return fleet, False
        owners = self._owners(again)
        return again, all(self._fits(template, owners, size) for template in cut.values())

    def _owners(self, fleet: Fleet) -> dict[str, NDArray[numpy.int64]]:
        """Return by fabric how many pipelines hold each layer there."""
        owners = {kind.fabric: numpy.zeros(self.num_layers, dtype=numpy.int64) for kind in self.kinds}
        for template, copies in Counter(template for template, _ in fleet.pipelines).items():
            first = 0
            for fabric, layers in zip(self._fabrics(template), template.layers, strict=True):
                owners[fabric][first:first + layers] += copies
                first += layers
        return owners

    def _fabrics(self, template: Template) -> list[str]:
        return [self.kinds[kind].fabric for kind, _, stages in template.segments for _ in range(stages)]

    def _shared_by(self, template: Template, owners: dict[str, NDArray[numpy.int64]]) -> list[list[int]]:
        """Return by how many ranks the optimizer's state of each layer is shared, by stage."""
        found, first = [], 0
        for fabric, layers in zip(self._fabrics(template), template.layers, strict=True):
            each = []
            for layer in range(first, first + layers):
                here = {name: int(counts[layer]) for name, counts in owners.items()}
                each.append(sharers(here, fabric, two_level=self.two_level))
            found.append(each)
            first += layers
        return found

    def _fits(self, template: Template, owners: dict[str, NDArray[numpy.int64]], size: int) -> bool:
        """Return whether every stage fits; its state is shared as if by the harmonic mean over its layers."""
        shared_by = self._shared_by(template, owners)
        mean = numpy.array([len(each) / sum(1 / count for count in each) for each in shared_by])
        rows = numpy.array(stage_rows(self.table(size), template.segments))
        in_flight = numpy.arange(template.depth, 0, -1, dtype=float)
        return bool((room(rows, mean, in_flight) >= numpy.array(template.layers)).all())
