"""Says before a start where its settings do not do what they read as: the learning rate, and runs of a sweep."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import OmegaConf

LOG = logging.getLogger(__name__)
_SHOWN = 4


def say_course(configs: Sequence[Any]) -> None:
    """Say each warning of `course_warnings` once, however many runs it holds for."""
    for words in dict.fromkeys(words for config in configs for words in course_warnings(config)):
        LOG.warning("%s", words)


def say_alike(configs: Sequence[Any]) -> None:
    """Say which runs of a sweep repeat an earlier one: no setting differs."""
    first: dict[str, int] = {}
    alike = [(number, first[words]) for number, config in enumerate(configs, 1)
             if first.setdefault(words := repr(OmegaConf.to_container(config)), number) < number]
    if alike:
        shown = ", ".join(f"run {number} as run {earlier}" for number, earlier in alike[:_SHOWN])
        more = f" and {len(alike) - _SHOWN} more" if alike[_SHOWN:] else ""
        LOG.warning("%d of the sweep's %d runs have the settings of an earlier one, and so its losses: %s%s",
                    len(alike), len(configs), shown, more)


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
