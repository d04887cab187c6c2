"""Follows a submitted run until it is over; a preempted and requeued job is followed on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from holmes_hpc.cluster.slurm.states import is_final
from holmes_hpc.runs import read_metrics, read_result, write_result
from holmes_hpc.submit.commands import SlurmCommandError
from holmes_hpc.submit.job import SubmittedRun
from holmes_hpc.submit.states import read_states

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 10.0
PATIENCE_SECONDS = 30.0
"""How long a job may be unknown to queue and accounting before it counts as gone."""
LOG_LINES = 15


def follow(run: SubmittedRun, on_row: Callable[[dict[str, Any]], None], on_state: Callable[[str], None]) -> int:
    """Report new steps and states until the job is over; return 0 or 1."""
    seen, state, wait, known_at = 0, "", FIRST_WAIT_SECONDS, time.monotonic()
    while True:
        rows = read_metrics(run.folder)
        for row in rows[seen:]:
            on_row(row)
        wait = FIRST_WAIT_SECONDS if len(rows) > seen else min(wait * 1.3, LONGEST_WAIT_SECONDS)
        seen = len(rows)
        now = _state(run.job_id)
        if now is not None:
            known_at = time.monotonic()
        if now is not None and now != state:
            state, wait = now, FIRST_WAIT_SECONDS
            on_state(state)
        if _is_over(run, now, time.monotonic() - known_at):
            return _end(run, state)
        time.sleep(wait)


def _state(job_id: str) -> str | None:
    try:
        return read_states([job_id]).get(job_id)
    except SlurmCommandError:
        return None  # the controller is busy or restarts: ask again


def _is_over(run: SubmittedRun, state: str | None, unknown_seconds: float) -> bool:
    if state is not None:
        # A job that Slurm or its script puts back into the queue is followed on.
        return is_final(state, requeue=run.requeue)
    result = read_result(run.folder)
    ended = result is not None and result["status"] in ("completed", "failed")
    return ended or unknown_seconds > PATIENCE_SECONDS


def _end(run: SubmittedRun, state: str) -> int:
    result = read_result(run.folder)
    if result is None or result["status"] == "preempted":
        words = f"job {run.job_id} ended as {state or 'unknown to Slurm'} before the run was complete"
        write_result(run.folder, "failed", error=f"{words}{log_tail(run)}", emulated=False)
        return 1
    return 0 if result["status"] == "completed" else 1


def log_tail(run: SubmittedRun) -> str:
    """Return the last lines of the batch script's log, to be put behind a message."""
    path = run.folder.logs / "batch.log"
    if not path.exists():
        return ""
    lines = path.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return f"; {path} ends with:\n" + "\n".join(lines)
