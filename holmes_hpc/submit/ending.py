"""Why a submitted run ended before it was complete: one message, as far as Slurm, the ranks and the logs tell."""

from __future__ import annotations

import re
from contextlib import suppress

from holmes_hpc.cluster.slurm.states import is_final
from holmes_hpc.errors import HolmesError
from holmes_hpc.quoting import for_shell
from holmes_hpc.runs import RunFolder, Start, read_result, write_result
from holmes_hpc.runs.files import is_full
from holmes_hpc.runs.going_on import with_way_on
from holmes_hpc.submit.commands import SlurmCommandError, run_command
from holmes_hpc.submit.log_causes import BATCH_LOG, MORE_MEMORY, cause_in_log, log_tail, newest_text
from holmes_hpc.submit.watch import LIFELESS_SECONDS, SubmittedRun, Watched

_CANCELLED, _FAILED, _OUT_OF_MEMORY, _PREEMPTED = "CANCELLED", "FAILED", "OUT_OF_MEMORY", "PREEMPTED"


def exit_status_of(watched: Watched) -> int:
    """Return the exit status of a run that is over; one whose ranks wrote no result is written down as failed.

    One that nobody tells of any more is not: it may go on.
    """
    folder = watched.run.folder
    result = read_result(folder)
    if result is not None:
        return 0 if result["status"] == "completed" else 1
    if not watched.lost:
        with suppress(HolmesError):  # its folder may be full; `failure` tells the cause all the same
            write_result(folder, "failed", error=with_way_on(folder, _without_result(watched)), emulated=False)
    return 1


def failure(watched: Watched) -> str:
    """Return why a run that is over is not complete, in one message."""
    run = watched.run
    if watched.lost:
        return (f"job {run.job_id} is followed no longer: Slurm does not tell of it, and its ranks have given no sign "
                f"of life for {LIFELESS_SECONDS:g} s. It may wait or run still: `holmes jobs "
                f"{for_shell(str(run.folder.path))}`")
    result = read_result(run.folder) or {"error": with_way_on(run.folder, _without_result(watched))}
    error = str(result.get("error") or "")
    if _state(watched) == _CANCELLED:  # whatever the ranks could still write when they were told
        return with_way_on(run.folder, f"job {run.job_id} was cancelled")
    if result.get("status") == "preempted":
        said = f": {error}" if error else ""
        why = ("was preempted" if _state(watched) == _PREEMPTED else
               "was stopped before its end, as by its time limit or a preemption,")
        return with_way_on(run.folder, f"job {run.job_id} {why} and is not in the queue again; its checkpoints are "
                                       f"kept in {run.folder.checkpoints}{said}")
    return error or f"job {run.job_id} failed; its logs: `holmes logs {for_shell(str(run.folder.path))}`"


def _state(watched: Watched) -> str:
    return watched.status.state if watched.status else "unknown to Slurm"


def _without_result(watched: Watched) -> str:
    """Return why a job ended whose ranks and batch script wrote no result."""
    folder, job_id, state = watched.run.folder, watched.run.job_id, _state(watched)
    if state == _CANCELLED:
        return f"job {job_id} was cancelled before the run was complete"
    began = (folder.path / BATCH_LOG).exists() or Start.newest(folder) is not None
    if not began and (watched.status is None or state == "PENDING"):
        return (f"Slurm does not know job {job_id} any more, and it never began: the controller lost it, as one does "
                "that is killed before it has saved; start the run again")
    words = f"job {job_id} ended as {state} before the run was complete"
    if watched.status is None:
        words = f"Slurm does not know job {job_id} any more, and the run was not complete"
    elif not is_final(state):
        words = f"Slurm does not know job {job_id} any more, which was {state} before, and the run was not complete"
    if state == _OUT_OF_MEMORY:
        words += f": it used more memory than it was given; {MORE_MEMORY}"
    if not began:
        return (f"{words}{_details(watched.run)}, and left nothing in {folder.path}, where its log belongs: if the "
                "nodes do not see that folder, choose a place on a file system that all nodes share by run.folder=PATH")
    cause = cause_in_log(newest_text(folder)) or _full(folder)
    if cause is None and state == _FAILED and Start.newest(folder) is None:
        words = (f"job {job_id} ended as {state}{_details(watched.run)} before its ranks were started, as where a line "
                 "of launch.setup ends the script")
    return f"{words}: {cause}" if cause else f"{words}{log_tail(folder)}"


def _full(folder: RunFolder) -> str | None:
    if not is_full(folder.path):
        return None
    return (f"the disk or the quota of {folder.path} is full, so neither ranks nor logs could be written; free space "
            "there, or choose another place with run.folder=PATH")


def _details(run: SubmittedRun) -> str:
    """Return a job's exit code and nodes where Slurm still knows them, to be put behind a message."""
    for words, pattern in ((["scontrol", "show", "job", run.job_id], r"ExitCode=(?P<code>[0-9:]+)"),
                           (["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={run.job_id}",
                             "--format=ExitCode"], r"(?P<code>[0-9]+:[0-9]+)")):
        with suppress(SlurmCommandError):
            told = run_command(words, cluster=run.cluster)
            codes = [code for code in re.findall(pattern, told) if code != "0:0"]
            nodes = [name for name in re.findall(r"[ \n]NodeList=(\S+)", told) if name != "(null)"]
            if codes or nodes:
                where = f" on {', '.join(nodes)}" if nodes else ""
                return f" (exit code {codes[0] if codes else '0:0'}{where})"
    return ""
