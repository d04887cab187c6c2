"""The optimizer of one rank's shards, and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holmes_hpc.engine.flat import Bucket, FlatReduction

MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
"""The tensors that each optimizer keeps beside a parameter, by torch's names."""


def learning_rate(step: int, settings: Any, total_steps: int) -> float:
    """Return the learning rate of `step` (counted from 1): linear warm-up, then a cosine down to `min_lr`.

    `settings` is the group `optimizer` of the configuration; the cosine ends at `decay_steps`, by default
    `total_steps`.
    """
    warmup, end = settings.warmup_steps, settings.decay_steps or total_steps
    if step <= warmup:
        return settings.lr * step / warmup
    if step >= end:
        return settings.min_lr
    progress = (step - warmup) / (end - warmup)
    return settings.min_lr + 0.5 * (settings.lr - settings.min_lr) * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Run:
    """A contiguous range of a shard that is updated as one tensor: `begin` and `end` in the flat buffer."""

    flat: FlatReduction
    bucket: Bucket
    begin: int
    end: int
    decays: bool
    parameter: nn.Parameter


class ShardOptimizer:
    """Updates the shards of one rank: float32 values, float32 gradients, float32 moments.

    Only matrices decay, biases and norms do not; so a shard is cut into runs of either kind. In lower precision each
    updated shard is rounded into the parameters that compute.
    """

    def __init__(self, flats: Sequence[FlatReduction], settings: Any) -> None:
        self.name = str(settings.name)
        self.moments = MOMENTS[self.name] if self.name != "sgd" or settings.momentum else ()
        self.runs = [run for flat in flats for bucket in flat.buckets for run in _runs(flat, bucket)]
        self._rounded = [bucket for flat in flats for bucket in flat.buckets
                         if bucket.values.dtype != torch.float32]
        decays = [
            {"params": [run.parameter for run in self.runs if run.decays], "weight_decay": settings.weight_decay},
            {"params": [run.parameter for run in self.runs if not run.decays], "weight_decay": 0.0},
        ]
        groups = [group for group in decays if group["params"]]
        self._optimizer: torch.optim.Optimizer | None = _build(groups, settings) if groups else None
        self._prepare_state()

    @property
    def steps(self) -> int:
        """The number of updates so far (adamw counts them)."""
        states = self._optimizer.state.values() if self._optimizer else ()
        return int(next((state["step"] for state in states if "step" in state), 0))

    @steps.setter
    def steps(self, count: int) -> None:
        for state in self._optimizer.state.values() if self._optimizer else ():
            if "step" in state:
                state["step"].fill_(count)

    def step(self, rate: float) -> None:
        """Update the shards with a learning rate."""
        if self._optimizer is None:
            return
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self.round()

    def round(self) -> None:
        """Write the float32 values of this rank's shards into the parameters of lower precision."""
        for bucket in self._rounded:
            bucket.shard_values.copy_(bucket.master)

    def state_of(self, run: Run, kind: str) -> Tensor:
        """Return a moment, or `master`, of a run: flat float32."""
        if kind == "master":
            return run.parameter.detach()
        state: Tensor = self._optimizer.state[run.parameter][kind] if self._optimizer else torch.empty(0)
        return state

    def _prepare_state(self) -> None:
        """Make the state at once, so that a checkpoint can be loaded before the first step."""
        for run in self.runs if self._optimizer else ():
            state = self._optimizer.state[run.parameter]  # type: ignore[union-attr]
            state.update({kind: torch.zeros_like(run.parameter.detach()) for kind in self.moments})
            if self.name == "adamw":
                state["step"] = torch.zeros((), dtype=torch.float32, device=run.parameter.device)


def _build(groups: list[dict[str, Any]], settings: Any) -> torch.optim.Optimizer:
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, fused=True)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.epsilon,
                             fused=True)


def _runs(flat: FlatReduction, bucket: Bucket) -> Iterator[Run]:
    """Return the runs of a bucket's shard; what only fills the shard up belongs to none."""
    first, last = bucket.shard
    pieces = [(max(first, segment.begin), min(last, segment.end), segment.decays)
              for segment in flat.segments_in(first, last)]
    while pieces:
        begin, end, decays = pieces.pop(0)
        while pieces and pieces[0][2] == decays:
            end = pieces.pop(0)[1]
        parameter = nn.Parameter(bucket.master[begin - first:end - first])
        parameter.grad = flat.gradients[begin:end]
        yield Run(flat, bucket, begin, end, decays, parameter)
