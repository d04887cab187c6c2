"""Steps of runs whose cluster was disturbed on purpose: how long they took, and what the simulator says of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from analysis import words
from analysis.reading import Record, Run, read_runs
from analysis.tables import describe, figures, quantile, warmup_steps
from holmes_hpc.config.kept import UNREADABLE, read_kept
from holmes_hpc.errors import HolmesError
from holmes_hpc.planner.simulation.predict import predict
from holmes_hpc.planner.task import disturbed as under_disturbances
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.runs.result import is_disturbed
from holmes_hpc.values import Plan
from holmes_hpc.values.disturbances import acting_at

COLUMNS = ["run", "first_step", "last_step", "disturbed", "steps", "step_seconds", "times_undisturbed",
           "predicted_step_seconds", "predicted_times_undisturbed"]


def disturbed(*folders: str | os.PathLike[str]) -> pd.DataFrame:
    """Return one row for every phase of runs of which some steps were disturbed: its steps, and their median seconds.

    `times_undisturbed` is the ratio to the median of the run's undisturbed steps without the first ones. Predictions
    are missing where they are for another machine than the one that measured. Raises ConfigurationError for a path that
    is no run.
    """
    return disturbed_table(read_runs(*folders))


def disturbed_table(found: Sequence[Run]) -> pd.DataFrame:
    """Return `disturbed`'s table of runs that were read before."""
    return pd.DataFrame([row for run in found for row in _rows(run)], columns=COLUMNS)


def spans(records: Sequence[Record]) -> list[tuple[int, int, str]]:
    """Return the first and the last step of each time in which the same disturbed a run, and what did."""
    found = []
    for acting, group in groupby(records, key=_acting):
        steps = [int(record["step"]) for record in group]
        found += [(steps[0], steps[-1], "; ".join(acting))] * bool(acting)
    return found


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    if not any(map(is_disturbed, run.metrics)):
        return
    measured = run.metrics[warmup_steps(len(run.metrics)):]
    usual = quantile(figures([record for record in measured if not is_disturbed(record)], "step_seconds"), 0.5)
    phases = [list(group) for _, group in groupby(measured, key=_acting)]
    predicted = _predicted(run, {_acting(records[0]): int(records[0]["step"]) for records in phases})
    predicted_usual = predicted.get((), math.nan)
    for records in phases:
        acting = _acting(records[0])
        seconds = quantile(figures(records, "step_seconds"), 0.5)
        yield dict(zip(COLUMNS, (
            run.name, int(records[0]["step"]), int(records[-1]["step"]), "; ".join(acting), len(records), seconds,
            seconds / usual, predicted.get(acting, math.nan), predicted.get(acting, math.nan) / predicted_usual,
        ), strict=True))


def _acting(record: Record) -> tuple[str, ...]:
    return tuple(record.get("disturbed") or ())


def _predicted(run: Run, steps: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], float]:
    """Return the predicted seconds of a step by what acted in it, undisturbed too.

    `steps` has a step of the run for all that acted. It is what the run played, which may be less than its settings
    say, so that this and not the schedule is priced. None is there where predictions are not of what was measured.
    """
    machine = describe(run)["machine"]
    if not words.comparable(machine, (run.plan.get("predicted") or {}).get("machine")):
        return {}
    try:
        plan = Plan.from_json(json.dumps(run.plan))
        config = read_kept(run.folder / "config.yaml")
        config.cluster.emulate.plan_for_step = None
        task, layout = restore(config, plan, {"emulated": "emulated", "local": "local"}.get(machine))
        found = {}
        for acting, step in {(): 1, **steps}.items():
            played = [each for each in acting_at(task.cluster.disturbances, step) if each.words in acting]
            if tuple(each.words for each in played) == acting:
                found[acting] = predict(under_disturbances(task, played), layout, plan.schedule).step_seconds
        return found
    except (HolmesError, OSError, *UNREADABLE):
        return {}
