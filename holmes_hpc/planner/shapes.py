"""What a strategy proposes: which ranks form which stage, before layers and micro-batches are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.groups import GroupRules
from holmes_hpc.planner.settings import Task

Part = tuple[int, ...]
"""The ranks of one tensor-parallel group."""


@dataclass(frozen=True)
class Shape:
    """For every stage its data-parallel parts, each a tensor-parallel group; stages may differ in their number.

    `words` names the layout for people. `equal_pipelines` means that all pipelines take equally many micro-batches.
    """

    strategy: str
    words: str
    stages: tuple[tuple[Part, ...], ...]
    rules: GroupRules
    equal_pipelines: bool = False


def tensor_degrees(task: Task) -> tuple[int, ...]:
    """Return the tensor-parallel degrees to consider, those that the engine runs first.

    Raises PlanRefusedError when the asked degree does not fit the nodes or the heads.
    """
    gpus = sorted({node.gpus for node in task.cluster.nodes})
    asked = task.settings.tensor
    if asked is None:
        return tuple(t for t in range(1, gpus[0] + 1) if _fits(task, t))
    if not _fits(task, asked):
        architecture = task.architecture
        raise PlanRefusedError(
            f"parallel.tensor={asked}: a tensor-parallel group lies inside one node, and must divide the node's GPUs "
            f"({', '.join(map(str, gpus))}), the {architecture.num_heads} heads and the {architecture.num_kv_heads} "
            f"key-value heads. Set parallel.tensor to one of "
            f"{', '.join(str(t) for t in range(1, gpus[0] + 1) if _fits(task, t))}.")
    return (asked,)


def _fits(task: Task, tensor: int) -> bool:
    heads = (task.architecture.num_heads, task.architecture.num_kv_heads, task.architecture.ffn_hidden_size)
    return all(node.gpus % tensor == 0 for node in task.cluster.nodes) and all(n % tensor == 0 for n in heads)


def tensor_groups(ranks: Sequence[int], tensor: int) -> tuple[Part, ...]:
    """Return consecutive groups of `tensor` ranks."""
    return tuple(tuple(ranks[i:i + tensor]) for i in range(0, len(ranks), tensor))


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number in rising order."""
    return tuple(n for n in range(1, number + 1) if number % n == 0)
