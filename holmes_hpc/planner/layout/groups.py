"""Process groups and reductions, found by asking for every slice of the model which ranks own it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.planner.layout.ownership import TOKEN_TABLE, holders, owned_parts
from holmes_hpc.schedule.building import edge_ranks
from holmes_hpc.schedule.turns import turn_ranks
from holmes_hpc.values import Group, Pipeline, Reduction
from holmes_hpc.values.levels import GroupList, Sums, in_levels
from holmes_hpc.values.owned import Owned


@dataclass(frozen=True)
class GroupRules:
    """How a strategy uses networks.

    `one_network` (Megatron): every group uses the network that the whole cluster shares, gradients are reduced in
    one level, and the tied embedding in data groups and then whole in pairs of first and last stage. Otherwise
    every group uses the fastest network that its ranks share, and with `two_level` owners in several fabrics are
    first reduced inside each and then across.
    """

    one_network: bool = False
    two_level: bool = True


class _Groups:
    """The groups of a layout, each on its network."""

    def __init__(self, cluster: ClusterDescription, rules: GroupRules) -> None:
        self.cluster, self.found = cluster, GroupList()
        everyone = tuple(range(cluster.world_size))
        self.network = cluster.shared_network(everyone) if rules.one_network else None
        self.add("world", everyone)

    def add(self, kind: str, ranks: Sequence[int]) -> int:
        network = None if kind == "turn" else self.network
        return self.found.add(kind, ranks, lambda: network or self.cluster.shared_network(ranks))


def find_groups(architecture: Architecture, cluster: ClusterDescription, pipelines: Sequence[Pipeline],
                rules: GroupRules, *, sharded: bool = False,
                in_nodes: bool = False) -> tuple[tuple[Group, ...], tuple[Reduction, ...]]:
    """Return all process groups, the world first, and all reductions.

    A reduction stands for all units, or slices of them, with the same owners, and every slice is in exactly one;
    where a single rank owns them there is nothing to sum, and the reduction names its owner and no group. Reductions
    stand in the order in which a backward finishes their gradients: head first, token table last. Groups for turns
    on slow NICs come last; only a schedule with turns needs them. With `sharded` owners share the optimizer's state;
    with `in_nodes` (on gloo) the plan says how their groups go inside nodes.
    """
    found = _Groups(cluster, rules)
    for pipeline in pipelines:
        for stage in pipeline.stages:
            if stage.tensor > 1:
                found.add("tensor", stage.ranks)
        for s in range(len(pipeline.stages) - 1):
            ranks = edge_ranks(pipeline, s)
            if len(ranks) > 1:
                found.add("pipeline", ranks)
    reductions = []
    for owners, parts in owned_parts(architecture, pipelines).items():
        tied_copies = _tied_copies(architecture, pipelines, parts)
        sums = _sums(found, owners, tied_copies, rules) if len(owners) > 1 else Sums(())
        reductions.append(in_levels(tuple(map(str, parts)), owners, sums, found.found, sharded=sharded,
                                    slot_of=(lambda rank: cluster.node_of(rank).slot) if in_nodes else None))
    for ranks in turn_ranks(cluster, pipelines, found.found.groups):
        found.add("turn", ranks)
    return tuple(found.found.groups), tuple(reductions)


def _tied_copies(architecture: Architecture, pipelines: Sequence[Pipeline],
                 parts: Sequence[Owned]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks that hold a part of the token table as a first stage, and those that hold it as a last.

    Nothing where it is not tied, or where some rank is in both.
    """
    if (not architecture.tied_embeddings or [part.unit for part in parts] != [TOKEN_TABLE]
            or any(len(pipeline.stages) < 2 for pipeline in pipelines)):
        return ()
    first = dict.fromkeys(rank for pipeline in pipelines for rank in holders(pipeline.stages[0].ranks, parts[0]))
    last = dict.fromkeys(rank for pipeline in pipelines for rank in holders(pipeline.stages[-1].ranks, parts[0]))
    return () if set(first) & set(last) else (tuple(first), tuple(last))


def _sums(found: _Groups, owners: tuple[int, ...], tied_copies: tuple[tuple[int, ...], ...],
          rules: GroupRules) -> Sums:
    kind = "embedding" if tied_copies else "data"
    if rules.one_network:
        if tied_copies and len(tied_copies[0]) == len(tied_copies[1]) > 1:
            return _in_pairs(found, tied_copies)
        return Sums((found.add(kind, owners),))
    inside, across = two_levels(found.cluster, owners, rules)
    if not across:
        return Sums((found.add(kind, owners),))
    inner = tuple(found.add("data", ranks) for ranks in inside)
    outer = tuple(found.add(kind, ranks) for ranks in across)
    return Sums(inner, outer, by_parts=True)


def two_levels(cluster: ClusterDescription, owners: Sequence[int],
               rules: GroupRules) -> tuple[list[list[int]], list[list[int]]]:
    """Return the groups that owners sum in first, and those across; none of these where one group has all."""
    fabrics: dict[str, list[int]] = {}
    for rank in owners:
        fabrics.setdefault(cluster.node_of(rank).fabric, []).append(rank)
    if rules.one_network or len(fabrics) in (1, len(owners)) or not rules.two_level:
        return [list(owners)], []
    inside = list(fabrics.values())
    return inside, [[ranks[j] for ranks in inside] for j in range(min(map(len, inside)))]


def _in_pairs(found: _Groups, copies: tuple[tuple[int, ...], ...]) -> Sums:
    """Megatron's way with a tied table: the data groups of both stages, then the whole gradient in each pair."""
    inner = tuple(found.add("data", tuple(sorted(ranks))) for ranks in copies)
    outer = tuple(found.add("embedding", pair) for pair in zip(*copies, strict=True))
    return Sums(inner, outer)
