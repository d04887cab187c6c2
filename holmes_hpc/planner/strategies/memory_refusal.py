"""Why a layout does not fit into memory: which rank, what of it is large, and which setting to change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import fields

from holmes_hpc.planner.cost.rank_memory import USABLE_FRACTION, RankMemory, rank_memory
from holmes_hpc.planner.cost.stages import GIB, ComputeCost
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.layout.sharing import updated_parameters
from holmes_hpc.planner.simulation.prices import compute_cost
from holmes_hpc.planner.simulation.representatives import representatives
from holmes_hpc.planner.strategies.shapes import fits
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Prediction

LAYOUT = ". Layout: "
"""What stands before the layout in a refusal."""
_LEAST_PART_GIB = 0.1
_LAST_RESORT = "Take more nodes or a smaller model"


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


def capacity_remedies(task: Task, ranks: int, stages: int, tensor: int, size: int) -> str:
    """Return what would let the stages of a layout hold more layers: `ranks` of them in a row, each of so many."""
    deeper = stages < task.architecture.num_layers and ranks * tensor < task.cluster.world_size
    found = [*["parallel.pipeline higher"] * deeper, *["parallel.micro_batch_size lower"] * (size > 1),
             *["parallel.tensor higher"] * _may_be_wider(task, tensor)]
    return f"Set {' or '.join(found)}, or take more nodes or a smaller model" if found else _LAST_RESORT


def _words(task: Task, layout: Layout, words: str, rank: int, need: float) -> str:
    node = task.cluster.node_of(rank)
    parts = _parts(task, layout, rank, need)
    told = ", ".join(f"{name} {gib:.1f}" for name, gib in sorted(parts.items(), key=lambda item: -item[1])
                     if gib >= _LEAST_PART_GIB)
    places = sorted({(s, len(pipeline.stages)) for pipeline in layout.pipelines
                     for s, stage in enumerate(pipeline.stages) if rank in stage.ranks})
    stages = " and ".join(f"{s} of {depth}" for s, depth in places)
    usable = task.machine.memory_gib(node) * USABLE_FRACTION
    settings = " or ".join([*_remedies(task, layout, parts, usable), *_narrower(task, layout, rank, parts, usable)])
    remedies = f"Set {settings}; or take more nodes or a smaller model" if settings else _LAST_RESORT
    return (f"memory: rank {rank} ({node.slot}, {task.machine.gpu(node).name}) needs {need:.1f} GiB as stage {stages}, "
            f"and has {usable_words(task.machine.memory_gib(node))}: {told}{LAYOUT}{words}. {remedies}.")


def _parts(task: Task, layout: Layout, rank: int, need: float) -> Mapping[str, float]:
    """Return the memory of a rank by parts in GiB; the activations are what the others leave of `need`."""
    parts = _still_parts(task, layout, rank, compute_cost(task))
    parts["activations"] += max(0.0, need - sum(parts.values()))
    return parts


def _still_parts(task: Task, layout: Layout, rank: int, cost: ComputeCost) -> dict[str, float]:
    """Return the memory of a rank by parts in GiB with no micro-batch in flight."""
    few = representatives(task, layout)
    known = rank_memory(cost, task.cluster, few.layout.pipelines, layout.micro_batch_size, {},
                        updated_parameters(task, few.layout))[few.replicas.rank_like()[rank]]
    return {part.name: float(getattr(known, part.name)) / GIB for part in fields(RankMemory)}


def _remedies(task: Task, layout: Layout, parts: Mapping[str, float], usable: float) -> Iterator[str]:
    """Yield the settings that would make a large part smaller, of those that the search has not tried itself.

    Less of activations helps only where all the rest fits.
    """
    settings = task.settings
    manual = settings.strategy_kind.is_written
    tensor = max(stage.tensor for pipeline in layout.pipelines for stage in pipeline.stages)
    stages = max(len(pipeline.stages) for pipeline in layout.pipelines)
    # In chunks the same ranks hold several stages.
    depth = max(len({stage.ranks for stage in pipeline.stages}) for pipeline in layout.pipelines)
    states = parts["parameters"] + parts["gradients"] + parts["optimizer"]
    if states + parts["fixed"] < usable:
        if layout.micro_batch_size > 1:
            yield f"parallel.micro_batch_size below {layout.micro_batch_size}"
        if settings.recompute != "full" and (manual or not settings.search_recompute):
            yield "parallel.recompute=full"
    shared = any(len(reduction.owners) > 1 for reduction in layout.reductions)
    if parts["activations"] + parts["workspace"] <= states and shared and not settings.sharded:
        yield "optimizer.sharded=true"
    if manual:
        yield "parallel.pipelines with more stages"
    elif stages < task.architecture.num_layers and depth * tensor < task.cluster.world_size:
        yield f"parallel.pipeline above {depth}"
    if _may_be_wider(task, tensor):
        yield f"parallel.tensor above {tensor}"


def _may_be_wider(task: Task, tensor: int) -> bool:
    """Return whether a tensor-parallel degree was asked for and a wider one fits; the search tries the others."""
    most = min(node.gpus for node in task.cluster.nodes)
    return task.settings.tensor is not None and any(fits(task, wider) for wider in range(tensor + 1, most + 1))


def _narrower(task: Task, layout: Layout, rank: int, parts: Mapping[str, float], usable: float) -> Iterator[str]:
    """Yield the 16-bit precision that all GPUs have, if a rank may fit with it.

    Activations halve at best; parameters have a second copy of 32 bit.
    """
    kinds = [task.machine.gpu(node).peak_tflops for node in task.cluster.nodes]
    known = [name for name in ("bfloat16", "float16") if all(name in kind for kind in kinds)]
    if task.settings.precision != "float32" or not known:
        return
    other = dataclasses.replace(task, settings=task.settings.replace(precision=known[0]))
    still = sum(_still_parts(task, layout, rank, compute_cost(other)).values())
    if still + parts["activations"] / 2 <= usable:
        yield f"train.precision={known[0]}"
