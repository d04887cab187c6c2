"""The strategies: who proposes shapes, built in or added by a plug-in, and the check of what an added one proposes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from holmes_hpc import registry
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.holmes import holmes_shapes
from holmes_hpc.planner.megatron import megatron_shapes
from holmes_hpc.planner.settings import Task
from holmes_hpc.planner.shapes import Shape

_BUILTIN: dict[str, Callable[[Task, int], tuple[Shape, ...]]] = {
    "holmes": holmes_shapes, "megatron": megatron_shapes,
}


def names() -> tuple[str, ...]:
    """Return the strategies that propose shapes, built-in ones first."""
    return (*_BUILTIN, *registry.STRATEGIES)


def shapes_of(name: str, task: Task, tensor: int) -> tuple[Shape, ...]:
    """Return what a strategy proposes for a tensor-parallel degree.

    Raises PlanRefusedError when it has nothing to propose, or when an added one proposes what is no layout.
    """
    if name in _BUILTIN:
        return _BUILTIN[name](task, tensor)
    proposed = tuple(registry.STRATEGIES[name](task, tensor))
    return tuple(_checked(name, shape, task, tensor) for shape in proposed)


def _checked(name: str, shape: Any, task: Task, tensor: int) -> Shape:
    if not isinstance(shape, Shape):
        raise PlanRefusedError(f"strategy {name}: it proposed a {type(shape).__name__}, not a Shape. Mend the plug-in.")
    parts = [part for stage in shape.stages for part in stage]
    ranks = sorted(rank for part in parts for rank in part)
    problem = ""
    if ranks != list(range(task.cluster.world_size)):
        problem = f"its stages hold the ranks {ranks}, and each of 0 to {task.cluster.world_size - 1} must be in one"
    elif any(len(part) != tensor for part in parts):
        problem = f"a part is a tensor-parallel group, here of {tensor} ranks, and it has parts of {_sizes(parts)}"
    elif any(task.cluster.node_of(rank).slot != task.cluster.node_of(part[0]).slot for part in parts for rank in part):
        problem = "a tensor-parallel group lies inside one node"
    if problem:
        raise PlanRefusedError(f"strategy {name}, {shape.words!r}: {problem}. Mend the plug-in.")
    return dataclasses.replace(shape, strategy=name)


def _sizes(parts: list[tuple[int, ...]]) -> str:
    return ", ".join(str(size) for size in sorted({len(part) for part in parts}))
