"""Memory of every rank, by parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.planner.compute_cost import GIB, ComputeCost
from holmes_hpc.planner.ownership import stage_units
from holmes_hpc.values import Pipeline

USABLE_FRACTION = 0.94
"""What allocator and fragmentation leave of a GPU's memory."""


def memory_gib_per_rank(cost: ComputeCost, cluster: ClusterDescription, pipelines: Sequence[Pipeline],
                        micro_batch_size: int, peaks: Mapping[tuple[int, int, int], int]) -> tuple[float, ...]:
    """Return each rank's memory: states of what it holds (once, however many pipelines it serves) and activations.

    `peaks` gives the micro-batches in flight, by (rank, pipeline, stage), when the rank keeps most of them.
    """
    held: dict[int, dict[str, int]] = {rank: {} for rank in range(cluster.world_size)}
    kept = dict.fromkeys(held, 0.0)
    for p, pipeline in enumerate(pipelines):
        for s, stage in enumerate(pipeline.stages):
            units, tensor = stage_units(cost.architecture, pipeline, s), len(stage.ranks)
            one = cost.activation_bytes(units, micro_batch_size, tensor)
            for rank in stage.ranks:
                held[rank].update(dict.fromkeys(units, tensor))
                kept[rank] += one * peaks.get((rank, p, s), 0)
    return tuple(
        cost.static_gib(cluster.node_of(rank), _parameters(cost, units)) + kept[rank] / GIB
        for rank, units in held.items()
    )


def _parameters(cost: ComputeCost, units: Mapping[str, int]) -> float:
    by_degree: dict[int, list[str]] = {}
    for unit, tensor in units.items():
        by_degree.setdefault(tensor, []).append(unit)
    return sum(cost.parameter_count(tuple(names), tensor) for tensor, names in by_degree.items())
