"""Where numbers that are not finite came from: each rank knows what it had itself, before anything was summed.

A number that is not finite reaches every rank with the next sum, so the sum tells nothing. Each rank adds up its
outputs and its own gradients on its device, which costs one pass over each and no wait; only where a step came out
wrong are these sums looked at and told to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from holmes_hpc.values import Plan

WEIGHTS, OUTPUTS, GRADIENTS = 1, 2, 4
"""What a rank had that was not finite, as bits of one number."""

_NAMES = {WEIGHTS: "weights", OUTPUTS: "activations or a loss", GRADIENTS: "gradients"}


class OwnNumbers:
    """Notes whether what this rank itself has made in a step is finite."""

    def __init__(self, device: torch.device) -> None:
        self._outputs = self._gradients = torch.zeros((), device=device)

    def start(self) -> None:
        """Begin a step."""
        self._outputs = self._gradients = torch.zeros_like(self._outputs)

    def note_output(self, output: torch.Tensor) -> None:
        """Take what a forward of this rank came to."""
        self._outputs = self._outputs + output.detach().sum(dtype=torch.float32)

    def note_gradients(self, gradients: torch.Tensor) -> None:
        """Take gradients of this rank that are about to be summed with those of others."""
        self._gradients = self._gradients + gradients.sum(dtype=torch.float32)

    def odd(self, weights: Iterable[torch.Tensor]) -> int:
        """Return what was not finite in the step, as bits; this waits for the device."""
        finite = all(bool(torch.isfinite(weight).all()) for weight in weights)
        return (WEIGHTS * (not finite) + OUTPUTS * (not bool(torch.isfinite(self._outputs)))
                + GRADIENTS * (not bool(torch.isfinite(self._gradients))))


@dataclass(frozen=True)
class Origin:
    """The ranks that had something first that was not finite, and what; `alone` where ranks like them had not."""

    ranks: tuple[int, ...]
    what: int
    alone: bool

    def describe(self, plan: Plan) -> str:
        """Return the ranks with node and GPU, and what they had."""
        places = {place.rank: place for place in plan.ranks}
        names = []
        for rank in self.ranks:
            place = places[rank]
            device = "its CPU" if place.gpu == "cpu" else f"GPU {place.local_rank}, {place.gpu}"
            names.append(f"rank {rank} on node {place.node or place.slot} ({device})")
        alone = " alone" if self.alone else ""
        return f"{', '.join(names)}{alone} had {_NAMES[self.what]} that were not finite, before anything was summed"


def find_origin(plan: Plan, odd: Sequence[int]) -> Origin | None:
    """Return where numbers that are not finite began, by what each rank had (`OwnNumbers.odd`), in rank order.

    Weights come first, as no step that is allowed can spoil them. Activations spoil what follows in a pipeline,
    gradients what precedes. None where no rank had any: then a sum was spoiled on its way, or overflowed.
    """
    spoiled = tuple(rank for rank, bits in enumerate(odd) if bits & WEIGHTS)
    if spoiled:
        return Origin(spoiled, WEIGHTS, len(spoiled) < plan.world_size)
    for what in (OUTPUTS, GRADIENTS):
        origins = [first for pipeline in range(len(plan.pipelines)) if (first := _first(plan, pipeline, odd, what))]
        if origins:
            ranks = tuple(sorted({rank for each in origins for rank in each}))
            return Origin(ranks, what, 2 * len(origins) <= len(plan.pipelines))
    return None


def _first(plan: Plan, pipeline: int, odd: Sequence[int], what: int) -> tuple[int, ...]:
    """Return the ranks of the first stage of a pipeline, in the order in which it computes, that had `what`."""
    stages = plan.pipelines[pipeline].stages
    for stage in stages if what == OUTPUTS else reversed(stages):
        found = tuple(rank for rank in stage.ranks if odd[rank] & what)
        if found:
            return found
    return ()
