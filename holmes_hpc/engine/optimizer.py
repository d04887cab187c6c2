"""The optimizer of one rank's shards, and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from holmes_hpc.engine.flat import Bucket, FlatReduction

MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
"""The tensors that each optimizer keeps beside a parameter, by torch's names."""


def learning_rate(step: int, settings: Any, end: int) -> float:
    """Return the learning rate of `step` (counted from 1): linear warm-up, then what `optimizer.schedule` says.

    `settings` is the group `optimizer` of the configuration; the schedule reaches `min_lr` at the step `end`, but for
    `constant`, which stays at `lr`. `wsd` (Hu et al. 2024) stays there until `cooldown_steps` before the end.
    """
    warmup, schedule = settings.warmup_steps, settings.schedule
    if step <= warmup:
        return settings.lr * step / warmup
    if schedule == "constant":
        return settings.lr
    if step >= end:
        return settings.min_lr
    first = max(warmup, end - cooldown_steps(settings, end)) if schedule == "wsd" else warmup
    progress = max(0.0, (step - first) / (end - first))
    left = 0.5 * (1.0 + math.cos(math.pi * progress)) if schedule == "cosine" else 1.0 - progress
    return settings.min_lr + (settings.lr - settings.min_lr) * left


def cooldown_steps(settings: Any, end: int) -> int:
    """Return the steps in which `wsd` comes down: `optimizer.cooldown_steps`, or a tenth of the schedule."""
    return int(settings.cooldown_steps or max(1, end // 10))


@dataclass(frozen=True)
class Run:
    """A contiguous range of a shard that is updated as one tensor: `begin` and `end` in the flat buffer.

    `values`, `gradient` and the `moments` are flat float32 tensors.
    """

    flat: FlatReduction
    bucket: Bucket
    begin: int
    end: int
    decays: bool
    values: Tensor
    gradient: Tensor
    moments: dict[str, Tensor]


class Optimizer(Protocol):
    """Updates a rank's shards; `moments` are the names of what it keeps of each of its `runs`."""

    moments: tuple[str, ...]
    runs: list[Run]
    steps: int

    def step(self, rate: float) -> None:
        """Update the shards with a learning rate."""

    def round(self) -> None:
        """Write what was updated into parameters of lower precision."""


class ShardOptimizer:
    """Updates the shards of one rank: float32 values, float32 gradients, float32 moments.

    As `optimizer.decayed` says, only matrices decay (biases and norms do not) or all; so a shard is cut into runs of
    either kind. In lower precision each
    updated shard is rounded into the parameters that compute. `steps` counts the updates.

    It calls the kernels behind torch's fused optimizers itself: making one of torch's optimizers imports its compiler,
    which takes every rank two seconds of a core.
    """

    def __init__(self, flats: Sequence[FlatReduction], settings: Any) -> None:
        self._settings = settings
        self.moments = MOMENTS[str(settings.name)] if settings.name == "adamw" or settings.momentum else ()
        self.steps = 0
        everything = settings.decayed == "all"
        self.runs = [run for flat in flats for bucket in flat.buckets
                     for run in _runs(flat, bucket, self.moments, everything=everything)]
        self._rounded = [bucket for flat in flats for bucket in flat.buckets
                         if bucket.values.dtype != torch.float32]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update the shards with a learning rate."""
        self.steps += 1
        update = _adamw if self._settings.name == "adamw" else _sgd
        for decays in (True, False):
            runs = [run for run in self.runs if run.decays == decays]
            if runs:
                update(runs, self._settings, rate, self._settings.weight_decay if decays else 0.0, self.steps)
        self.round()

    def round(self) -> None:
        """Write the float32 values of this rank's shards into the parameters of lower precision."""
        for bucket in self._rounded:
            bucket.shard_values.copy_(bucket.master)


def _adamw(runs: Sequence[Run], settings: Any, rate: float, weight_decay: float, step: int) -> None:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""
    means, squares = ([run.moments[kind] for run in runs] for kind in MOMENTS["adamw"])
    count = torch.tensor(float(step), device=runs[0].values.device)
    torch._fused_adamw_([run.values for run in runs], [run.gradient for run in runs], means, squares, [],
                        [count] * len(runs), lr=rate, beta1=settings.beta1, beta2=settings.beta2,
                        weight_decay=weight_decay, eps=settings.epsilon, amsgrad=False, maximize=False)


def _sgd(runs: Sequence[Run], settings: Any, rate: float, weight_decay: float, step: int) -> None:
    """Stochastic gradient descent with momentum; weight decay is added to the gradient."""
    torch._fused_sgd_([run.values for run in runs], [run.gradient for run in runs],
                      [each for run in runs for each in run.moments.values()], weight_decay=weight_decay,
                      momentum=settings.momentum, lr=rate, dampening=0.0, nesterov=False, maximize=False,
                      is_first_step=False)


def _runs(flat: FlatReduction, bucket: Bucket, kinds: Sequence[str], *, everything: bool) -> Iterator[Run]:
    """Return the runs of a bucket's shard; what only fills the shard up belongs to none."""
    first, last = bucket.shard
    pieces = [(max(first, segment.begin), min(last, segment.end), everything or segment.decays)
              for segment in flat.segments_in(first, last)]
    while pieces:
        begin, end, decays = pieces.pop(0)
        while pieces and pieces[0][2] == decays:
            end = pieces.pop(0)[1]
        values = bucket.master[begin - first:end - first]
        yield Run(flat, bucket, begin, end, decays, values, flat.gradients[begin:end],
                  {kind: torch.zeros_like(values) for kind in kinds})
