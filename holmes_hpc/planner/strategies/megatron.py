"""The baseline: Megatron's group formulas on the ranks as Slurm numbers them, one network for all groups."""

from __future__ import annotations

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.strategies.shapes import Shape, divisors
from holmes_hpc.planner.task import Task
from holmes_hpc.values.strategy_kinds import MEGATRON
from holmes_hpc.words import counted


def shapes(task: Task, tensor: int) -> tuple[Shape, ...]:
    """Return the layouts for a tensor-parallel degree and the asked pipeline and data degrees, or all of them.

    With N ranks, t = tensor and p = pipeline, stage s of pipeline k is the ranks s N/p + k t + j, 0 <= j < t
    (Narayanan et al. 2021). Raises PlanRefusedError when the degrees do not multiply to the number of ranks.
    """
    settings, world = task.settings, task.cluster.world_size
    depths = [
        p for p in divisors(world // tensor)
        if settings.pipeline in (None, p) and settings.data in (None, world // tensor // p)
    ] if world % tensor == 0 else []
    if not depths:
        asked = {"tensor": settings.tensor, "pipeline": settings.pipeline, "data": settings.data}
        words = ", ".join(f"parallel.{name}={value}" for name, value in asked.items() if value is not None)
        raise PlanRefusedError(
            f"megatron: {words} on {counted(world, 'rank')}: tensor x pipeline x data must be {world}. Set "
            f"parallel.pipeline to one of {', '.join(map(str, divisors(world // tensor)))} with "
            f"parallel.tensor={tensor} and leave parallel.data null.")
    return tuple(_shape(world, tensor, p) for p in depths)


def _shape(world: int, tensor: int, depth: int) -> Shape:
    width, data = world // depth, world // depth // tensor
    stages = tuple(
        tuple(tuple(s * width + k * tensor + j for j in range(tensor)) for k in range(data)) for s in range(depth)
    )
    words = f"tensor {tensor}, pipeline {depth}, data {data}"
    return Shape(MEGATRON.name, words, stages, GroupRules(one_network=MEGATRON.one_network), equal_pipelines=True)
