"""What no schedule of a layout beats: compute alone."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_hpc.planner.layout.ownership import stage_units
from holmes_hpc.planner.simulation.prices import compute_cost, stage_seconds, weight_seconds
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Pipeline


def least_seconds(task: Task, pipelines: Sequence[Pipeline], micro_batch_size: int) -> float:
    """Return a step time that no schedule of these pipelines beats.

    A rank computes all its own work, after its first micro-batch has passed the stages before it. After its last
    backward that micro-batch passes them again, beside which the rank may still make gradients of weights: so of its
    own work only the rest comes before. Exchange is not counted.
    """
    cost = compute_cost(task)
    busy: dict[int, float] = {}
    bound = 0.0
    for pipeline in pipelines:
        before = after = 0.0
        for s, stage in enumerate(pipeline.stages):
            units = stage_units(task.architecture, pipeline, s)
            forward, backward = stage_seconds(task, cost, stage.ranks, units, micro_batch_size)
            weight = weight_seconds(task, cost, stage.ranks, units, micro_batch_size)
            own, count = pipeline.microbatches * (forward + backward), pipeline.microbatches
            bound = max(bound, before + own, before + after + own - count * weight)
            before, after = before + forward, after + backward - weight
            for rank in stage.ranks:
                busy[rank] = busy.get(rank, 0.0) + own
    return max(bound, *busy.values())
