"""Memory of every rank, by parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.planner.cost.memory_parts import fixed_bytes
from holmes_hpc.planner.cost.stages import GIB, ComputeCost
from holmes_hpc.planner.layout.ownership import stage_units
from holmes_hpc.values import Pipeline

USABLE_FRACTION = 0.94
"""What allocator and fragmentation leave of a GPU's memory."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank at its peak.

    `parameters` with the float32 copy, at 16 bit, of those that the rank updates; `gradients` in flat float32 buffers,
    which are also the buckets that ranks sum; `optimizer` moments of those that the rank updates; `activations` of
    every micro-batch in flight; `workspace` for the largest passing tensors; `fixed` for device context and libraries.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    workspace: float
    fixed: float

    @property
    def total(self) -> float:
        """All parts."""
        return sum(getattr(self, part.name) for part in fields(self))


def memory_per_rank(cost: ComputeCost, cluster: ClusterDescription, pipelines: Sequence[Pipeline],
                    micro_batch_size: int, peaks: Mapping[tuple[int, int, int], int],
                    updated: Mapping[int, float] | None = None) -> tuple[RankMemory, ...]:
    """Return each rank's memory: states of what it holds (once, however many pipelines it serves) and activations.

    `peaks` gives the micro-batches in flight, by (rank, pipeline, stage), when the rank keeps most of them;
    `updated` how many parameters a rank updates (`sharing.updated_parameters`), by default all that it holds.
    """
    known = rank_memory(cost, cluster, pipelines, micro_batch_size, peaks, updated)
    return tuple(known[rank] for rank in range(cluster.world_size))


def rank_memory(cost: ComputeCost, cluster: ClusterDescription, pipelines: Sequence[Pipeline], micro_batch_size: int,
                peaks: Mapping[tuple[int, int, int], int],
                updated: Mapping[int, float] | None = None) -> dict[int, RankMemory]:
    """Return the memory of every rank of these pipelines; the arguments are those of `memory_per_rank`."""
    held: dict[int, dict[str, int]] = {}
    kept: dict[int, float] = {}
    passing: dict[int, float] = {}
    for p, pipeline in enumerate(pipelines):
        for s, stage in enumerate(pipeline.stages):
            units, tensor = stage_units(cost.architecture, pipeline, s), stage.tensor
            one = cost.activation_bytes(units, micro_batch_size, tensor)
            workspace = cost.workspace_bytes(units, micro_batch_size, tensor)
            for rank in stage.ranks:
                held.setdefault(rank, {}).update(dict.fromkeys(units, tensor))
                kept[rank] = kept.get(rank, 0.0) + one * peaks.get((rank, p, s), 0)
                passing[rank] = max(passing.get(rank, 0.0), workspace)
    parameters = {rank: _parameters(cost, units) for rank, units in held.items()}
    communicators = communicators_of(pipelines)
    return {rank: _rank_memory(cost, cluster, rank, count, (updated or {}).get(rank, count), kept[rank], passing[rank],
                               communicators[rank])
            for rank, count in parameters.items()}


def communicators_of(pipelines: Sequence[Pipeline]) -> dict[int, int]:
    """Return how many communicators a rank has on its GPU: of its tensor groups, two of each edge, and of its sums.

    For layers that it shares with other ranks these are one inside a fabric and one across, and one for a tied table;
    stages cut alike in all pipelines are taken to be shared as wholes.
    """
    found: dict[int, set[tuple[str, tuple[int, ...]]]] = {}
    holders: dict[tuple[int, int], set[int]] = {}
    for pipeline in pipelines:
        for stage in pipeline.stages:
            holders.setdefault((stage.first_layer, stage.num_layers), set()).update(stage.ranks)
    shared = {part: tuple(sorted(ranks)) for part, ranks in holders.items()}
    for pipeline in pipelines:
        for s, stage in enumerate(pipeline.stages):
            beside = [pipeline.stages[n].ranks for n in (s - 1, s + 1) if 0 <= n < len(pipeline.stages)]
            for rank in stage.ranks:
                own = found.setdefault(rank, set())
                owners = shared[stage.first_layer, stage.num_layers]
                if len(owners) > stage.tensor:
                    own |= {("inside", owners), ("across", owners), ("table", ())}
                if stage.tensor > 1:
                    own.add(("tensor", stage.ranks))
                for ranks in beside:
                    if set(ranks) != {rank}:
                        edge = tuple(sorted({*stage.ranks, *ranks}))
                        own |= {("there", edge), ("back", edge)}
    return {rank: len(own) for rank, own in found.items()}


def memory_gib_per_rank(cost: ComputeCost, cluster: ClusterDescription, pipelines: Sequence[Pipeline],
                        micro_batch_size: int, peaks: Mapping[tuple[int, int, int], int],
                        updated: Mapping[int, float] | None = None) -> tuple[float, ...]:
    """Return the totals of `memory_per_rank` in GiB."""
    return tuple(memory.total / GIB
                 for memory in memory_per_rank(cost, cluster, pipelines, micro_batch_size, peaks, updated))


def peaking_rank(memory: Sequence[RankMemory], cluster: ClusterDescription, capacity_gib: Mapping[str, float]
                 ) -> tuple[int, str]:
    """Return the rank whose memory is fullest relative to its GPU's, and its largest part.

    `capacity_gib` is the memory of a rank by the slot of its node.
    """
    rank = max(range(len(memory)), key=lambda r: memory[r].total / capacity_gib[cluster.node_of(r).slot])
    largest = max((part.name for part in fields(RankMemory)), key=lambda name: float(getattr(memory[rank], name)))
    return rank, largest


def _rank_memory(cost: ComputeCost, cluster: ClusterDescription, rank: int, parameters: float, updated: float,
                 activations: float, workspace: float, communicators: int) -> RankMemory:
    copies, gradients, moments = cost.state_bytes
    narrow = cost.element_bytes
    return RankMemory(parameters * narrow + updated * (copies - narrow), parameters * gradients, updated * moments,
                      activations, workspace, fixed_bytes(cost.machine.gpu(cluster.node_of(rank)), communicators,
                                                          cluster.communicator_gib))


def _parameters(cost: ComputeCost, units: Mapping[str, int]) -> float:
    by_degree: dict[int, list[str]] = {}
    for unit, tensor in units.items():
        by_degree.setdefault(tensor, []).append(unit)
    return sum(cost.parameter_count(tuple(names), tensor) for tensor, names in by_degree.items())
