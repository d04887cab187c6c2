"""What strategies propose, built in or added by a plug-in, and what each takes for granted.

A strategy's function stands in the module of its name; what else is to know of it, in `values/strategy_kinds.py`.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

from holmes_hpc import registry
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.strategies.estimates import estimate_shapes, propose_shape
from holmes_hpc.planner.strategies.proposals import Proposal
from holmes_hpc.planner.strategies.shapes import Shape, tensor_degrees
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Pipeline
from holmes_hpc.values.strategy_kinds import STRATEGY_KINDS, strategy_kind
from holmes_hpc.words import counted

_OPEN = {"layer_split": "adaptive"}
"""The value of a setting that leaves the choice to the planner, where that is not None."""


def compared_strategies() -> tuple[str, ...]:
    """Return the strategies that `parallel.strategy=auto` compares: all that search."""
    return (*(kind.name for kind in STRATEGY_KINDS.values() if not kind.is_written), *registry.STRATEGIES)


def written_pipelines(task: Task) -> tuple[tuple[Pipeline, ...], int]:
    """Return the pipelines of a strategy that searches nothing, and the micro-batch size."""
    found: tuple[tuple[Pipeline, ...], int] = _proposed(task.settings.strategy, task)
    return found


def _proposed(name: str, *arguments: Any) -> Any:
    """Return what a built-in strategy proposes: each stands in the module of its name."""
    module = importlib.import_module(f"holmes_hpc.planner.strategies.{name}")
    return getattr(module, STRATEGY_KINDS[name].proposes.value)(*arguments)


def shapes_of(name: str, task: Task, tensor: int) -> tuple[Shape, ...]:
    """Return the shapes that a strategy proposes for a tensor-parallel degree.

    Raises PlanRefusedError when it has nothing to propose, or when an added one proposes what is no layout.
    """
    if name in STRATEGY_KINDS:
        return tuple(_proposed(name, task, tensor))
    proposed = tuple(registry.STRATEGIES[name](task, tensor))
    return tuple(_checked(name, shape, task, tensor) for shape in proposed)


def propose_by(name: str, task: Task, tensor: int | None, refusals: list[PlanRefusedError]) -> list[Proposal]:
    """Return what a strategy proposes for a tensor-parallel degree (None: it chooses degrees itself).

    What it refuses is added to `refusals`. Raises PlanRefusedError when it can propose nothing at all.
    """
    if strategy_kind(name).cuts_layers:
        if task.settings.chunks > 1:
            raise PlanRefusedError(f"{name}: it does not plan interleaved pipelines. Set parallel.chunks=1.")
        if task.settings.layer_split != "adaptive":
            raise PlanRefusedError(f"{name}: it cuts layers by speed and memory itself. Set parallel.layer_split="
                                   "adaptive, or parallel=holmes or megatron, which cut them as asked.")
        return list(_proposed(name, task))
    proposals = []
    for found in estimate_shapes(task, [shape.in_chunks(task.settings.chunks)
                                        for shape in shapes_of(name, task, tensor or 1)]):
        if isinstance(found, PlanRefusedError):
            refusals.append(found)
        else:
            proposals.append(propose_shape(task, found))
    return proposals


def degrees_of(name: str, task: Task) -> Sequence[int | None]:
    """Return the tensor-parallel degrees that a strategy is asked for, one after the other until one fits."""
    return (None,) if strategy_kind(name).cuts_layers else tensor_degrees(task)


def with_defaults(task: Task, name: str) -> Task:
    """Return the task with a strategy's defaults where it is one of several: alone its defaults are settings."""
    settings = task.settings
    if settings.strategy == name:
        return task
    changes = {key: value for key, value in strategy_kind(name).defaults if getattr(settings, key) == _OPEN.get(key)}
    return dataclasses.replace(task, settings=settings.replace(**changes)) if changes else task


def _checked(name: str, shape: Any, task: Task, tensor: int) -> Shape:
    if not isinstance(shape, Shape):
        raise PlanRefusedError(f"strategy {name}: it proposed a {type(shape).__name__}, not a Shape. Mend the plug-in.")
    parts = [part for stage in shape.stages for part in stage]
    ranks = sorted(rank for part in parts for rank in part)
    problem = ""
    if ranks != list(range(task.cluster.world_size)):
        problem = f"its stages hold the ranks {ranks}, and each of 0 to {task.cluster.world_size - 1} must be in one"
    elif any(len(part) != tensor for part in parts):
        problem = (f"a part is a tensor-parallel group, here of {counted(tensor, 'rank')}, and it has parts of "
                   f"{_sizes(parts)}")
    elif any(task.cluster.node_of(rank).slot != task.cluster.node_of(part[0]).slot for part in parts for rank in part):
        problem = "a tensor-parallel group lies inside one node"
    if problem:
        raise PlanRefusedError(f"strategy {name}, {shape.words!r}: {problem}. Mend the plug-in.")
    return dataclasses.replace(shape, strategy=name)


def _sizes(parts: list[tuple[int, ...]]) -> str:
    return ", ".join(str(size) for size in sorted({len(part) for part in parts}))
