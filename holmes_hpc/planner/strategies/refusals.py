"""Why there are no unlike pipelines: the cause that is one, and only settings that are set."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_hpc.errors import MemoryRefusedError, PlanRefusedError
from holmes_hpc.planner.task import Task
from holmes_hpc.words import counted


def no_pipelines(task: Task, tensor: int, sizes: Sequence[int], *, short_of_memory: bool) -> PlanRefusedError:
    """Return why no set of unlike pipelines was found: a MemoryRefusedError where more memory may mend it.

    `tensor` is the largest tensor-parallel degree, `sizes` are the micro-batch sizes that were tried, and
    `short_of_memory` says whether a pipeline was dropped that does not fit into memory.
    """
    settings, world = task.settings, task.cluster.world_size
    batch, layers = settings.global_batch_size, task.architecture.num_layers
    asked = _asked(task)
    deepest = min(settings.pipeline or layers, layers)
    needed = 1 if settings.leave_nodes_out else -(-world // (deepest * tensor))
    size = min(sizes)
    microbatches = batch // size
    stages, parts = counted(deepest, "stage"), counted(microbatches, "micro-batch")
    gives = f"each with a micro-batch of its own, and train.global_batch_size={batch} gives {parts}"
    if settings.data is not None and settings.data > microbatches:
        return PlanRefusedError(
            f"parallel.data={settings.data} are as many pipelines, {gives}. Set train.global_batch_size to at "
            f"least {settings.data * size}, or parallel.data to at most {microbatches}.")
    if needed > microbatches:
        deeper = "raise model.num_layers" if deepest == layers else f"parallel.pipeline above {deepest}"
        return PlanRefusedError(
            f"a pipeline of this model has at most {stages} (model.num_layers={layers}{asked}) of at most "
            f"{counted(tensor, 'GPU')}, so {counted(world, 'rank')} are at least {needed} pipelines, {gives}. Set "
            f"train.global_batch_size to at least {needed * size}, {deeper}, or use fewer nodes.")
    if short_of_memory:
        smaller = ", a smaller parallel.micro_batch_size" if size > 1 else ""
        return MemoryRefusedError(
            f"memory: no pipelines that fill these nodes hold the model{asked and ' with ' + asked[2:]}. Use more "
            f"nodes{smaller} or a smaller model{', or leave these of `parallel` null' if asked else ''}.")
    return PlanRefusedError(
        f"no pipelines of at most {stages} fill {counted(world, 'rank')} with at most {parts}, one for each at "
        f"least{asked}. Change train.global_batch_size or model.num_layers"
        f"{', or leave these of `parallel` null' if asked else ''}.")


def _asked(task: Task) -> str:
    """Return the degrees and the size that were asked for, each after a comma; those that are not set are not named."""
    names = ("tensor", "pipeline", "data", "micro_batch_size")
    values = {name: getattr(task.settings, name) for name in names}
    return "".join(f", parallel.{name}={value}" for name, value in values.items() if value is not None)
