"""What a strategy proposes: which ranks form which stage, before layers and micro-batches are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.task import Task

Part = tuple[int, ...]
"""The ranks of one tensor-parallel group."""


@dataclass(frozen=True)
class Shape:
    """For every stage its data-parallel parts, each a tensor-parallel group; stages may differ in their number.

    `words` names the layout for people; of stages that all pipelines share, `shared` has (kind of nodes, tensor degree,
    width) instead. `equal_pipelines` means that all pipelines take equally many micro-batches.
    With `chunks` a rank has several stages, and `stages` lists them all in layer order.
    """

    strategy: str
    words: str
    stages: tuple[tuple[Part, ...], ...]
    rules: GroupRules
    equal_pipelines: bool = False
    chunks: int = 1
    shared: tuple[tuple[str, int, int], ...] = ()

    def in_chunks(self, chunks: int) -> Shape:
        """Return the shape whose pipelines go round its stages `chunks` times."""
        if chunks == 1:
            return self
        return replace(self, stages=self.stages * chunks, chunks=chunks)


def tensor_degrees(task: Task) -> tuple[int, ...]:
    """Return the tensor-parallel degrees to consider, narrow ones first.

    Raises PlanRefusedError when the asked degree does not fit the nodes or the model.
    """
    gpus = sorted({node.gpus for node in task.cluster.nodes})
    asked = task.settings.tensor
    if asked is None:
        return tuple(t for t in range(1, gpus[0] + 1) if fits(task, t))
    if not fits(task, asked):
        nodes = "" if all(gpus_of % asked == 0 for gpus_of in gpus) else (
            f"a tensor-parallel group lies inside one node, and {asked} does not divide the node's GPUs "
            f"({', '.join(map(str, gpus))})")
        raise PlanRefusedError(
            f"parallel.tensor={asked}: {nodes or indivisible(task, asked)}. Set parallel.tensor to one of "
            f"{', '.join(str(t) for t in range(1, gpus[0] + 1) if fits(task, t))}"
            + ("." if nodes else ", or change the model."))
    return (asked,)


def indivisible(task: Task, tensor: int) -> str:
    """Return what of the model cannot be divided between `tensor` ranks, in words; nothing when all of it can.

    Tables are cut at any row, so a vocabulary need not divide. Compiled layers (`train.compile`) can be divided only
    where that was asked for, which is refused for a reason of its own.
    """
    if task.settings.compiled and tensor > 1 and task.settings.tensor is None and not task.settings.pipelines:
        return f"{tensor} ranks cannot divide compiled layers (train.compile)"
    architecture = task.architecture
    parts = [
        (architecture.num_heads, f"the {architecture.num_heads} heads (model.num_heads)"),
        (architecture.num_kv_heads, f"the {architecture.num_kv_heads} key-value heads (model.num_kv_heads; no head is "
                                    "held twice)"),
        (architecture.ffn_hidden_size, f"the feed-forward width {architecture.ffn_hidden_size} "
                                       "(model.ffn_hidden_size)"),
    ]
    if task.settings.sequence_parallel:
        parts.append((architecture.sequence_length, f"the {architecture.sequence_length} tokens of a sample "
                                                    "(model.sequence_length), which sequence parallelism splits"))
    wrong = [words for number, words in parts if number % tensor]
    if architecture.vocab_size < tensor:
        wrong.append(f"the {architecture.vocab_size} tokens of the vocabulary (model.vocab_size; each rank needs one)")
    return f"{tensor} ranks cannot divide {' and '.join(wrong)}" if wrong else ""


def fits(task: Task, tensor: int) -> bool:
    """Return whether groups of `tensor` ranks fill every node and divide the model."""
    return all(node.gpus % tensor == 0 for node in task.cluster.nodes) and not indivisible(task, tensor)


def tensor_groups(ranks: Sequence[int], tensor: int) -> tuple[Part, ...]:
    """Return consecutive groups of `tensor` ranks."""
    return tuple(tuple(ranks[i:i + tensor]) for i in range(0, len(ranks), tensor))


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number in rising order."""
    return tuple(n for n in range(1, number + 1) if number % n == 0)
