"""Who shares the optimizer's state (ZeRO-1): its shards lie in each copy of a reduction."""

from __future__ import annotations

from collections.abc import Mapping

from holmes_hpc.architecture import Architecture
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.layout.ownership import element_count
from holmes_hpc.planner.task import Task


def updated_parameters(task: Task, layout: Layout) -> dict[int, float]:
    """Return how many parameters every rank updates, which are those whose optimizer state it keeps.

    Of a reduction that divides every rank of a copy has an equal shard, and of any other one each owner has all.
    """
    return task.layouts.updated_parameters.of(layout, lambda: _updated(task.architecture, layout))


def _updated(architecture: Architecture, layout: Layout) -> dict[int, float]:
    updated: dict[int, float] = {}
    for reduction in layout.reductions:
        count = element_count(architecture, reduction.owns)
        copies = [layout.groups[i].ranks for i in reduction.copies] or [(owner,) for owner in reduction.owners]
        for ranks in copies:
            for rank in ranks:
                updated[rank] = updated.get(rank, 0.0) + count / len(ranks)
    return updated


def sharers(owners: Mapping[str, int], fabric: str, *, two_level: bool) -> int:
    """Return how many ranks share the optimizer's state of one slice with an owner in `fabric`.

    `owners` counts the slice's owners by fabric. The rule is that of `groups.find_groups`: owners in several fabrics
    sum inside each of them first, unless each has a fabric of its own.
    """
    total, fabrics = sum(owners.values()), sum(count > 0 for count in owners.values())
    return total if fabrics in (1, total) or not two_level else owners[fabric]
