"""Says before a start where the learning rate will not go as its settings read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

LOG = logging.getLogger(__name__)


def say_course(configs: Sequence[Any]) -> None:
    """Say each warning of `course_warnings` once, however many runs it holds for."""
    for words in dict.fromkeys(words for config in configs for words in course_warnings(config)):
        LOG.warning("%s", words)


def course_warnings(config: Any) -> Iterator[str]:
    """Yield what a run's steps leave of the warm-up and of the cool-down that were asked for."""
    optimizer, steps = config.optimizer, config.train.steps
    if config.launch.probe_only:
        return
    if optimizer.warmup_steps > steps:
        reached = optimizer.lr * steps / optimizer.warmup_steps
        yield (f"the warm-up is longer than the run: of optimizer.warmup_steps={optimizer.warmup_steps} only "
               f"train.steps={steps} are trained, so the learning rate ends at {reached:.4g} and never is optimizer.lr="
               f"{optimizer.lr:g}; lower the first or raise the second")
        return
    end = optimizer.decay_steps or steps
    if optimizer.cooldown_steps is not None and optimizer.cooldown_steps > end - optimizer.warmup_steps:
        yield (f"the cool-down is longer than what the warm-up leaves: optimizer.cooldown_steps="
               f"{optimizer.cooldown_steps} becomes {end - optimizer.warmup_steps}, from step {optimizer.warmup_steps} "
               f"to {end}; lower it, or raise train.steps")
