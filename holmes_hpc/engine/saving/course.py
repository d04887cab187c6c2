"""The course of the learning rate over a resume: how long its schedule is, and where it jumps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from holmes_hpc.engine.optimizer import learning_rate
from holmes_hpc.foreign import whole_number

_NEEDED = ("lr", "min_lr", "warmup_steps", "decay_steps")
_SAME = 1e-9
"""Rates whose relative difference is smaller are equal."""


def schedule_end(optimizer: Any, train: Any, extra: Mapping[str, Any] | None = None) -> int:
    """Return the step at which the cosine ends.

    That is `optimizer.decay_steps`; where it is not set, what the checkpoint had whose `extra` is given, unless
    `train.resume_schedule` is `new`; else `train.steps`.
    """
    before = _end_before(extra) if extra is not None and train.resume_schedule == "keep" else None
    return int(optimizer.decay_steps or before or train.steps)


def course_words(step: int, extra: Mapping[str, Any], optimizer: Any, train: Any) -> Iterator[str]:
    """Say what a resume after `step` from a checkpoint with this `extra` does to the learning rate."""
    end = schedule_end(optimizer, train, extra)
    given = int(optimizer.decay_steps or train.steps)
    following = step + 1
    if end != given:
        if train.steps > end:
            what = f"steps {max(end, following)} to {train.steps} train with optimizer.min_lr={optimizer.min_lr:g}"
        else:
            what = f"it is left at step {train.steps}, before its end"
        yield (f"the learning rate's schedule keeps the {end} steps that it had, so {what}; with "
               f"train.resume_schedule=new it would have {given}, and step {following} "
               f"{learning_rate(following, optimizer, given):.4g} instead of "
               f"{learning_rate(following, optimizer, end):.4g}")
    settings, before = extra.get("settings", {}), _end_before(extra)
    if before is None or not all(f"optimizer.{name}" in settings for name in _NEEDED):
        return
    earlier = SimpleNamespace(**{name: settings[f"optimizer.{name}"] for name in _NEEDED} | {"decay_steps": before})
    was, now = learning_rate(following, earlier, before), learning_rate(following, optimizer, end)
    if not math.isclose(was, now, rel_tol=_SAME):
        yield f"the learning rate jumps: step {following} would have had {was:.4g} and has {now:.4g}"


def _end_before(extra: Mapping[str, Any]) -> int | None:
    """Return the step at which the cosine of a checkpoint's run ended; None where it does not say."""
    settings = extra.get("settings", {})
    kept = (extra.get("schedule_end"), settings.get("optimizer.decay_steps"), settings.get("train.steps"))
    return next((number for each in kept if (number := whole_number(each))), None)
