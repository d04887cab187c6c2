"""Placement: from a fleet, which counts GPUs of kinds, to pipelines of ranks."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.planner.layout.node_kinds import Kind
from holmes_hpc.planner.strategies.fleets.knapsack import Fleet
from holmes_hpc.planner.strategies.shapes import Part
from holmes_hpc.values import Pipeline, Stage

Demand = tuple[int, int, int]
"""(tensor-parallel degree, pipeline, stage)."""


def used_slots(fleet: Fleet, kinds: Sequence[Kind]) -> tuple[str, ...]:
    """Return the slots of the nodes that a fleet takes: of every kind the first ones."""
    slots = []
    for kind, gpus in zip(kinds, fleet.gpus(len(kinds)), strict=True):
        slots += [node.slot for node in kind.nodes[:-(-gpus // kind.gpus)]]
    return tuple(slots)


def place(fleet: Fleet, kinds: Sequence[Kind], cluster: ClusterDescription, *, stages_together: bool,
          ) -> tuple[Pipeline, ...] | None:
    """Return the pipelines of ranks of a cluster of just the used nodes; None where its GPUs are not all taken.

    With `stages_together` the same stage of all pipelines fills nodes, so that gradients stay inside a node where
    they can; without, a pipeline's neighbouring stages do, so that activations stay inside. Wide tensor groups are
    placed first, which packs degrees that divide each other perfectly.
    """
    demands: list[list[Demand]] = [[] for _ in kinds]
    for p, (template, _) in enumerate(fleet.pipelines):
        stage = 0
        for k, tensor, count in template.segments:
            for _ in range(count):
                demands[k].append((tensor, p, stage))
                stage += 1
    parts: dict[tuple[int, int], Part] = {}
    used = {node.slot for node in cluster.nodes}
    for kind, wanted in zip(kinds, demands, strict=True):
        wanted.sort(key=lambda each: (-each[0], each[2], each[1]) if stages_together else (-each[0], each[1], each[2]))
        free = [list(cluster.ranks_of(node)) for node in kind.nodes if node.slot in used]
        groups = _pack(free, [tensor for tensor, _, _ in wanted])
        if groups is None:
            return None
        parts.update({(p, stage): group for (_, p, stage), group in zip(wanted, groups, strict=True)})
    return tuple(_pipeline(p, layers, count, parts)
                 for p, (layers, count) in enumerate((t.layers, count) for t, count in fleet.pipelines))


class StagePlacer:
    """Places stages that all pipelines share, those of a kind of nodes by themselves and each set of them once."""

    def __init__(self, kinds: Sequence[Kind], cluster: ClusterDescription) -> None:
        self.kinds, self.cluster = kinds, cluster
        self._of_kind = functools.cache(self._place)

    def place(self, stages: Sequence[tuple[int, int, int]]) -> tuple[tuple[Part, ...], ...] | None:
        """Return the tensor-parallel groups of stages of (kind, degree, width); None where they do not fill the nodes.

        Wide groups come first.
        """
        wanted: dict[int, list[tuple[int, int]]] = {}
        for k, tensor, width in stages:
            wanted.setdefault(k, []).append((tensor, width))
        placed = {k: self._of_kind(k, tuple(each)) for k, each in wanted.items()}
        if any(each is None for each in placed.values()):
            return None
        left = {k: iter(each or ()) for k, each in placed.items()}
        return tuple(next(left[k]) for k, _, _ in stages)

    def _place(self, k: int, stages: tuple[tuple[int, int], ...]) -> tuple[tuple[Part, ...], ...] | None:
        wanted = sorted(((tensor, s) for s, (tensor, width) in enumerate(stages) for _ in range(width)),
                        key=lambda each: (-each[0], each[1]))
        free = [list(self.cluster.ranks_of(node)) for node in self.kinds[k].nodes]
        groups = _pack(free, [tensor for tensor, _ in wanted])
        if groups is None:
            return None
        parts: list[list[Part]] = [[] for _ in stages]
        for (_, s), group in zip(wanted, groups, strict=True):
            parts[s].append(group)
        return tuple(map(tuple, parts))


def _pack(free: list[list[int]], degrees: Sequence[int]) -> list[Part] | None:
    """Return groups of these degrees, each inside a node, that take all free ranks; None where there are none."""
    groups: list[Part] = []
    first = 0
    for tensor in degrees:
        while first < len(free) and not free[first]:
            first += 1
        room = next((ranks for ranks in free[first:] if len(ranks) >= tensor), None)
        if room is None:
            return None
        groups.append(tuple(room[:tensor]))
        del room[:tensor]
    return None if any(free) else groups


def _pipeline(p: int, layers: Sequence[int], microbatches: int, parts: dict[tuple[int, int], Part]) -> Pipeline:
    stages, first = [], 0
    for s, count in enumerate(layers):
        stages.append(Stage(parts[p, s], first, count))
        first += count
    return Pipeline(microbatches, tuple(stages))
