"""Why a submitted run ended before it was complete: one message, as far as Slurm, the ranks and the logs tell."""

from __future__ import annotations

from holmes_hpc.runs import RunFolder, read_result, write_result
from holmes_hpc.submit.script import BATCH_LOG
from holmes_hpc.submit.watch import LIFELESS_SECONDS, Watched

LOG_LINES = 15


def exit_status_of(watched: Watched) -> int:
    """Return the exit status of a run that is over; one whose ranks wrote no result is written down as failed.

    One that nobody tells of any more is not: it may go on.
    """
    folder = watched.run.folder
    result = read_result(folder)
    if result is not None:
        return 0 if result["status"] == "completed" else 1
    if watched.lost:
        return 1
    state = watched.status.state if watched.status else "unknown to Slurm"
    words = f"job {watched.run.job_id} ended as {state} before the run was complete"
    write_result(folder, "failed", error=f"{words}{log_tail(folder)}", emulated=False)
    return 1


def failure(watched: Watched) -> str:
    """Return why a run that is over is not complete, in one message."""
    run = watched.run
    result = read_result(run.folder) or {}
    if watched.lost:
        return (f"job {run.job_id} is followed no longer: Slurm does not tell of it, and its ranks have given no sign "
                f"of life for {LIFELESS_SECONDS:g} s. It may wait or run still: `holmes jobs {run.folder.path}`")
    if result.get("status") == "preempted":
        return (f"job {run.job_id} was preempted and is not in the queue again; its checkpoints are kept in "
                f"{run.folder.checkpoints}")
    return str(result.get("error") or f"job {run.job_id} failed; its logs: `holmes logs {run.folder.path}`")


def log_tail(folder: RunFolder, lines: int = LOG_LINES) -> str:
    """Return the last lines of the batch script's log, to be put behind a message."""
    path = folder.path / BATCH_LOG
    if not path.exists():
        return ""
    shown = path.read_text(errors="replace").splitlines()[-lines:]
    return f"; {path} ends with:\n" + "\n".join(shown)
