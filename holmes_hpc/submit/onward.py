"""What a job of a sweep does for the others as it ends, so that a sweep goes on though nobody follows it.

It lets the next job of the window start (`submit/window.py`), and has those runs submitted that a limit on submitted
jobs kept out, or goes on with one of them itself (`submit/succession.py`). Nothing of it changes how the job itself
ended.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys

from holmes_hpc.bounded import run_bounded
from holmes_hpc.errors import HolmesError
from holmes_hpc.foreign import read_object
from holmes_hpc.quoting import for_shell
from holmes_hpc.runs import RunFolder, read_result
from holmes_hpc.runs.lease import HeldError, held, is_renewed, lease_path
from holmes_hpc.runs.private import is_own
from holmes_hpc.runs.sweeps import Sweep, sweep_of
from holmes_hpc.submit.commands import run_command
from holmes_hpc.submit.job import submitted_run
from holmes_hpc.submit.window import read_queue, slide

LOG = logging.getLogger(__name__)

WINDOW_SECONDS = 20.0
"""How long a job waits for another one that changes the window."""
ROOM_SECONDS = 30.0
"""How long the last job waits for room until it gives up: jobs that end with it still count."""
_SUBMIT_SECONDS = 180.0


def go_on(folder: RunFolder, job_id: str) -> None:
    """Let the sweep of a run go on as its job `job_id` ends; what fails is said in the log of this process."""
    sweep = sweep_of(folder)
    if sweep is None or not is_own(sweep.place):
        return
    try:
        if sweep.max_jobs is not None:
            slide_window(sweep, behind=job_id)
        if sweep.for_room and sweep.waiting:
            _submit_waiting(sweep, job_id)
    except (HolmesError, HeldError, OSError, subprocess.SubprocessError) as error:
        LOG.warning("the sweep in %s does not go on by this job: %s; `holmes sweep %s --resume` does", sweep.place,
                    error, for_shell(str(sweep.place)))


def slide_window(sweep: Sweep, cluster: str | None = None, behind: str = "") -> None:
    """Let jobs of a sweep start in the places of those that have ended, as `slide` says.

    Raises SlurmCommandError as `read_queue` does, HeldError where others do it for long.
    """
    if sweep.max_jobs is None:
        return
    with held(sweep.place / "window", WINDOW_SECONDS):
        jobs = _jobs(sweep)
        ended = {job for job, folder in jobs.items() if _has_ended(folder)}
        for change in slide(read_queue(jobs, cluster), sweep.max_jobs, ended, behind):
            LOG.info("job %s of this sweep starts next", change.job)
            run_command(change.words(), cluster=cluster)


def _submit_waiting(sweep: Sweep, job_id: str) -> None:
    """Have the runs that wait for room submitted, unless a command that follows the sweep does so."""
    lease, with_it = lease_path(sweep.submitting), _ending_with(sweep, job_id)
    last = with_it is not None
    if (read_object(lease) or {}).get("stays") and (not last or is_renewed(lease)):
        return
    # Where none ends with it nobody else makes room, and this job itself counts still.
    words = ["--only-waiting", str(ROOM_SECONDS if with_it else 0.0), *(["--job", job_id] if last else [])]
    before = signal.getsignal(signal.SIGTERM)
    if last:  # Slurm ends what it queues again, but why is still to be said
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        done = run_bounded([sys.executable, "-m", "holmes_hpc.sweep", str(sweep.place), "--resume", *words],
                           _SUBMIT_SECONDS)
        for line in done.said_text.splitlines():
            LOG.info("%s", line)
    finally:
        signal.signal(signal.SIGTERM, before)


def _ending_with(sweep: Sweep, job_id: str) -> int | None:
    """Return how many of the sweep's jobs end together with this one; None where another one will try after it.

    Of those that end together that is the youngest.
    """
    jobs = _jobs(sweep)
    living = read_queue(jobs)
    tasks = [task for queued in living for task in queued.tasks]
    if any(not _has_ended(jobs[task]) for task in tasks if task in jobs) or job_id != max(tasks, key=_number,
                                                                                           default=job_id):
        return None
    return len({*tasks} - {job_id})


def _jobs(sweep: Sweep) -> dict[str, RunFolder]:
    runs = (submitted_run(folder) for folder in sweep.folders.values())
    return {run.job_id: run.folder for run in runs if run is not None and not run.gone_on}


def _has_ended(folder: RunFolder) -> bool:
    return (read_result(folder) or {}).get("status") in ("completed", "failed")


def _number(job_id: str) -> list[int]:
    return [int(part) for part in job_id.split("_")]
