"""Watches submitted runs until they are over, without loading the controller; a requeued job is watched on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holmes_hpc.cluster.slurm.states import is_final
from holmes_hpc.runs import RunFolder, read_result, write_result
from holmes_hpc.runs.job import note_final_state
from holmes_hpc.submit.commands import SlurmCommandError
from holmes_hpc.submit.script import BATCH_LOG
from holmes_hpc.submit.states import JobStatus, read_states

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
WAIT_FACTOR = 1.4
PATIENCE_SECONDS = 30.0
"""How long a job may be unknown to Slurm, or preempted and not yet back in the queue, before it counts as gone."""
LOG_LINES = 15

NOT_SUBMITTED = "-"
"""In place of the job id of a run that Slurm did not take."""

Ask = Callable[[Sequence[str]], Mapping[str, JobStatus]]


@dataclass(frozen=True)
class SubmittedRun:
    """A run in Slurm's hands, or one that Slurm did not take (NOT_SUBMITTED), which is over."""

    job_id: str
    folder: RunFolder
    requeue: bool = True


@dataclass
class Watched:
    """What is known of one run. `since` is when its status began, or when Slurm last knew it."""

    run: SubmittedRun
    since: float
    status: JobStatus | None = None
    failed: bool = False
    over: bool = False


class Watch:
    """Asks for all runs that are not over in one call, less and less often while nothing changes."""

    def __init__(self, runs: Sequence[SubmittedRun], ask: Ask = read_states,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self.runs = [Watched(run, clock(), over=run.job_id == NOT_SUBMITTED) for run in runs]
        self._wait_seconds = FIRST_WAIT_SECONDS
        self._due = clock()

    @property
    def over(self) -> bool:
        """Whether every run is over."""
        return all(watched.over for watched in self.runs)

    def poll(self) -> list[Watched]:
        """Look again, and return the runs whose status changed or that are over since the last call."""
        changed = []
        for watched in self.runs:
            result = None if watched.over else _result(watched.run)
            if result == "completed":
                watched.over = True
                changed.append(watched)
            elif result == "failed" and not watched.failed:
                watched.failed = True  # unless Slurm requeues it, as after a node died: ask soon
                self._wait_seconds, self._due = FIRST_WAIT_SECONDS, min(self._due, self._clock() + FIRST_WAIT_SECONDS)
        if self._clock() >= self._due:
            told = self._ask_slurm()
            self._wait_seconds = FIRST_WAIT_SECONDS if told else min(self._wait_seconds * WAIT_FACTOR,
                                                                    LONGEST_WAIT_SECONDS)
            self._due = self._clock() + self._wait_seconds
            changed += told
        return changed

    def _ask_slurm(self) -> list[Watched]:
        open_runs = [watched for watched in self.runs if not watched.over]
        try:
            answer = self._ask([watched.run.job_id for watched in open_runs])
        except SlurmCommandError:
            for watched in open_runs:
                watched.since = self._clock()  # it is the controller that is away, not the job
            return []
        return [watched for watched in open_runs if self._take(watched, answer.get(watched.run.job_id))]

    def _take(self, watched: Watched, status: JobStatus | None) -> bool:
        before, now = (watched.status, watched.over), self._clock()
        if status is not None and status != watched.status:
            watched.status, watched.since = status, now
        if status is not None and not is_final(status.state):
            watched.since = now
        elif status is not None and is_final(status.state, requeue=watched.run.requeue):
            watched.over = True
            note_final_state(watched.run.folder, status.state)
        elif status is None and _result(watched.run) == "failed":
            watched.over = True  # the queue has forgotten it
        else:  # not known, or Slurm should put it back into the queue
            watched.over = now - watched.since > PATIENCE_SECONDS
        return (watched.status, watched.over) != before


def exit_status_of(watched: Watched) -> int:
    """Return the exit status of a run that is over; one whose ranks wrote no result is written down as failed."""
    folder = watched.run.folder
    result = read_result(folder)
    if result is not None:
        return 0 if result["status"] == "completed" else 1
    state = watched.status.state if watched.status else "unknown to Slurm"
    words = f"job {watched.run.job_id} ended as {state} before the run was complete"
    write_result(folder, "failed", error=f"{words}{log_tail(folder)}", emulated=False)
    return 1


def failure(run: SubmittedRun) -> str:
    """Return why a run that is over is not complete, in one message."""
    result = read_result(run.folder) or {}
    if result.get("status") == "preempted":
        return (f"job {run.job_id} was preempted and is not in the queue again; its checkpoints are kept in "
                f"{run.folder.checkpoints}")
    return str(result.get("error") or f"job {run.job_id} failed; its logs: `holmes logs {run.folder.path}`")


def _result(run: SubmittedRun) -> str | None:
    result = read_result(run.folder)
    return None if result is None else str(result["status"])


def log_tail(folder: RunFolder, lines: int = LOG_LINES) -> str:
    """Return the last lines of the batch script's log, to be put behind a message."""
    path = folder.path / BATCH_LOG
    if not path.exists():
        return ""
    shown = path.read_text(errors="replace").splitlines()[-lines:]
    return f"; {path} ends with:\n" + "\n".join(shown)
