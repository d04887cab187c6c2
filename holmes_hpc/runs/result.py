"""result.json: how a run ended; and the healing of runs that ended without writing it."""

from __future__ import annotations

import logging
import statistics
from pathlib import Path
from typing import Any

from holmes_hpc.errors import HolmesError
from holmes_hpc.runs.files import read_json, write_json_atomic
from holmes_hpc.runs.folder import RunFolder
from holmes_hpc.runs.job import main_is_alive
from holmes_hpc.runs.metrics import read_metrics

STATUSES = ("completed", "preempted", "failed")

_log = logging.getLogger(__name__)


def write_result(folder: RunFolder, status: str, steps: int, tokens_per_second_median: float | None,
                 final_loss: float | None, error: str | None, emulated: bool) -> None:
    """Write result.json; `status` is completed, preempted or failed, `error` None unless it failed.

    Raises ValueError for another status, else as `files.storage_error` says.
    """
    if status not in STATUSES:
        raise ValueError(f"status {status!r} is none of {', '.join(STATUSES)}")
    write_json_atomic(folder.result_path, {
        "status": status,
        "steps": steps,
        "tokens_per_second_median": tokens_per_second_median,
        "final_loss": final_loss,
        "error": error,
        "emulated": emulated,
    })


def read_result(folder: RunFolder) -> dict[str, Any] | None:
    """Return result.json, or None where the run has not ended."""
    result = read_json(folder.result_path)
    return result if isinstance(result, dict) else None


def heal(base: Path) -> list[RunFolder]:
    """Write `failed` for the runs under `base` whose main process died without a result; return their folders.

    Left alone: runs that go on, Slurm jobs (Slurm knows their state), runs of another host, and folders that
    cannot be read or written.
    """
    healed = []
    for job_path in sorted(Path(base).expanduser().glob("*/*/job.json")):
        folder = RunFolder(job_path.parent)
        job = read_json(job_path)
        if folder.result_path.exists() or not isinstance(job, dict) or job.get("job_id") is not None:
            continue
        if main_is_alive(job) is not False or folder.result_path.exists():
            continue  # asked again: the run may have written it and ended between the two questions
        try:
            _write_failed(folder, job)
        except (HolmesError, OSError) as error:
            _log.debug("%s was not healed: %s", folder.path, error)
            continue
        healed.append(folder)
    return healed


def _write_failed(folder: RunFolder, job: dict[str, Any]) -> None:
    records = read_metrics(folder.metrics_path)
    last = records[-1] if records else {}
    speeds = [record["tokens_per_second"] for record in records
              if isinstance(record.get("tokens_per_second"), int | float)]
    write_result(
        folder, "failed", steps=int(last.get("step") or 0),
        tokens_per_second_median=statistics.median(speeds) if speeds else None,
        final_loss=last.get("loss"),
        error=f"the main process (pid {job['main_pid']} on {job['host']}) ended without writing a result, as after "
              f"kill -9 or a power failure; the run's processes ended with it. Start the run again",
        emulated=bool(job.get("emulated", last.get("emulated", False))))
