"""Why a layout does not fit into memory: which rank, what of it is large, and which setting to change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import fields

from holmes_hpc.planner.cost.rank_memory import USABLE_FRACTION, RankMemory, rank_memory
from holmes_hpc.planner.cost.stages import GIB, ComputeCost
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.layout.sharing import updated_parameters
from holmes_hpc.planner.search.candidate import Candidate
from holmes_hpc.planner.simulation.prices import compute_cost
from holmes_hpc.planner.simulation.representatives import representatives
from holmes_hpc.planner.strategies.memory_refusal import LAST_RESORT, may_be_wider, widest
from holmes_hpc.planner.task import Task
from holmes_hpc.planner.telling.layouts import layout_words

_LEAST_PART_GIB = 0.1


def memory_cause(candidate: Candidate) -> str:
    """Return why a layout does not fit into memory, naming the worst rank; nothing where it fits."""
    return _words(candidate)[0]


def memory_words(candidate: Candidate) -> str:
    """Return the same with the layout and what to do."""
    cause, remedies = _words(candidate)
    return f"{cause}. Layout: {layout_words(candidate)}. {remedies}."


def usable_words(capacity_gib: float) -> str:
    """Return what of a GPU's memory may be used, beside all of it: `75.2 usable of 80.0`."""
    return f"{capacity_gib * USABLE_FRACTION:.1f} usable of {capacity_gib:.1f}"


def _words(candidate: Candidate) -> tuple[str, str]:
    """Return the cause and the remedies."""
    if candidate.shortage is None:
        return "", ""
    task, layout, rank, need = candidate.task, candidate.layout, candidate.shortage.rank, candidate.shortage.need_gib
    node = task.cluster.node_of(rank)
    parts = _parts(task, layout, rank, need)
    told = ", ".join(f"{name} {gib:.1f}" for name, gib in sorted(parts.items(), key=lambda item: -item[1])
                     if gib >= _LEAST_PART_GIB)
    places = sorted({(s, len(pipeline.stages)) for pipeline in layout.pipelines
                     for s, stage in enumerate(pipeline.stages) if rank in stage.ranks})
    stages = " and ".join(f"{s} of {depth}" for s, depth in places)
    usable = task.machine.memory_gib(node) * USABLE_FRACTION
    settings = " or ".join([*_remedies(task, layout, parts, usable), *_narrower(task, layout, rank, parts, usable)])
    remedies = f"Set {settings}; or take more nodes or a smaller model" if settings else LAST_RESORT
    cause = (f"memory: rank {rank} ({node.slot}, {task.machine.gpu(node).name}) needs {need:.1f} GiB as stage "
             f"{stages}, and has {usable_words(task.machine.memory_gib(node))}: {told}")
    return cause, remedies


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
        return
    most, layers = task.cluster.world_size // (settings.data or 1), task.architecture.num_layers
    if settings.pipeline is not None and stages < layers and depth * tensor < most:
        width = tensor if settings.tensor else widest(task, 1)
        times = min(most, layers * width) / (depth * tensor)
        if _least(task, layout, parts, times, width / tensor) <= usable:
            yield f"parallel.pipeline above {depth}"
    if may_be_wider(task, tensor):
        width = widest(task, settings.pipeline or 1)
        times = min(most, (settings.pipeline or layers) * width) / (depth * tensor)
        if _least(task, layout, parts, times, width / tensor) <= usable:
            yield f"parallel.tensor above {tensor}"


def _least(task: Task, layout: Layout, parts: Mapping[str, float], times: float, wider: float) -> float:
    """Return the least that a rank may need where `times` as many ranks share the model, `wider` of them its layers.

    That is in GiB, and no estimate: activations count only where neither recomputation nor smaller micro-batches are
    left to make them small.
    """
    settings = task.settings
    weights = (parts["parameters"] + parts["gradients"]) / times
    optimizer = parts["optimizer"] if settings.sharded else parts["optimizer"] / times
    is_least = layout.micro_batch_size == 1 and (settings.recompute == "full" or not settings.search_recompute)
    return weights + optimizer + parts["fixed"] + (parts["activations"] / wider if is_least else 0.0)


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
