"""Submits the runs of a sweep, all at once: plain ones as arrays, jobs over several partitions one by one.

A heterogeneous job cannot be a task of an array. An array's indices end below MaxArraySize, so a longer one becomes
several that each begin at 0. `launch.max_jobs` is kept by Slurm itself, so nobody has to wait on the login node: by
`--array=0-9%K` inside an array, and between jobs by dependencies, wave after wave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holmes_hpc.errors import HolmesError
from holmes_hpc.runs import RunFolder
from holmes_hpc.submit.commands import SlurmCommandError, read_cluster_settings
from holmes_hpc.submit.job import job_request, submit, submit_array
from holmes_hpc.submit.patience import patiently
from holmes_hpc.submit.script import render_script
from holmes_hpc.submit.watch import SubmittedRun

_ANY = Path("/links")
_PATIENCE_SECONDS = 20.0


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep before its submission; `words` are its overrides."""

    config: Any
    folder: RunFolder
    words: str


def submit_sweep(runs: Sequence[SweepRun], place: Path, max_jobs: int | None = None
                 ) -> list[SubmittedRun | HolmesError]:
    """Submit every run and return its job, or why sbatch refused it, in the order of `runs`.

    `place` is a folder for what the arrays need. A refused job does not keep the others back.
    """
    groups = group_runs(runs)
    longest = _longest_array() if any(len(group) > 1 for group in groups) else 1
    units = [part for group in groups for part in split(group, longest)]
    answers: dict[int, SubmittedRun | HolmesError] = {}
    before: list[str] = []
    for wave in waves([len(unit) for unit in units], max_jobs):
        dependency = "afterany:" + ":".join(before) if before else None
        submitted: list[str] = []
        for unit in (units[index] for index in wave):
            for number, answer in zip(unit, _submit_unit([runs[number] for number in unit], place / f"array-{unit[0]}",
                                                         max_jobs, dependency), strict=True):
                answers[number] = answer
                if isinstance(answer, SubmittedRun):
                    submitted.append(answer.job_id.partition("_")[0])
        before = list(dict.fromkeys(submitted)) or before
    return [answers[number] for number in range(len(runs))]


def group_runs(runs: Sequence[SweepRun]) -> list[list[int]]:
    """Return the numbers of the runs that one array can hold: plain jobs whose scripts are equal but for the folder."""
    groups: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        request = job_request(run.config, None, links=_ANY, array="0")
        key = render_script(request) if len(request.components) == 1 else f"alone {number}"
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def split(numbers: Sequence[int], longest: int) -> list[list[int]]:
    """Return runs in parts of at most `longest`, the size of an array; where arrays are not allowed, one by one."""
    size = max(longest, 1)
    return [list(numbers[start:start + size]) for start in range(0, len(numbers), size)]


def waves(sizes: Sequence[int], max_jobs: int | None) -> list[list[int]]:
    """Return the indices of units (of these sizes) in waves that may start one after another.

    Each wave has at most `max_jobs` jobs that run at a time, where an array counts as many as it may run at once.
    """
    if max_jobs is None:
        return [list(range(len(sizes)))] if sizes else []
    found: list[list[int]] = []
    room = 0
    for index, size in enumerate(sizes):
        width = min(size, max_jobs)
        if width > room:
            found.append([])
            room = max_jobs
        found[-1].append(index)
        room -= width
    return found


def _submit_unit(runs: Sequence[SweepRun], place: Path, max_jobs: int | None, dependency: str | None
                 ) -> Sequence[SubmittedRun | HolmesError]:
    try:
        if len(runs) == 1:
            return [submit(runs[0].config, runs[0].folder, dependency, code_place=place.parent)]
        return submit_array([run.config for run in runs], [run.folder for run in runs], place, at_a_time=max_jobs,
                            dependency=dependency, code_place=place.parent)
    except HolmesError as error:
        return [error] * len(runs)


def _longest_array() -> int:
    try:
        return patiently(lambda left: read_cluster_settings(), _PATIENCE_SECONDS).longest_array
    except SlurmCommandError:
        return 1
