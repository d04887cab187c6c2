"""What a job came to, for its batch script: says it in one line, requeues a preempted job, and gives the exit status.

    python -m holmes_hpc.submit.outcome RUN_FOLDER STATUS_OF_SRUN [--requeue]

0 completed, 1 failed, 3 preempted. Slurm's status of a step over several components is not to be believed, so what
counts is what the ranks wrote; a rank that wrote nothing was killed, and is named.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from holmes_hpc.errors import FAILED, PREEMPTED, WRONG
from holmes_hpc.foreign import read_object
from holmes_hpc.quoting import for_shell
from holmes_hpc.runs import RunFolder, Start, read_result, write_result
from holmes_hpc.runs.files import read_json
from holmes_hpc.runs.going_on import with_way_on
from holmes_hpc.submit.commands import SlurmCommandError
from holmes_hpc.submit.log_causes import (
    BATCH_LOG,
    END_OF_START,
    NOT_SEEN,
    cause_in_log,
    log_tail,
    memory_in_log,
    newest_text,
)
from holmes_hpc.submit.onward import go_on
from holmes_hpc.submit.requeue import CancelledError, failed_nodes, own_job_id, requeue, requeued_by_slurm

STATUS = {"completed": 0, "failed": FAILED, "preempted": PREEMPTED}

MOST_FRUITLESS_STARTS = 5
"""So many starts in a row that were preempted before they finished a step end the run."""


def main(arguments: Sequence[str]) -> int:
    """End the run in the folder `arguments[0]` whose step ended with status `arguments[1]`; return the status."""
    if len(arguments) < 2:
        sys.stderr.write("usage: python -m holmes_hpc.submit.outcome RUN_FOLDER STATUS_OF_SRUN [--requeue]; a job's "
                         "batch script ends with it\n")
        return WRONG
    folder, step_status, may_requeue = RunFolder(Path(arguments[0])), arguments[1], "--requeue" in arguments[2:]
    if not folder.path.is_dir():  # and so this script's log is nowhere either
        sys.stdout.write(f"holmes_hpc: {NOT_SEEN.format(node=socket.gethostname(), folder=folder.path)}\n")
        return STATUS["failed"]
    job_id = own_job_id(os.environ)
    status, text = outcome_of(folder, step_status)
    if status == "failed" and may_requeue and job_id is not None:
        status, text = _after_failure(folder, text, job_id)
    elif status == "preempted":
        status, text = _go_on(folder, text, job_id, may_requeue)
    if status == "failed":
        text = with_way_on(folder, text)
        write_result(folder, status, error=text, emulated=False)
    sys.stdout.write(f"{END_OF_START} {step_status}; {status}" + (f": {text}" if text else "") + "\n")
    sys.stdout.flush()
    if status != "preempted" and job_id is not None:
        go_on(folder, job_id)
    return STATUS[status]


def outcome_of(folder: RunFolder, step_status: str, log: str = BATCH_LOG) -> tuple[str, str]:
    """Return the status of a run whose ranks have ended, and the reason; write result.json where the ranks did not.

    `log` is the file of the run folder that holds what srun said, for ranks that never started.
    """
    result, start = read_result(folder), Start.newest(folder)
    if result is not None and result["status"] in ("completed", "preempted"):
        return result["status"], str(result.get("error") or "")
    # Whatever a rank wrote: one that was killed could not, and comes before it.
    told = newest_text(folder, log)
    cause = start.cause(memory_in_log(told)) if start is not None else None
    error = cause or (result or {}).get("error") or cause_in_log(told) or (
        f"the ranks ended without writing a result (srun's status: {step_status}){log_tail(folder, log)}")
    write_result(folder, "failed", error=error, emulated=False)
    return "failed", error


def _after_failure(folder: RunFolder, text: str, job_id: str) -> tuple[str, str]:
    """Go on where the failure was a node's: Slurm requeues such a job itself, though it may notice later than we do.

    A job that was suspended for too long goes back into the queue as a preempted one does.
    """
    start, status = Start.newest(folder), "preempted"
    if start is not None and start.was_suspended():
        return _go_on(folder, text, job_id, may_requeue=True)
    try:
        if requeued_by_slurm(job_id):
            text += f"; Slurm has put job {job_id} back into the queue"
        elif start is not None and (down := failed_nodes(start.failed_nodes())):
            text += f"; {requeue(job_id, down)}"
        else:
            status = "failed"
    except (SlurmCommandError, CancelledError):
        status = "failed"
    write_result(folder, status, error=text, emulated=False)
    return status, text


def _go_on(folder: RunFolder, text: str, job_id: str | None, may_requeue: bool) -> tuple[str, str]:
    """Requeue a preempted job, or say how to go on by hand; write that into result.json."""
    status = "preempted"
    start = Start.newest(folder)
    excluded = _excluded(folder, start)
    if _is_fruitless(folder, start):
        status = "failed"
        text = (f"{MOST_FRUITLESS_STARTS} starts in a row ended before a step was finished ({text}); raise "
                "cluster.partitions.<label>.time_limit, or lower launch.signal_seconds")
    elif not may_requeue or job_id is None:
        text += f"; launch.requeue=false, so {_by_hand(folder)}"
    else:
        try:
            text += f"; {requeue(job_id, excluded)}"
        except CancelledError as error:
            status, text = "failed", f"{text}; the job is not requeued: {error}; {_by_hand(folder)}"
        except SlurmCommandError as error:
            text += f"; the job could not be requeued: {error}; {_by_hand(folder)}"
    write_result(folder, status, error=text, emulated=False)
    return status, text


def _by_hand(folder: RunFolder) -> str:
    return f"what was saved is kept: start again with {for_shell(f'train.resume={folder.path}')}"


def _excluded(folder: RunFolder, start: Start | None) -> list[str]:
    """Return the nodes that this start found unfit, those of earlier starts with them."""
    found = (start.read("exclude.json") or {}).get("nodes", []) if start is not None else []
    if not found:
        return []
    before = read_json(folder.excluded_path)
    before = [name for name in before if isinstance(name, str)] if isinstance(before, list) else []
    nodes = list(dict.fromkeys([*before, *found]))
    folder.write_json(folder.excluded_path, nodes)
    return nodes


def _is_fruitless(folder: RunFolder, start: Start | None) -> bool:
    """Note the step that this start came to; say whether this and the starts before it all came to the same one."""
    if start is None or (start.read("exclude.json") is not None):
        return False
    result = read_result(folder) or {}
    start.write("outcome.json", {"steps": result.get("steps")})
    starts = sorted(folder.starts.glob("*/outcome.json"), key=lambda path: path.stat().st_mtime)
    steps = [(read_object(path) or {}).get("steps") for path in starts[-MOST_FRUITLESS_STARTS:]]
    return len(steps) == MOST_FRUITLESS_STARTS and len(set(steps)) == 1


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="holmes_hpc: %(message)s", stream=sys.stdout)
    sys.exit(main(sys.argv[1:]))
