"""Why a shape cannot be planned with its batch or its depth, and what to set instead."""

from __future__ import annotations

from holmes_hpc.errors import BatchRefusedError
from holmes_hpc.planner.strategies.shapes import Shape
from holmes_hpc.planner.task import Task
from holmes_hpc.words import counted


def too_few(task: Task, shape: Shape, size: int, pipelines: int, microbatches: int) -> BatchRefusedError | None:
    """Return why there are too few micro-batches for a shape's pipelines, if so."""
    if microbatches >= pipelines and not (shape.equal_pipelines and microbatches % pipelines):
        return None
    return BatchRefusedError(
        f"{counted(microbatches, 'micro-batch')} for {counted(pipelines, 'pipeline')}: "
        + ("the number must be a multiple of the pipelines' in the megatron strategy. "
           if microbatches >= pipelines else "each needs at least one. ")
        + _remedy(task, shape, size, pipelines), pipelines * size)


def _remedy(task: Task, shape: Shape, size: int, pipelines: int) -> str:
    """Return what gives each pipeline a micro-batch: what is at its limit already is not among it."""
    smaller = " or lower parallel.micro_batch_size" if size > 1 else ""
    if task.settings.data is not None:
        fewer = ", or lower parallel.data"
    elif len(shape.stages) < task.architecture.num_layers:
        fewer = ", or use fewer pipelines (a larger parallel.pipeline)"
    elif task.settings.pipeline is None and not smaller:
        fewer = ", or raise model.num_layers: deeper pipelines are fewer"
    else:
        fewer = ""
    enough = "a multiple of" if shape.equal_pipelines else "at least"
    return f"Set train.global_batch_size to {enough} {pipelines * size}{smaller}{fewer}."


def too_deep(task: Task, depth: int) -> str:
    """Return why a layout has more stages than layers, by those settings that were set."""
    settings, layers = task.settings, task.architecture.num_layers
    asked = {f"parallel.{name}": value for name in ("pipeline", "data", "tensor")
             if (value := getattr(settings, name)) is not None}
    if settings.chunks > 1:
        asked["parallel.chunks"] = settings.chunks
    words = " and ".join(f"{name}={value}" for name, value in asked.items()) or "this layout"
    change = f"Change {' or '.join(asked)}, or raise" if asked else "Raise"
    make = "makes" if len(asked) < 2 else "make"
    return (f"{words} on {counted(task.cluster.world_size, 'rank')} {make} {depth} pipeline stages, which need at "
            f"least as many layers, and the model has {layers}. {change} model.num_layers to at least {depth}.")
