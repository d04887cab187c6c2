"""Runs of a sweep that others submit while somebody watches: a command that follows it, or its own jobs as they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from holmes_hpc.errors import HolmesError
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.lease import is_held, lease_path
from holmes_hpc.runs.sweeps import Sweep
from holmes_hpc.submit.job import submitted_run
from holmes_hpc.submit.lost import OwnStates
from holmes_hpc.submit.watch import NOT_YET, SubmittedRun, Watch, Watched
from holmes_hpc.submit.window import read_queue

LOOK_SECONDS = 5.0
"""Between two looks for somebody who would submit more."""
NOBODY_AFTER = 3
"""After so many looks in a row that found nobody nothing is waited for any more."""


class StillToCome:
    """Adds to a watch the runs of sweeps that are still to be submitted, as long as somebody is there who does so."""

    def __init__(self, watch: Watch, states: OwnStates, sweeps: Sequence[Sweep],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._watch, self._states, self._clock = watch, states, clock
        self._places = [sweep.place for sweep in sweeps if _somebody_submits(sweep)]
        self._due, self._nobody = clock() + LOOK_SECONDS, 0
        self._take_in()

    def look(self, changed: Sequence[Watched] = ()) -> None:
        """Take in what was submitted meanwhile; where nobody submits any more, let the watch end."""
        if not self._places:
            return
        self._take_in()
        waiting = [watched for watched in self._watch.runs if watched.run.job_id == NOT_YET]
        others_over = all(watched.over for watched in self._watch.runs if watched.run.job_id != NOT_YET)
        if self._clock() < self._due or not (waiting and others_over):
            return
        self._due = self._clock() + LOOK_SECONDS
        sweeps = [sweep for place in self._places if (sweep := Sweep.read(place))]
        self._nobody = 0 if any(map(_somebody_submits, sweeps)) else self._nobody + 1
        if self._nobody >= NOBODY_AFTER:
            for watched in waiting:
                watched.over = True
            self._places = []

    def _take_in(self) -> None:
        known = {watched.run.folder: watched.run for watched in self._watch.runs}
        for sweep in (sweep for place in self._places if (sweep := Sweep.read(place))):
            for folder in sweep.folders.values():
                run = submitted_run(folder)
                if run is not None and known.get(folder, _none(folder)).job_id == NOT_YET:
                    self._states.add(run)
                    self._watch.take(run)
                elif folder not in known and not folder.result_path.exists():
                    self._watch.take(_none(folder))


def _none(folder: RunFolder) -> SubmittedRun:
    return SubmittedRun(NOT_YET, folder)


def _somebody_submits(sweep: Sweep) -> bool:
    """Say whether runs are to be submitted and somebody does so: a command that holds the sweep, or one of its jobs."""
    if len(sweep.folders) == len(sweep.words) and not sweep.waiting:
        return False
    if is_held(lease_path(sweep.submitting)):
        return True
    runs = [run for folder in sweep.folders.values() if (run := submitted_run(folder))]
    if not sweep.for_room or not runs:
        return False
    try:
        return bool(read_queue([run.job_id for run in runs], runs[0].cluster))
    except HolmesError:
        return False  # asked again a few times
