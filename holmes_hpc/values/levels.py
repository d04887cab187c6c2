"""The levels of a reduction: inside fabrics and then between them, and on gloo inside the nodes of each group first.

Gloo knows no nodes and would send every shard over the NIC once for each rank, so there the plan says how a group of
several ranks on each of several nodes goes. NCCL knows them, and its groups are used as they are.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holmes_hpc.values.reductions import ACROSS, INSIDE, Group, Level, Operation, Reduction

LOCAL = "local"
SlotOf = Callable[[int], str]


class GroupList:
    """Groups in the order in which they were first asked for, each kind and tuple of ranks once."""

    def __init__(self, groups: Iterable[Group] = ()) -> None:
        self.groups = list(groups)
        self._index = {(group.kind, group.ranks): i for i, group in enumerate(self.groups)}

    def add(self, kind: str, ranks: Sequence[int], network: str | Callable[[], str]) -> int:
        """Return the index of a group; where there is none yet it is made, and its network asked for."""
        key = kind, tuple(ranks)
        if key not in self._index:
            self._index[key] = len(self.groups)
            self.groups.append(Group(*key, network if isinstance(network, str) else network()))
        return self._index[key]


@dataclass(frozen=True)
class Sums:
    """Which groups sum, whatever the library.

    The `inner` groups are disjoint and together hold all owners; each first sums inside itself. `outer`, when not
    empty, join them: with `by_parts`, outer group j sums the j-th of `len(outer)` equal parts between the j-th ranks of
    the inner groups; without, each sums all (Megatron's embedding groups).
    """

    inner: tuple[int, ...]
    outer: tuple[int, ...] = ()
    by_parts: bool = False


def in_levels(owns: tuple[str, ...], owners: tuple[int, ...], sums: Sums, found: GroupList, *, sharded: bool,
              slot_of: SlotOf | None = None) -> Reduction:
    """Return the reduction that sums so, with the groups that it needs further added to `found`.

    With `sharded` the owners share the optimizer's state, unless every outer group sums all. `slot_of` gives a rank's
    node where the plan says how a group goes inside nodes (on gloo), and is None where the library knows.
    """
    if len(owners) < 2:
        return Reduction(owns, owners)
    if not (sharded and sums.inner and (sums.by_parts or not sums.outer)):
        return Reduction(owns, owners, _whole_sums(sums))
    shards = len(sums.outer) or len(found.groups[sums.inner[0]].ranks)
    return _shared(owns, owners, sums.inner, sums.outer, shards, found, slot_of)


def for_nodes(groups: Sequence[Group], reductions: Sequence[Reduction],
              slot_of: SlotOf | None) -> tuple[tuple[Group, ...], tuple[Reduction, ...]]:
    """Return groups and reductions with the levels inside nodes, by `slot_of`, or with None without them."""
    kept = [i for i, group in enumerate(groups) if group.whole_kind == group.kind]
    place = {i: number for number, i in enumerate(kept)}
    found = GroupList(groups[i] for i in kept)

    def moved(indices: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(place[i] for i in indices)

    changed = []
    for reduction in reductions:
        if not reduction.divides:
            levels = tuple(dataclasses.replace(level, groups=moved(level.groups)) for level in reduction.levels)
            changed.append(dataclasses.replace(reduction, levels=levels))
            continue
        outer = next((level.groups for level in reduction.levels if level.operation is Operation.ALL_REDUCE), ())
        every = {level.operation: level.every for level in reduction.levels}
        new = _shared(reduction.owns, reduction.owners, moved(reduction.copies), moved(outer), reduction.shards, found,
                      slot_of)
        changed.append(dataclasses.replace(new, levels=tuple(
            dataclasses.replace(level, every=every[level.operation]) for level in new.levels)))
    return tuple(found.groups), tuple(changed)


def ranks_by_node(ranks: tuple[int, ...], slot_of: SlotOf) -> tuple[tuple[int, ...], ...] | None:
    """Return the ranks of each node, in their order; None unless there are several nodes of several, equally many."""
    nodes = tuple(tuple(members) for _, members in itertools.groupby(ranks, key=slot_of))
    if len(nodes) < 2 or len({len(members) for members in nodes}) != 1 or len(nodes[0]) < 2:
        return None
    return nodes if len({slot_of(members[0]) for members in nodes}) == len(nodes) else None


def _whole_sums(sums: Sums) -> tuple[Level, ...]:
    """Return the levels after which every owner has the whole sum."""
    levels = [Level(Operation.ALL_REDUCE, sums.inner)] if sums.inner else []
    if sums.outer:
        parts = len(sums.outer) if sums.by_parts else 1
        levels.append(Level(Operation.ALL_REDUCE, sums.outer, parts))
        if sums.by_parts:
            levels.append(Level(Operation.BROADCAST, sums.inner, parts))
    return tuple(levels)


def _shared(owns: tuple[str, ...], owners: tuple[int, ...], inner: tuple[int, ...], outer: tuple[int, ...], shards: int,
            found: GroupList, slot_of: SlotOf | None) -> Reduction:
    """Return the reduction whose owners share the optimizer's state, in `shards` within each inner group."""
    inside: dict[int, list[int]] = {}
    last: list[int] = []
    for index in inner:
        group = found.groups[index]
        nodes = ranks_by_node(group.ranks, slot_of) if slot_of and shards == len(group.ranks) else None
        if nodes is None:
            last.append(index)
            continue
        inside.setdefault(len(nodes[0]), []).extend(
            found.add(group.kind + INSIDE, ranks, LOCAL) for ranks in nodes)
        last += [found.add(group.kind + ACROSS, ranks, group.network) for ranks in zip(*nodes, strict=True)]
    scatter, gather = Operation.REDUCE_SCATTER, Operation.ALL_GATHER
    within = [(tuple(groups), local) for local, groups in inside.items()]
    levels = [*(Level(scatter, groups, local) for groups, local in within), Level(scatter, tuple(last), shards),
              *[Level(Operation.ALL_REDUCE, outer, shards)] * bool(outer)]
    gathers = [Level(gather, tuple(last), shards), *(Level(gather, groups, local) for groups, local in within)]
    return Reduction(owns, owners, tuple(levels), tuple(gathers), copies=inner, norm=inner[:1])
