"""metrics.jsonl and the ranks' timelines: one JSON object a line, appended while the run goes on."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from holmes_hpc.foreign import number, parse_object, read_end, whole_number
from holmes_hpc.runs.files import finite, storage_error
from holmes_hpc.runs.growing import GrowingFile

_TAIL_BYTES = 65536
FIGURES = ("loss", "tokens_per_second", "samples_per_second", "step_seconds", "tflops_per_gpu", "mfu", "grad_norm",
           "lr", "memory_gib", "exposed_comm_seconds", "bubble_fraction", "validation_loss")
"""The keys of a step's record that hold a number or null."""
MOST_LINES_BYTES = 512 << 20
"""What is read of a file of JSON lines: the last million steps."""


class MetricsWriter:
    """Appends records to a file, those of a call with one write, so that a reader sees whole lines.

    A line that a killed writer left torn is ended first. Raises as `files.storage_error` says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o664)
            if _is_torn(self._descriptor):
                os.write(self._descriptor, b"\n")
        except OSError as error:
            raise storage_error(path, error) from error

    def write(self, *records: Mapping[str, Any]) -> None:
        """Append records, all or none of them; NaN and infinities become null."""
        lines = "".join(json.dumps(finite(record)) + "\n" for record in records).encode()
        try:
            size = os.fstat(self._descriptor).st_size
            if os.write(self._descriptor, lines) < len(lines):
                os.ftruncate(self._descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise storage_error(self.path, error) from error

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def read_last_json_line(path: Path) -> dict[str, Any] | None:
    """Return the last whole record of a file of JSON lines without reading all of it; None where there is none."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL_BYTES, 0))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    return next((record for line in reversed(lines) if (record := parse_object(line)) is not None), None)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file of JSON lines, in order; [] where it is missing.

    Torn lines, which a killed writer leaves, are left out, and what lies before the last MOST_LINES_BYTES.
    """
    if not path.is_file():
        return []
    lines = read_end(path, MOST_LINES_BYTES).split("\n")
    return [record for line in lines if (record := parse_object(line)) is not None]


class NewSteps(GrowingFile):
    """Reads the steps of metrics.jsonl, each once; with `skip` those that are there now are left out."""

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that were added since the last look."""
        return [row for record in self.new_records() if (row := step_row(record)) is not None]


def step_row(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a record of metrics.jsonl whose figures are numbers; what is none is null. None where it has no step."""
    step = whole_number(record.get("step"))
    if step is None:
        return None
    return {**record, **{name: number(record.get(name)) for name in FIGURES if name in record}, "step": step}


def timeline_row(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a record of a rank's timeline; None where it has no step, kind or times, or another value is none."""
    whole = whole_number(record.get("step")) is not None
    named = isinstance(record.get("kind"), str) and isinstance(record.get("action", ""), str)
    timed = all(number(record.get(name)) is not None for name in ("start", "end"))
    placed = all(whole_number(record.get(name, -1), -1) is not None for name in ("pipeline", "stage", "microbatch"))
    return dict(record) if whole and named and timed and placed else None


def newest_actions(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a timeline with each action of a step once: a resumed run does the last steps again.

    A step's new recording begins where the step changes or an action repeats. Records that are no rows are left out.
    """
    recordings: dict[int, dict[str, dict[str, Any]]] = {}
    previous = None
    for record in records:
        row = timeline_row(record)
        if row is None or "action" not in row:
            continue
        step, action = row["step"], row["action"]
        if step != previous or action in recordings[step]:
            recordings[step] = {}
        recordings[step][action] = row
        previous = step
    return [row for recording in recordings.values() for row in recording.values()]


def _is_torn(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
