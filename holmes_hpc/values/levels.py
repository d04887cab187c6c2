"""Groups in two levels: where sums and gathers of shards go inside the nodes and then across."""

from __future__ import annotations

import itertools
from collections.abc import Callable


def ranks_by_node(ranks: tuple[int, ...], slot_of: Callable[[int], str]) -> tuple[tuple[int, ...], ...] | None:
    """Return the ranks of each node, in their order; None unless there are several nodes of several, equally many."""
    nodes = tuple(tuple(members) for _, members in itertools.groupby(ranks, key=slot_of))
    if len(nodes) < 2 or len({len(members) for members in nodes}) != 1 or len(nodes[0]) < 2:
        return None
    return nodes if len({slot_of(members[0]) for members in nodes}) == len(nodes) else None
