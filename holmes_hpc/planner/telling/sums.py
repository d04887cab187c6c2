"""How a plan's gradients are summed, in words: in one level or two, inside nodes and inside fabrics."""

from __future__ import annotations

from collections.abc import Iterator

from holmes_hpc.values import Operation, Plan, Reduction
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
    first, inside = list(reduction.copies or reduction.levels[0].groups), _inside(plan, reduction)
    for index in first:
        group = plan.groups[index]
        if len(group.ranks) > 1:
            yield (f"sums over {group.network}, {counted(len(group.ranks), 'rank')}"
                   f"{_in_nodes(len(group.ranks), inside.get(group.ranks[0]))}")
    between = [level for level in reduction.levels if level.operation is Operation.ALL_REDUCE
               and not set(level.groups) <= set(first)]
    for level in between:
        outer = plan.groups[level.groups[0]]
        of_shards = reduction.divides or reduction.levels[-1].operation is Operation.BROADCAST
        yield (f"sums between {' and '.join(_fabrics(plan, outer.ranks))}, over {outer.network}: "
               + ("of shards, after the sums inside each fabric (parallel.two_level)" if of_shards
                  else "of whole gradients, after the sums inside each group"))


def _inside(plan: Plan, reduction: Reduction) -> dict[int, int]:
    """Return by the first rank of a node's group how many ranks it has, where they sum inside the node first."""
    groups = [plan.groups[index] for index in reduction.groups]
    return {group.ranks[0]: len(group.ranks) for group in groups if group.is_inside}


def _in_nodes(ranks: int, local: int | None) -> str:
    if local is None:
        return ": in one level"
    return f" ({counted(ranks // local, 'node')} x {local}): in two levels, inside the nodes and then across"


def _fabrics(plan: Plan, ranks: tuple[int, ...]) -> list[str]:
    return list(dict.fromkeys(plan.ranks[rank].fabric for rank in ranks))
