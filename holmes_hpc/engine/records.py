"""What the ranks write of every step: rows of metrics.jsonl, and timelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holmes_hpc.errors import HolmesError
from holmes_hpc.runs import RunFolder

_ROWS_WAIT = "rows of the metrics are kept until it takes them"
_TIMELINES_ARE_LEFT_OUT = "timelines are left out until it takes them"


class Records:
    """Writes the records of one rank.

    With `patient`, a disk that refuses them does not end the run: rows of the metrics are kept and written once it
    takes them, and a timeline is left out. A checkpoint that fails for want of space takes all of it for a moment, so
    that `train.on_save_error=continue` needs this.
    """

    def __init__(self, folder: RunFolder, rank: int, say: Callable[[str], None], *, patient: bool) -> None:
        self._folder, self._rank, self._say, self._patient = folder, rank, say, patient
        self._kept: list[Mapping[str, Any]] = []
        self._refused: set[str] = set()

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Append a row to metrics.jsonl. Raises as `files.storage_error` says, unless it may wait."""
        self._kept.append(row)
        try:
            self._write_kept()
        except HolmesError as error:
            self._bear(error, _ROWS_WAIT)
        else:
            self._refused.discard(_ROWS_WAIT)

    def add_timeline(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append a step to this rank's timeline. Raises as `files.storage_error` says, unless it may be left out."""
        try:
            self._folder.append_timeline(self._rank, [{"step": step, **row} for row in rows])
        except HolmesError as error:
            self._bear(error, _TIMELINES_ARE_LEFT_OUT)
        else:
            self._refused.discard(_TIMELINES_ARE_LEFT_OUT)

    def finish(self) -> None:
        """Write what was kept. Raises as `files.storage_error` says."""
        self._write_kept()

    def _write_kept(self) -> None:
        while self._kept:
            self._folder.append_metrics(self._kept[0])
            self._kept.pop(0)

    def _bear(self, error: Exception, what: str) -> None:
        if not self._patient:
            raise error
        if what not in self._refused:
            self._say(f"WARNING: {error}; training goes on (train.on_save_error=continue), {what}")
        self._refused.add(what)
