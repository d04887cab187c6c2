"""result.json: how a run ended; and the healing of runs that ended without writing it."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holmes_hpc.errors import HolmesError
from holmes_hpc.paths import at_home
from holmes_hpc.redaction import redact
from holmes_hpc.runs.files import read_json, write_json_atomic
from holmes_hpc.runs.folder import RunFolder
from holmes_hpc.runs.job import main_is_alive, ranks_are_alive
from holmes_hpc.runs.metrics import read_json_lines, read_last_json_line, step_row

STATUSES = ("completed", "preempted", "failed")
WARMUP_STEPS = 3
"""First steps that the median of the speed leaves out."""

_log = logging.getLogger(__name__)


def write_result(folder: RunFolder, status: str, *, error: str | None, emulated: bool,
                 steps: int | None = None, tokens_per_second_median: float | None = None,
                 final_loss: float | None = None, others_held_cores: float | None = None) -> None:
    """Write result.json; `status` is completed, preempted or failed, `error` None unless it failed.

    Steps, speed and loss that are not given are taken from metrics.jsonl; the median leaves out the first
    steps (3, or half of a short run), which warm up. `others_held_cores` is how many cores other programs held on
    average, where that took some from the run. `no_speed` in the file tells why a wind tunnel has no speed. Raises
    ValueError for another status, else as `files.storage_error` says.
    """
    if status not in STATUSES:
        raise ValueError(f"status {status!r} is none of {', '.join(STATUSES)}")
    records = read_metrics(folder)
    last = records[-1] if records else {}
    no_speed = _no_speed(records, others_held_cores) if last.get("timed") else ""
    if tokens_per_second_median is None and not no_speed:
        tokens_per_second_median = _median_speed(records)
    write_json_atomic(folder.result_path, {
        "status": status,
        "steps": int(last.get("step") or 0) if steps is None else steps,
        "tokens_per_second_median": tokens_per_second_median,
        "final_loss": last.get("loss") if final_loss is None else final_loss,
        "error": None if error is None else redact(error),
        "emulated": emulated,
        **({"timed": True} if last.get("timed") else {}),
        **({"no_speed": no_speed} if no_speed else {}),
        **({} if others_held_cores is None else {"others_held_cores": round(others_held_cores, 1)}),
    })


def read_metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl in the order written; [] before the first step.

    After a resume a step may be there twice; the later record holds.
    """
    return [row for record in read_json_lines(folder.metrics_path) if (row := step_row(record)) is not None]


def last_metrics(folder: RunFolder) -> dict[str, Any] | None:
    """Return the newest record of metrics.jsonl, or None before the first step."""
    record = read_last_json_line(folder.metrics_path)
    return None if record is None else step_row(record)


def _median_speed(records: list[dict[str, Any]]) -> float | None:
    return _median([record for record in _measured(records) if not is_disturbed(record)], "tokens_per_second")


def _no_speed(records: list[dict[str, Any]], others_held_cores: float | None) -> str:
    """Return why the speed of a wind tunnel says nothing; "" where it is one.

    Half of all steps but the first are to be valid, of those that were not disturbed on purpose.
    """
    if others_held_cores is not None:
        return f"other programs held {others_held_cores:.1f} cores of this machine"
    steps = [record for record in _by_step(records) if record.get("step") != 1 and not is_disturbed(record)]
    refused = [str(record["not_valid"]) for record in steps if record.get("not_valid")]
    if not steps:
        return "no step but the first"
    if 2 * len(refused) > len(steps):
        return f"{len(steps) - len(refused)} of {len(steps)} steps are valid (the first warms up): {refused[-1]}"
    return "" if _median_speed(records) is not None else "no step after the first ones is both valid and undisturbed"


def median_step_seconds(folder: RunFolder) -> float | None:
    """Return the median seconds of a run's steps, without the first ones and those that were disturbed on purpose.

    None before the first such step.
    """
    return _median([record for record in _measured(read_metrics(folder)) if not is_disturbed(record)], "step_seconds")


def disturbed_step_seconds(folder: RunFolder) -> dict[str, float]:
    """Return by what disturbed them on purpose the median seconds of a run's steps, without the first ones."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in _measured(read_metrics(folder)):
        if is_disturbed(record):
            found.setdefault("; ".join(record["disturbed"]), []).append(record)
    medians = {words: _median(records, "step_seconds") for words, records in found.items()}
    return {words: seconds for words, seconds in medians.items() if seconds is not None}


def is_disturbed(record: Mapping[str, Any]) -> bool:
    """Whether a record of metrics.jsonl is of a step that was disturbed on purpose."""
    return bool(record.get("disturbed"))


def _measured(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records without the first ones, each step once."""
    steps = _by_step(records)
    return steps[min(WARMUP_STEPS, len(steps) // 2):]


def _by_step(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({record.get("step"): record for record in records}.values())


def _median(records: list[dict[str, Any]], name: str) -> float | None:
    values = [value for record in records if isinstance(value := record.get(name), int | float)]
    return statistics.median(values) if values else None


def read_result(folder: RunFolder) -> dict[str, Any] | None:
    """Return result.json, or None where the run has not ended, or where the file is none."""
    result = read_json(folder.result_path)
    return result if isinstance(result, dict) and result.get("status") in STATUSES else None


def heal(base: Path, clear: Callable[[RunFolder], str] | None = None) -> list[RunFolder]:
    """Write `failed` for the runs under `base` whose main process died without a result; return them.

    `clear` clears away what such a run left, and returns how to go on with it, for its result. Left alone: runs that
    go on or have a rank that does, Slurm jobs (Slurm knows their state), runs of another host, and folders that cannot
    be read or written.
    """
    healed = []
    for job_path in _jobs_below(at_home(base)):
        folder = RunFolder(job_path.parent)
        job = read_json(job_path)
        if folder.result_path.exists() or not isinstance(job, dict) or job.get("job_id") is not None:
            continue
        if main_is_alive(job) is not False or ranks_are_alive(job) or folder.result_path.exists():
            continue  # asked again: the run may have written it and ended between the two questions
        try:
            _write_failed(folder, job, clear(folder) if clear is not None else "start the run again")
        except (HolmesError, OSError) as error:
            _log.debug("%s was not healed: %s", folder.path, error)
            continue
        healed.append(folder)
    return healed


def _jobs_below(base: Path) -> list[Path]:
    try:
        return sorted(base.glob("*/*/job.json"))
    except OSError:
        return []  # it cannot be searched: whoever writes there says so


def _write_failed(folder: RunFolder, job: dict[str, Any], remedy: str) -> None:
    emulated = job.get("emulated")
    if emulated is None:
        emulated = any(record.get("emulated") for record in read_metrics(folder))
    write_result(
        folder, "failed", emulated=bool(emulated),
        error=f"the main process (pid {job.get('main_pid')} on {job.get('host')}) ended without writing a result, as "
              f"after kill -9 or a power failure; the run's processes ended with it; {remedy}")
