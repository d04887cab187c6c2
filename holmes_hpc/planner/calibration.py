"""How fast GPU kinds proved to be in finished runs, against what the cost model says of the same actions.

A run's ranks record when their forwards and backwards began and ended. The same step is simulated with the model's
own constants. One factor for each GPU kind and precision makes the sums of both equal; what links do is
`holmes probe`'s to measure.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from holmes_hpc.cluster import read_cluster
from holmes_hpc.cluster.calibrated import CalibratedGpu, to_json
from holmes_hpc.config.kept import UNREADABLE
from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.foreign import read_text, read_yaml
from holmes_hpc.paths import unreadable
from holmes_hpc.planner.task import Task
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.planner.telling.retrace import retrace
from holmes_hpc.runs import RunFolder, read_json_lines
from holmes_hpc.runs.files import write_json_atomic
from holmes_hpc.runs.metrics import timeline_row
from holmes_hpc.runs.result import median_step_seconds, read_result
from holmes_hpc.values import ActionKind, Plan
from holmes_hpc.values.schedule import COMPUTES

_WAITS = frozenset({ActionKind.REDUCE.value, ActionKind.GATHER.value})
_FIRST_STEPS = 1
"""Recorded steps up to this one are left out where there are later ones: memory and caches are cold."""

Key = tuple[int, str, int]
"""A rank, a kind of action, and the stage."""


@dataclass(frozen=True)
class Comparison:
    """One kind of action of a stage on one GPU kind: median seconds as modelled and as measured, and how many."""

    gpu: str
    precision: str
    modelled_seconds: float
    measured_seconds: float
    actions: int


@dataclass(frozen=True)
class FinishedRun:
    """What a run tells: its comparisons, and its step as modelled without calibration and as measured (median)."""

    folder: RunFolder
    config: Any
    plan: Plan
    comparisons: tuple[Comparison, ...]
    modelled_step_seconds: float
    measured_step_seconds: float | None


def read_run(path: Path) -> FinishedRun:
    """Compare a run with the model. Raises ConfigurationError where it tells nothing of compute."""
    folder = RunFolder.open(path)
    try:
        config = OmegaConf.create(_mapping(read_yaml(folder.config_path)))
        plan = Plan.from_json(read_text(folder.plan_path))
        timed = str(config.cluster.emulate.compute) == "timed"
    except UNREADABLE as error:
        raise _unread(folder, error) from error
    emulated = plan.predicted.is_here
    if (read_result(folder) or {}).get("emulated") and timed:
        raise ConfigurationError(f"{folder.path}: its compute was timed by the cost model itself, so it tells nothing; "
                                 "name a run on GPUs, or one with cluster.emulate.compute=real")
    try:
        measured = _measured(folder, plan)
    except OSError as error:
        raise unreadable(error) from error
    if not measured:
        raise ConfigurationError(f"{folder.path}: no recorded step; train with train.timeline_every=N and at least N "
                                 "steps")
    try:
        task, modelled, step_seconds = simulated(config, plan, emulated=emulated, calibrated=())
    except HolmesError as error:  # one of several runs
        raise ConfigurationError(f"{folder.path}: {error}") from error
    except UNREADABLE as error:  # a setting that this version knows and the run's did not, or one of another type
        raise _unread(folder, error) from error
    comparisons = tuple(
        Comparison(task.machine.gpu(task.cluster.node_of(key[0])).name, str(config.train.precision),
                   modelled[key], statistics.median(seconds), len(seconds))
        for key, seconds in measured.items() if modelled.get(key, 0.0) > 0.0)
    return FinishedRun(folder, config, plan, comparisons, step_seconds, median_step_seconds(folder))


def _mapping(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError("config.yaml holds no mapping")
    return value


def _unread(folder: RunFolder, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"{folder.path}: its configuration or plan cannot be read: {str(error).splitlines()[0]}; "
                              "name a run of this version")


def simulated(config: Any, plan: Plan, *, emulated: bool, calibrated: Sequence[CalibratedGpu]
              ) -> tuple[Task, Mapping[Key, float], float]:
    """Return the task of a run, median seconds of each rank's actions, and the step, with these calibrations alone."""
    plain = read_cluster(OmegaConf.merge(config.cluster, {"calibrated": None}))
    here = "local" if str(config.launch.mode) == "local" else "emulated"
    task, layout = restore(config, plan, here if emulated else "slurm",
                           dataclasses.replace(plain, calibrated=tuple(calibrated)))
    trace = retrace(task, layout, plan.schedule)
    found: dict[Key, list[float]] = {}
    for rank, action, start, end in trace.records:
        if action.kind in COMPUTES:
            found.setdefault((rank, action.kind.value, action.stage), []).append(end - start)
    return task, {key: statistics.median(seconds) for key, seconds in found.items()}, trace.step_seconds


def _measured(folder: RunFolder, plan: Plan) -> dict[Key, list[float]]:
    """Return the measured seconds of every rank's actions, without what they waited for collectives inside."""
    kinds = {kind.value for kind in COMPUTES}
    found: dict[Key, list[float]] = {}
    for place in plan.ranks:
        steps: dict[int, list[dict[str, Any]]] = {}
        for record in read_json_lines(folder.timeline_path(place.rank)):
            row = timeline_row(record)
            if row is not None:
                steps.setdefault(row["step"], []).append(row)
        later = [step for step in steps if step > _FIRST_STEPS]
        for step in later or list(steps):
            rows = steps[step]
            waits = [(row["start"], row["end"]) for row in rows if row["kind"] in _WAITS]
            for row in rows:
                if row["kind"] in kinds:
                    inside = sum(end - start for start, end in waits if row["start"] <= start and end <= row["end"])
                    found.setdefault((place.rank, row["kind"], row.get("stage", -1)), []).append(
                        max(0.0, row["end"] - row["start"] - inside))
    return found


def calibrate(runs: Sequence[FinishedRun]) -> tuple[CalibratedGpu, ...]:
    """Return one factor for each GPU kind and precision: all measured seconds over all modelled ones."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for run in runs:
        for each in run.comparisons:
            groups.setdefault((each.gpu, each.precision), []).append(each)
    return tuple(_calibrated(gpu, precision, groups[gpu, precision]) for gpu, precision in sorted(groups))


def _calibrated(gpu: str, precision: str, found: Sequence[Comparison]) -> CalibratedGpu:
    ratios = [each.measured_seconds / each.modelled_seconds for each in found]
    measured, modelled = (sum(getattr(each, name) * each.actions for each in found)
                          for name in ("measured_seconds", "modelled_seconds"))
    return CalibratedGpu(gpu, precision, measured / modelled, min(ratios), max(ratios),
                         sum(each.actions for each in found))


def step_with(run: FinishedRun, calibrated: Sequence[CalibratedGpu]) -> float:
    """Return a run's step as predicted with these calibrations."""
    return simulated(run.config, run.plan, emulated=run.plan.predicted.is_here,
                     calibrated=calibrated)[2]


def write_calibrated(path: Path, found: Sequence[CalibratedGpu], runs: Sequence[FinishedRun]) -> None:
    """Write the file that `cluster.calibrated` names. Raises as `runs.files.storage_error` says."""
    write_json_atomic(path, to_json(found, runs=[str(run.folder.path) for run in runs]))
