"""The optimizer and its learning rate."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


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


def build_optimizer(parameters: dict[str, nn.Parameter], settings: Any) -> torch.optim.Optimizer:
    """Return the optimizer of one rank's parameters; only matrices decay, biases and norms do not."""
    matrices = [p for p in parameters.values() if p.ndim >= 2]
    others = [p for p in parameters.values() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.epsilon)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
