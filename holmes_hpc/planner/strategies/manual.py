"""The manual strategy: `parallel.pipelines` says who computes what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from holmes_hpc.errors import ConfigurationError, PlanRefusedError
from holmes_hpc.planner.layout.pipelines import apportion, count_microbatches
from holmes_hpc.planner.strategies.shapes import indivisible
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Pipeline, Stage
from holmes_hpc.words import counted

_EXAMPLE = "[{microbatches: 4, stages: [{ranks: [0], layers: 2}, {ranks: [1], layers: 2}]}]"


def pipelines(task: Task) -> tuple[tuple[Pipeline, ...], int]:
    """Return the pipelines that the user wrote and the micro-batch size.

    Where `microbatches` is missing everywhere, the pipelines share them evenly. Raises ConfigurationError for a
    malformed list, PlanRefusedError for one that does not fit the model, the ranks or the batch.
    """
    written = task.settings.pipelines
    if not written:
        raise ConfigurationError("parallel=manual needs parallel.pipelines, which is empty. "
                                 f"Write it as {_EXAMPLE}.")
    stages = [_stages(task, index, pipeline) for index, pipeline in enumerate(written)]
    _check_ranks(task, stages)
    _check_rounds(stages, task.settings.chunks)
    counts = [_number(pipeline.get("microbatches"), f"parallel.pipelines[{index}].microbatches")
              for index, pipeline in enumerate(written)]
    given = [count for count in counts if count is not None]
    if given and len(given) < len(counts):
        raise ConfigurationError("parallel.pipelines: some pipelines name microbatches and some do not. "
                                 "Write them for all or for none.")
    size = _micro_batch_size(task, sum(given), len(counts))
    total = count_microbatches(task.settings.global_batch_size, size)
    shared = tuple(given) if given else apportion(total, [Fraction(1)] * len(counts))
    if sum(shared) != total:
        raise PlanRefusedError(
            f"parallel.pipelines has {counted(sum(shared), 'micro-batch')} of {size} samples, and "
            f"train.global_batch_size={task.settings.global_batch_size} needs {total}. Change microbatches, "
            "parallel.micro_batch_size or the batch.")
    return tuple(Pipeline(count, each) for count, each in zip(shared, stages, strict=True)), size


def _stages(task: Task, index: int, pipeline: Mapping[str, Any]) -> tuple[Stage, ...]:
    path = f"parallel.pipelines[{index}]"
    unknown = sorted(set(pipeline) - {"microbatches", "stages"}) if isinstance(pipeline, Mapping) else ["?"]
    if unknown or not isinstance(pipeline.get("stages"), list) or not pipeline["stages"]:
        raise ConfigurationError(f"{path}: expected microbatches and a list of stages. Write it as {_EXAMPLE}.")
    built, first = [], 0
    for s, stage in enumerate(pipeline["stages"]):
        where = f"{path}.stages[{s}]"
        if not isinstance(stage, Mapping) or set(stage) != {"ranks", "layers"}:
            raise ConfigurationError(f"{where}: expected ranks and layers, such as {{ranks: [0], layers: 2}}.")
        layers = _number(stage["layers"], f"{where}.layers") or 0
        built.append(Stage(_ranks(task, stage["ranks"], f"{where}.ranks"), first, layers))
        first += layers
    if first != task.architecture.num_layers:
        raise PlanRefusedError(f"{path}: its stages hold {counted(first, 'layer')}, and the model has "
                               f"{task.architecture.num_layers}. Change the layers of its stages.")
    return tuple(built)


def _ranks(task: Task, ranks: Any, path: str) -> tuple[int, ...]:
    world = task.cluster.world_size
    valid = isinstance(ranks, list) and ranks and all(
        isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < world for rank in ranks)
    if not valid or len(set(ranks)) < len(ranks):
        raise ConfigurationError(f"{path}={ranks}: expected different ranks from 0 to {world - 1}.")
    if len({task.cluster.node_of(rank).slot for rank in ranks}) > 1:
        raise PlanRefusedError(f"{path}={ranks}: the ranks of a stage are its tensor-parallel group and must lie in "
                               "one node. For data parallelism write one pipeline for each rank.")
    problem = indivisible(task, len(ranks))
    if problem:
        raise PlanRefusedError(f"{path}={ranks}: {problem}. Write fewer ranks, or change the model.")
    return tuple(ranks)


def _check_ranks(task: Task, stages: Sequence[Sequence[Stage]]) -> None:
    used = {rank for pipeline in stages for stage in pipeline for rank in stage.ranks}
    idle = sorted(set(range(task.cluster.world_size)) - used)
    if idle:
        raise PlanRefusedError(f"parallel.pipelines: {_named('rank', idle)} in no stage. Put every rank of the "
                               "cluster into a stage, or take nodes or gpus_per_node away from the cluster.")


def _check_rounds(stages: Sequence[Sequence[Stage]], chunks: int) -> None:
    """Refuse pipelines that do not go round their ranks as often as there are chunks."""
    for index, pipeline in enumerate(stages):
        period, rest = divmod(len(pipeline), chunks)
        first = [stage.ranks for stage in pipeline[:period]]
        alone = len({rank for ranks in first for rank in ranks}) == sum(map(len, first))
        if chunks > 1 and (rest or not alone or [stage.ranks for stage in pipeline] != first * chunks):
            raise PlanRefusedError(
                f"parallel.pipelines[{index}]: with parallel.chunks={chunks} a pipeline goes round its ranks {chunks} "
                f"times, and the ranks of these {counted(len(pipeline), 'stage')} do not. Write the stages of every "
                f"rank {chunks} times, such as those of ranks 0 and 1 as {', '.join(['0, 1'] * chunks)}, or leave "
                "parallel.chunks out.")


def _named(word: str, numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers))
    return f"{word} {listed} is" if len(numbers) == 1 else f"{word}s {listed} are"


def _number(value: Any, path: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{path}={value}: expected a whole number from 1.")
    return value


def _micro_batch_size(task: Task, total: int, pipelines: int) -> int:
    """Return the asked size, or the one that the written micro-batches imply, or one that gives each pipeline four."""
    settings = task.settings
    if settings.micro_batch_size is not None:
        return int(settings.micro_batch_size)
    batch = settings.global_batch_size
    if total:
        if batch % total:
            raise PlanRefusedError(f"train.global_batch_size={batch} is not divisible by the {total} micro-batches of "
                                   "parallel.pipelines. Change one of them.")
        return batch // total
    sizes = [size for size in (1, 2, 4, 8, 16) if batch % size == 0 and batch // size >= 4 * pipelines]
    return max(sizes, default=1)
