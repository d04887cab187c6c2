"""Process groups and reductions, found by asking for every unit of the model which ranks own it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.planner.schedules import edge_ranks
from holmes_hpc.values import Group, Pipeline, Reduction

TOKEN_TABLE = "embedding.token"


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
    """Groups in the order in which they were first asked for, each once."""

    def __init__(self, cluster: ClusterDescription, rules: GroupRules) -> None:
        self.cluster = cluster
        self.groups: list[Group] = []
        self.index: dict[Group, int] = {}
        everyone = tuple(range(cluster.world_size))
        self.network = cluster.shared_network(everyone) if rules.one_network else None
        self.add("world", everyone)

    def add(self, kind: str, ranks: Sequence[int]) -> int:
        network = self.network or self.cluster.shared_network(ranks)
        group = Group(kind, tuple(ranks), network)
        if group not in self.index:
            self.index[group] = len(self.groups)
            self.groups.append(group)
        return self.index[group]


def find_groups(architecture: Architecture, cluster: ClusterDescription, pipelines: Sequence[Pipeline],
                rules: GroupRules) -> tuple[tuple[Group, ...], tuple[Reduction, ...]]:
    """Return all process groups, the world first, and all reductions.

    A reduction stands for all units with the same owners, and every unit is in exactly one; where a single rank
    owns units there is nothing to sum, and the reduction names its owner and no group. Reductions stand in the
    order in which a backward finishes their gradients: head first, token table last.
    """
    found = _Groups(cluster, rules)
    for pipeline in pipelines:
        for stage in pipeline.stages:
            if len(stage.ranks) > 1:
                found.add("tensor", stage.ranks)
        for s in range(len(pipeline.stages) - 1):
            ranks = edge_ranks(pipeline, s)
            if len(ranks) > 1:
                found.add("pipeline", ranks)
    reductions = []
    for owners, units in owned_units(architecture, pipelines).items():
        tied_copies = _tied_copies(architecture, pipelines) if units == (TOKEN_TABLE,) else ()
        reductions.append(_reduction(found, owners, units, tied_copies, rules))
    return tuple(found.groups), tuple(reductions)


def owned_units(architecture: Architecture,
                pipelines: Sequence[Pipeline]) -> dict[tuple[int, ...], tuple[str, ...]]:
    """Return the units (in data-flow order) of every set of owners, sets ordered from the head backwards."""
    owners: dict[str, set[int]] = {unit: set() for unit in architecture.units}
    for pipeline in pipelines:
        for s, stage in enumerate(pipeline.stages):
            # With tensor parallelism the question becomes: which ranks own this *slice* of the unit. Degrees that
            # differ between pipelines then give one set of owners for each common refinement of the slices.
            for unit in stage_units(architecture, pipeline, s):
                owners[unit].update(stage.ranks)
    shared: dict[tuple[int, ...], tuple[str, ...]] = {}
    for unit in reversed(architecture.units):
        key = tuple(sorted(owners[unit]))
        shared[key] = (unit, *shared.get(key, ()))
    return shared


def stage_units(architecture: Architecture, pipeline: Pipeline, s: int) -> tuple[str, ...]:
    """Return the units that stage `s` of a pipeline holds."""
    stage = pipeline.stages[s]
    return architecture.stage_units(stage.first_layer, stage.num_layers,
                                    first=s == 0, last=s == len(pipeline.stages) - 1)


def _tied_copies(architecture: Architecture, pipelines: Sequence[Pipeline]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks that hold the token table as a first stage, and those that hold it as a last stage."""
    if not architecture.tied_embeddings or any(len(pipeline.stages) < 2 for pipeline in pipelines):
        return ()
    first = dict.fromkeys(rank for pipeline in pipelines for rank in pipeline.stages[0].ranks)
    last = dict.fromkeys(rank for pipeline in pipelines for rank in pipeline.stages[-1].ranks)
    return () if set(first) & set(last) else (tuple(first), tuple(last))


def _reduction(found: _Groups, owners: tuple[int, ...], units: tuple[str, ...],
               tied_copies: tuple[tuple[int, ...], ...], rules: GroupRules) -> Reduction:
    if len(owners) == 1:
        return Reduction(units, owners, inner=())
    kind = "embedding" if tied_copies else "data"
    if rules.one_network:
        if tied_copies and len(tied_copies[0]) == len(tied_copies[1]) > 1:
            return _in_pairs(found, owners, units, tied_copies)
        return Reduction(units, owners, inner=(found.add(kind, owners),))
    fabrics: dict[str, list[int]] = {}
    for rank in owners:
        fabrics.setdefault(found.cluster.node_of(rank).fabric, []).append(rank)
    if len(fabrics) == 1 or len(fabrics) == len(owners) or not rules.two_level:
        return Reduction(units, owners, inner=(found.add(kind, owners),))
    inside = list(fabrics.values())
    inner = tuple(found.add("data", ranks) for ranks in inside)
    outer = tuple(found.add(kind, [ranks[j] for ranks in inside]) for j in range(min(map(len, inside))))
    return Reduction(units, owners, inner, outer, sharded=True)


def _in_pairs(found: _Groups, owners: tuple[int, ...], units: tuple[str, ...],
              copies: tuple[tuple[int, ...], ...]) -> Reduction:
    """Megatron's way with a tied table: the data groups of both stages, then the whole gradient in each pair."""
    inner = tuple(found.add("data", tuple(sorted(ranks))) for ranks in copies)
    outer = tuple(found.add("embedding", pair) for pair in zip(*copies, strict=True))
    return Reduction(units, owners, inner, outer, sharded=False)
