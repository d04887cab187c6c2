"""Submits the runs of a sweep: plain ones as arrays, jobs over several partitions one by one, as many as Slurm takes.

A heterogeneous job cannot be a task of an array. An array's indices end below MaxArraySize, so a longer one becomes
several that each begin at 0. `launch.max_jobs` is kept by Slurm itself, so nobody has to wait on the login node: by
`--array=0-9%K` inside an array, and between jobs by lanes (`submit/lanes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holmes_hpc.errors import HolmesError
from holmes_hpc.runs import RunFolder, write_result
from holmes_hpc.submit.commands import SlurmCommandError, SubmissionLimitError, read_cluster_settings, run_command
from holmes_hpc.submit.job import fresh_place, give_up_place, job_request, submit, submit_array
from holmes_hpc.submit.lanes import Lanes
from holmes_hpc.submit.options import cluster_of
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


@dataclass(frozen=True)
class Answer:
    """What became of a run that was given to Slurm: its job, or why sbatch refused it."""

    number: int
    run: SubmittedRun | HolmesError


class Submitter:
    """Gives the runs of a sweep to Slurm, as many as it takes now, and later the others.

    `place` is the folder of the sweep. `lanes` returns those that keep `launch.max_jobs`, behind the jobs that live
    when it is called; None where there is no such limit. `before` is called before each submission; what it raises
    ends them.
    """

    def __init__(self, runs: Mapping[int, SweepRun], place: Path, lanes: Callable[[], Lanes | None] = lambda: None,
                 before: Callable[[], None] = lambda: None) -> None:
        self._runs, self._place, self._make_lanes, self._before = runs, place, lanes, before
        self._lanes: Lanes | None = None
        numbers = list(runs)
        groups = group_runs(list(runs.values()))
        longest = _longest_array(runs[numbers[0]].config) if any(len(group) > 1 for group in groups) else 1
        self._units = [[numbers[index] for index in part] for group in groups for part in split(group, longest)]
        self.limit = ""
        """what Slurm said when it took no more, where runs wait for room"""

    @property
    def waiting(self) -> list[int]:
        """The runs that are not given to Slurm yet."""
        return sorted(number for unit in self._units for number in unit)

    @property
    def next_unit(self) -> list[int]:
        """The runs that are given to Slurm next, or that it was being given when this was interrupted."""
        return list(self._units[0]) if self._units else []

    def drop(self, unwanted: Callable[[int], bool]) -> list[int]:
        """Leave out waiting runs that nobody wants any more, and return them."""
        dropped = [number for number in self.waiting if unwanted(number)]
        kept = ([number for number in unit if number not in dropped] for unit in self._units)
        self._units = [unit for unit in kept if unit]
        return dropped

    def submit(self) -> Iterator[Answer]:
        """Submit until all are, or Slurm's limit on submitted jobs is reached; yield each run's answer.

        A refused job does not keep the others back. An array that does not fit is halved.
        """
        self.limit = ""
        self._lanes, alone = self._make_lanes(), False
        while self._units:
            self._before()
            unit = self._units[0]
            places, after = self._lanes.choose(len(unit)) if self._lanes else ([], ())
            try:
                runs: Sequence[SubmittedRun | HolmesError] = self._hand_over(unit, after)
            except SubmissionLimitError as error:
                if len(unit) > 1:
                    middle = (len(unit) + 1) // 2
                    self._units[:1] = [unit[:middle], unit[middle:]]
                    continue
                if "Grp" in error.said or "Grp" in str(error) or _anything_queued(self._runs[unit[0]].config):
                    self.limit = str(error)
                    return
                if not alone:  # what was in its way may have ended between the two questions
                    alone = True
                    continue
                # Alone in the queue and still too much: it will never fit.
                write_result(self._runs[unit[0]].folder, "failed", error=str(error), emulated=False)
                runs = [error]
            except HolmesError as error:
                runs = [error] * len(unit)
            del self._units[0]
            alone = False
            if self._lanes and isinstance(runs[0], SubmittedRun):
                self._lanes.give(places, runs[0].job_id.partition("_")[0])
            for number, run in zip(unit, runs, strict=True):
                yield Answer(number, run)

    def _hand_over(self, unit: Sequence[int], after: Sequence[str]) -> list[SubmittedRun]:
        runs = [self._runs[number] for number in unit]
        dependency = "afterany:" + ":".join(after) if after else None
        if len(runs) == 1:
            return [submit(runs[0].config, runs[0].folder, dependency, sweep=self._place)]
        place = fresh_place(self._place / f"array-{unit[0]}")
        try:
            return submit_array([run.config for run in runs], [run.folder for run in runs], place, self._place,
                                at_a_time=self._lanes.count if self._lanes else None, dependency=dependency)
        except SubmissionLimitError:
            give_up_place(place)
            raise


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


def _anything_queued(config: Any) -> bool:
    """Say whether this user has jobs in the queue, whose end may make room; where Slurm does not tell, it may."""
    try:
        return bool(run_command(["squeue", "--me", "--noheader", "--format=%i"], cluster=cluster_of(config.launch)
                                ).strip())
    except SlurmCommandError:
        return True


def _longest_array(config: Any) -> int:
    try:
        return patiently(lambda left: read_cluster_settings(cluster_of(config.launch)), _PATIENCE_SECONDS).longest_array
    except SlurmCommandError:
        return 1
