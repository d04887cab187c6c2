"""Follows one submitted run until it is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from holmes_hpc.runs import NewSteps, Notes
from holmes_hpc.submit.lost import OwnStates
from holmes_hpc.submit.watch import SubmittedRun, Watch, Watched

SLOW_SECONDS = 20.0
"""After so long at a job's end who follows is told what is waited for."""
LOOK_SECONDS = 0.5
"""Between two looks into the run folder; Slurm is asked less often."""


def follow(run: SubmittedRun, on_row: Callable[[dict[str, Any]], None], on_state: Callable[[str], None]) -> Watched:
    """Report new steps and states until the job is over, and return what is known of it then."""
    states = OwnStates([run])
    watch, told, notes = Watch([run], states), None, Notes(run.folder)
    slow_said = lost_said = False
    rows = NewSteps(run.folder.metrics_path)
    while True:
        watch.poll()
        for row in rows.rows():
            on_row(row)
        for note in notes.new():
            on_state(note)
        status = watch.runs[0].status
        if status is not None and str(status) != told:
            told = str(status)
            on_state(told)
            if status.held:
                on_state(f"it is held and does not start by itself: `{run.command('scontrol', 'release')}` lets it, "
                         "once what is wrong is mended; or cancel it")
            if status.obstacle:
                on_state(f"it does not start by itself: {status.obstacle}; cancel it by `{run.command('scancel')}`")
        if states.lost and not lost_said:
            lost_said, watch.runs[0].status = True, None
            on_state(f"Slurm lost it, and gave the number {run.job_id} to another job, which is none of this run's")
        completing = watch.runs[0].completing_seconds(time.monotonic())
        if completing > SLOW_SECONDS and not slow_said:
            slow_said = True
            on_state(f"it is COMPLETING for {completing:.0f} s: Slurm waits for its nodes, such as for an epilog or "
                     f"for processes that cannot be killed; `{run.command('scontrol', 'show', 'job')}` names them")
        if watch.over:
            return watch.runs[0]
        time.sleep(LOOK_SECONDS)
