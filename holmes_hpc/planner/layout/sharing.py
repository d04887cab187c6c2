"""Who shares the optimizer's state (ZeRO-1): its shards lie in each inner gradient group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holmes_hpc.architecture import Architecture
from holmes_hpc.planner.layout.layout import Layout, Overlap
from holmes_hpc.planner.layout.ownership import element_count
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Group, Reduction


def updated_parameters(task: Task, layout: Layout) -> dict[int, float]:
    """Return how many parameters every rank updates, which are those whose optimizer state it keeps.

    Of a reduction whose sum is divided every rank of an inner group has an equal shard, and of any other one all.
    """
    return task.layouts.updated_parameters.of(layout, lambda: _updated(task.architecture, layout))


def _updated(architecture: Architecture, layout: Layout) -> dict[int, float]:
    updated: dict[int, float] = {}
    for reduction in layout.reductions:
        count = element_count(architecture, reduction.owns)
        for ranks in _sharing(reduction, layout):
            for rank in ranks:
                updated[rank] = updated.get(rank, 0.0) + count / len(ranks)
    return updated


def _sharing(reduction: Reduction, layout: Layout) -> list[tuple[int, ...]]:
    if layout.overlap is not None and divides(reduction, layout.groups, layout.overlap):
        return [layout.groups[i].ranks for i in reduction.inner]
    return [(owner,) for owner in reduction.owners]


def divides(reduction: Reduction, groups: Sequence[Group], overlap: Overlap) -> bool:
    """Return whether the owners share the optimizer's state of a reduction: `Reduction.divides` of a layout's part.

    Not by the owners: of those that do the same, only one may be left.
    """
    several = any(len(groups[i].ranks) > 1 for i in (*reduction.inner, *reduction.outer))
    return overlap.sharded and several and (reduction.sharded or not reduction.outer)


def sharers(owners: Mapping[str, int], fabric: str, *, two_level: bool) -> int:
    """Return how many ranks share the optimizer's state of one slice with an owner in `fabric`.

    `owners` counts the slice's owners by fabric. The rule is that of `groups.find_groups`: owners in several fabrics
    sum inside each of them first, unless each has a fabric of its own.
    """
    total, fabrics = sum(owners.values()), sum(count > 0 for count in owners.values())
    return total if fabrics in (1, total) or not two_level else owners[fabric]
