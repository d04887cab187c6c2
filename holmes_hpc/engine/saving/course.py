"""The course of the learning rate over a resume: how long its schedule is, and where it jumps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from holmes_hpc.config.schema import SCHEDULES
from holmes_hpc.engine.optimizer import learning_rate
from holmes_hpc.foreign import number, whole_number

_NEEDED = ("lr", "min_lr", "warmup_steps")
_SAME = 1e-9
"""Rates whose relative difference is smaller are equal."""


def schedule_end(optimizer: Any, train: Any, extra: Mapping[str, Any] | None = None) -> int:
    """Return the step at which the schedule ends.

    That is `optimizer.decay_steps`; where it is not set, what the checkpoint had whose `extra` is given, unless
    `train.resume_schedule` is `new`; else `train.steps`.
    """
    before = _end_before(extra) if extra is not None and train.resume_schedule == "keep" else None
    return int(optimizer.decay_steps or before or train.steps)


def course_words(step: int, extra: Mapping[str, Any], optimizer: Any, train: Any) -> Iterator[str]:
    """Say what a resume after `step` from a checkpoint with this `extra` does to the learning rate of further steps."""
    if step >= train.steps:
        return
    end = schedule_end(optimizer, train, extra)
    given = int(optimizer.decay_steps or train.steps)
    following = step + 1
    if end != given and optimizer.schedule != "constant":
        rest = _rest(following, end, optimizer, train)
        yield (f"the learning rate's schedule keeps the {end} steps that it had, {rest}; with "
               f"train.resume_schedule=new it would have {given}{_difference(following, end, given, optimizer)}")
    before, earlier = _end_before(extra), _settings_before(extra)
    if before is None or earlier is None:
        return
    was, now = learning_rate(following, earlier, before), learning_rate(following, optimizer, end)
    if not math.isclose(was, now, rel_tol=_SAME):
        first, second = _unlike(was, now)
        yield f"the learning rate jumps: step {following} would have had {first} and has {second}"


def _rest(following: int, end: int, optimizer: Any, train: Any) -> str:
    """Return what becomes of the steps after the schedule's end, or of the schedule where there are none."""
    first = max(end, following, optimizer.warmup_steps + 1)
    if train.steps < end:
        return f"so it is left at step {train.steps}, before its end"
    if train.steps < first:
        return "which end within optimizer.warmup_steps"
    return f"so steps {first} to {train.steps} train with optimizer.min_lr={optimizer.min_lr:g}"


def _difference(following: int, end: int, given: int, optimizer: Any) -> str:
    """Return a step at which the two schedules differ, with both rates: the next one, where they differ there."""
    warm = max(following, optimizer.warmup_steps + 1)
    for step in (following, warm, (warm + max(warm, min(end, given))) // 2, min(end, given), max(end, given) - 1):
        if step < following:
            continue
        new, kept = learning_rate(step, optimizer, given), learning_rate(step, optimizer, end)
        if f"{new:.4g}" != f"{kept:.4g}":
            return f", and step {step} {new:.4g} instead of {kept:.4g}"
    return ""


def _unlike(first: float, second: float) -> tuple[str, str]:
    """Return two rates with as many digits as tell them apart."""
    for digits in range(4, 18):
        if f"{first:.{digits}g}" != f"{second:.{digits}g}":
            return f"{first:.{digits}g}", f"{second:.{digits}g}"
    return repr(first), repr(second)


def _settings_before(extra: Mapping[str, Any]) -> SimpleNamespace | None:
    """Return the settings of the schedule that a checkpoint's run had; None where it does not say them."""
    settings = extra.get("settings")
    found = {name: number(settings.get(f"optimizer.{name}")) for name in _NEEDED} if isinstance(settings, dict) else {}
    if not found or None in found.values() or not isinstance(settings, dict):
        return None
    # Checkpoints of versions before schedules could be chosen have a cosine.
    schedule = settings.get("optimizer.schedule", "cosine")
    if not isinstance(schedule, str) or schedule not in SCHEDULES:
        return None
    return SimpleNamespace(**found, schedule=schedule,
                           cooldown_steps=whole_number(settings.get("optimizer.cooldown_steps")))


def _end_before(extra: Mapping[str, Any]) -> int | None:
    """Return the step at which the schedule of a checkpoint's run ended; None where it does not say."""
    settings = extra.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    kept = (extra.get("schedule_end"), settings.get("optimizer.decay_steps"), settings.get("train.steps"))
    return next((found for each in kept if (found := whole_number(each))), None)
