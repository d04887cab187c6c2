"""How a plan's gradients are summed, in words: in one level or two, inside nodes and inside fabrics."""

from __future__ import annotations

from collections.abc import Iterator

from holmes_hpc.values import Plan, Reduction
from holmes_hpc.values.levels import ranks_by_node
from holmes_hpc.words import counted

MOST_LINES = 6


def sums_in_words(plan: Plan) -> list[str]:
    """Return a line for each way in which the plan's reductions sum; none where no two ranks own the same.

    Of many unlike ways the first ones are shown, with how many more there are.
    """
    shared = [reduction for reduction in plan.reductions if len(reduction.owners) > 1]
    lines = list(dict.fromkeys(line for reduction in shared for line in _lines(plan, reduction)))
    more = len(lines) - MOST_LINES
    return lines if more <= 0 else [*lines[:MOST_LINES], f"sums: {more} more, in plan.json's `reductions`"]


def _lines(plan: Plan, reduction: Reduction) -> Iterator[str]:
    groups = [plan.groups[i] for i in reduction.inner]
    for group in groups:
        if len(group.ranks) > 1:
            yield (f"sums over {group.network}, {counted(len(group.ranks), 'rank')}"
                   f"{_inside(plan, reduction, group.ranks)}")
    if reduction.outer:
        outer = plan.groups[reduction.outer[0]]
        yield (f"sums between {' and '.join(_fabrics(plan, outer.ranks))}, over {outer.network}: "
               + ("of shards, after the sums inside each fabric (parallel.two_level)" if reduction.sharded
                  else "of whole gradients, after the sums inside each group"))


def _inside(plan: Plan, reduction: Reduction, ranks: tuple[int, ...]) -> str:
    """Return how one inner group sums: on gloo in two levels where `comm.sharding` does."""
    shards = len(reduction.outer) or len(ranks)
    divided = plan.synchronization.sharded and reduction.divides
    nodes = ranks_by_node(ranks, lambda rank: plan.ranks[rank].slot) if divided and shards == len(ranks) else None
    if nodes is None:
        return ": in one level"
    return (f" ({counted(len(nodes), 'node')} x {len(nodes[0])}): on gloo in two levels, inside the nodes and then "
            "across; NCCL decides itself")


def _fabrics(plan: Plan, ranks: tuple[int, ...]) -> list[str]:
    return list(dict.fromkeys(plan.ranks[rank].fabric for rank in ranks))
