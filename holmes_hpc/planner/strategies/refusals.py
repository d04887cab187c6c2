"""Why there is no plan, in words: the cause that is one, and only settings that are set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from holmes_hpc.planner.task import Task
from holmes_hpc.words import counted

MEMORY = "memory: "
"""How a refusal begins whose cause is memory; the search then tries what saves some."""


def no_pipelines(task: Task, tensor: int, sizes: Sequence[int], *, short_of_memory: bool) -> str:
    """Return why no set of unlike pipelines was found.

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
        return (f"parallel.data={settings.data} are as many pipelines, {gives}. Set train.global_batch_size to at "
                f"least {settings.data * size}, or parallel.data to at most {microbatches}.")
    if needed > microbatches:
        deeper = "raise model.num_layers" if deepest == layers else f"parallel.pipeline above {deepest}"
        return (f"a pipeline of this model has at most {stages} (model.num_layers={layers}{asked}) of at most "
                f"{counted(tensor, 'GPU')}, so {counted(world, 'rank')} are at least {needed} pipelines, {gives}. Set "
                f"train.global_batch_size to at least {needed * size}, {deeper}, or use fewer nodes.")
    if short_of_memory:
        smaller = ", a smaller parallel.micro_batch_size" if size > 1 else ""
        return (f"{MEMORY}no pipelines that fill these nodes hold the model{asked and ' with ' + asked[2:]}. Use more "
                f"nodes{smaller} or a smaller model{', or leave these of `parallel` null' if asked else ''}.")
    return (f"no pipelines of at most {stages} fill {counted(world, 'rank')} with at most {parts}, one for each at "
            f"least{asked}. Change train.global_batch_size or model.num_layers"
            f"{', or leave these of `parallel` null' if asked else ''}.")


def _asked(task: Task) -> str:
    """Return the degrees and the size that were asked for, each after a comma; those that are not set are not named."""
    names = ("tensor", "pipeline", "data", "micro_batch_size")
    values = {name: getattr(task.settings, name) for name in names}
    return "".join(f", parallel.{name}={value}" for name, value in values.items() if value is not None)


def no_plan(reasons: Sequence[str], refusals: Mapping[str, Sequence[str]]) -> str:
    """Return the most frequent reason of every strategy, one a line where they differ.

    `reasons` are of layouts that were priced and do not fit: where there are some, the first is why.
    """
    if reasons:
        return reasons[0]
    strategies: dict[str, list[str]] = {}
    for name, messages in refusals.items():
        if messages:
            strategies.setdefault(Counter(messages).most_common(1)[0][0], []).append(name)
    if len(strategies) == 1:
        return next(iter(strategies))
    lines = [f"  {', '.join(names)}: {message.removeprefix(f'{names[0]}: ')}" for message, names in strategies.items()]
    return "\n".join(["no strategy has a plan:", *lines])
