"""Why a layout does not fit into memory: which rank, what of it is large, and which setting to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from holmes_hpc.planner.compute_cost import GIB
from holmes_hpc.planner.layouts import Layout
from holmes_hpc.planner.memory import USABLE_FRACTION, RankMemory, rank_memory
from holmes_hpc.planner.representatives import representatives
from holmes_hpc.planner.settings import Task
from holmes_hpc.planner.sharing import updated_parameters
from holmes_hpc.planner.step_prices import compute_cost
from holmes_hpc.values import Prediction

LAYOUT = ". Layout: "
"""What stands before the layout in a refusal."""
_LEAST_PART_GIB = 0.1


def memory_problem(task: Task, layout: Layout, words: str, predicted: Prediction) -> str:
    """Return why a layout does not fit into memory, naming the worst rank, or nothing; `words` are those for it."""
    worst, over = None, 0.0
    for node in task.cluster.nodes:
        has = task.machine.memory_gib(node) * USABLE_FRACTION
        for rank in task.cluster.ranks_of(node):
            need = predicted.memory_gib_per_rank[rank]
            if need - has > over:
                worst, over = rank, need - has
    return "" if worst is None else _words(task, layout, words, worst, predicted.memory_gib_per_rank[worst])


def usable_words(capacity_gib: float) -> str:
    """Return what of a GPU's memory may be used, beside all of it: `75.2 usable of 80.0`."""
    return f"{capacity_gib * USABLE_FRACTION:.1f} usable of {capacity_gib:.1f}"


def _words(task: Task, layout: Layout, words: str, rank: int, need: float) -> str:
    node = task.cluster.node_of(rank)
    parts = _parts(task, layout, rank, need)
    told = ", ".join(f"{name} {gib:.1f}" for name, gib in sorted(parts.items(), key=lambda item: -item[1])
                     if gib >= _LEAST_PART_GIB)
    places = sorted({(s, len(pipeline.stages)) for pipeline in layout.pipelines
                     for s, stage in enumerate(pipeline.stages) if rank in stage.ranks})
    stages = " and ".join(f"{s} of {depth}" for s, depth in places)
    settings = " or ".join(_remedies(task, layout, parts))
    remedies = f"Set {settings}; or take" if settings else "Take"
    return (f"memory: rank {rank} ({node.slot}, {task.machine.gpu(node).name}) needs {need:.1f} GiB as stage {stages}, "
            f"and has {usable_words(task.machine.memory_gib(node))}: {told}{LAYOUT}{words}. "
            f"{remedies} more nodes or a smaller model.")


def _parts(task: Task, layout: Layout, rank: int, need: float) -> Mapping[str, float]:
    """Return the memory of a rank by parts in GiB; the activations are what the others leave of `need`."""
    few = representatives(task, layout)
    like = few.replicas.rank_like()[rank]
    known = rank_memory(compute_cost(task), task.cluster, few.layout.pipelines, layout.micro_batch_size, {},
                        updated_parameters(task, few.layout))[like]
    parts = {part.name: float(getattr(known, part.name)) / GIB for part in fields(RankMemory)}
    parts["activations"] += max(0.0, need - sum(parts.values()))
    return parts


def _remedies(task: Task, layout: Layout, parts: Mapping[str, float]) -> Iterator[str]:
    """Yield the settings that would make the largest part smaller."""
    settings = task.settings
    tensor = max(len(stage.ranks) for pipeline in layout.pipelines for stage in pipeline.stages)
    stages = max(len(pipeline.stages) for pipeline in layout.pipelines)
    # In chunks the same ranks hold several stages.
    depth = max(len({stage.ranks for stage in pipeline.stages}) for pipeline in layout.pipelines)
    if parts["activations"] + parts["workspace"] > parts["parameters"] + parts["gradients"] + parts["optimizer"]:
        if layout.micro_batch_size > 1:
            yield f"parallel.micro_batch_size below {layout.micro_batch_size}"
        if settings.recompute != "full":
            yield "parallel.recompute=full"
    elif not settings.sharded:
        yield "optimizer.sharded=true"
    if settings.strategy == "manual":
        yield "parallel.pipelines with more stages"
    elif stages < task.architecture.num_layers and depth * tensor < task.cluster.world_size:
        yield f"parallel.pipeline above {depth}"
    if settings.strategy != "manual" and any(node.gpus > tensor for node in task.cluster.nodes):
        yield f"parallel.tensor above {tensor}"
    if settings.precision == "float32":
        yield "train.precision=bfloat16"
