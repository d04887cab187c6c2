"""The strategies that propose layouts, and what each takes for granted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.asymmetric import asymmetric_proposals
from holmes_hpc.planner.candidates import Candidate, ShapeFacts, StagePrices, make_candidate, micro_batch_sizes
from holmes_hpc.planner.flashflex import flashflex_proposals
from holmes_hpc.planner.holmes import holmes_shapes
from holmes_hpc.planner.megatron import megatron_shapes
from holmes_hpc.planner.pipelines import build_pipelines, count_microbatches
from holmes_hpc.planner.proposals import Proposal
from holmes_hpc.planner.settings import Task
from holmes_hpc.planner.shapes import Shape, tensor_degrees
from holmes_hpc.values import Pipeline

_SHAPES: dict[str, Callable[[Task, int], tuple[Shape, ...]]] = {
    "holmes": holmes_shapes, "megatron": megatron_shapes,
}
SEARCHED = ("holmes", "megatron", "flashflex", "auto")
"""The strategies that `auto` compares; the last is its own search for unlike pipelines."""


def propose_by(name: str, task: Task, tensor: int | None, refusals: list[str]) -> list[Proposal]:
    """Return what a strategy proposes for a tensor-parallel degree (None: it chooses degrees itself).

    What it refuses is added to `refusals`. Raises PlanRefusedError when it can propose nothing at all.
    """
    if name == "flashflex":
        return flashflex_proposals(task)
    if name == "auto":
        return asymmetric_proposals(task)
    candidates: list[Proposal] = []
    prices = StagePrices(task)
    for shape in _SHAPES[name](task, tensor or 1):
        facts = ShapeFacts(task, shape, prices)
        for size in micro_batch_sizes(task, shape):
            try:
                candidates.append(_proposal(task, make_candidate(task, shape, size, facts)))
            except PlanRefusedError as refusal:
                refusals.append(str(refusal))
    return candidates


def degrees_of(name: str, task: Task) -> Sequence[int | None]:
    """Return the tensor-parallel degrees that a strategy is asked for, one after the other until one fits."""
    return (None,) if name in ("flashflex", "auto") else tensor_degrees(task)


def with_defaults(task: Task, name: str) -> Task:
    """Return the task with the defaults of Megatron where the baseline is only one of several strategies."""
    settings = task.settings
    if name != "megatron" or settings.strategy == "megatron":
        return task
    split = "uniform" if settings.layer_split == "adaptive" else settings.layer_split
    warmup = 0 if settings.warmup_extra is None else settings.warmup_extra
    return dataclasses.replace(task, settings=settings.replace(layer_split=split, warmup_extra=warmup))


def _proposal(task: Task, candidate: Candidate) -> Proposal:
    microbatches = count_microbatches(task.settings.global_batch_size, candidate.micro_batch_size)

    def build() -> tuple[Pipeline, ...]:
        return build_pipelines(candidate.shape.stages, candidate.layers, microbatches)

    actions = 6 * microbatches * sum(len(parts[0]) for parts in candidate.shape.stages)
    return Proposal(candidate.shape.strategy, candidate.words, task, candidate.micro_batch_size,
                    candidate.shape.rules, candidate.estimate_seconds, candidate.fits, actions, build)
