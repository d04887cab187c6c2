"""Follows one submitted run until it is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from holmes_hpc.runs import NewSteps, Notes
from holmes_hpc.submit.watch import SubmittedRun, Watch, Watched

LOOK_SECONDS = 0.5
"""Between two looks into the run folder; Slurm is asked less often."""


def follow(run: SubmittedRun, on_row: Callable[[dict[str, Any]], None], on_state: Callable[[str], None]) -> Watched:
    """Report new steps and states until the job is over, and return what is known of it then."""
    watch, told, notes = Watch([run]), None, Notes(run.folder)
    rows = NewSteps(run.folder.metrics_path)
    while True:
        watch.poll()
        for row in rows.rows():
            on_row(row)
        for note in notes.new():
            on_state(note)
        status = watch.runs[0].status
        if status is not None and status != told:
            told = status
            on_state(str(status))
            if status.held:
                on_state(f"it is held and does not start by itself: `scontrol release {run.job_id}` lets it, once what "
                         "is wrong is mended; or cancel it")
        if watch.over:
            return watch.runs[0]
        time.sleep(LOOK_SECONDS)
