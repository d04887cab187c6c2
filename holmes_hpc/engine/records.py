"""What the ranks write of every step: rows of metrics.jsonl, and timelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holmes_hpc.errors import HolmesError
from holmes_hpc.runs import RunFolder

_ROWS_WAIT = "rows of the metrics are kept until it takes them"
_TIMELINES_ARE_LEFT_OUT = "timelines are left out until it takes them"


class MetricsFile:
    """The tracker that every run has: it writes metrics.jsonl, which the run is followed by.

    So unlike others it is given rows in the step, and an error of it ends the run. With `patient`, a disk that refuses
    rows does not: they are kept and written once it takes them. A checkpoint that fails for want of space takes all of
    it for a moment, so that `train.on_save_error=continue` needs this.
    """

    def __init__(self, folder: RunFolder, say: Callable[[str], None], *, patient: bool) -> None:
        self._folder, self._patience = folder, _Patience(say, _ROWS_WAIT, patient=patient)
        self._kept: list[Mapping[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row. Raises as `files.storage_error` says, unless it may wait."""
        self._kept.append(row)
        self._patience.bears(self._write_kept)

    def close(self) -> None:
        """Write what was kept. Raises as `files.storage_error` says."""
        self._write_kept()

    def _write_kept(self) -> None:
        while self._kept:
            self._folder.append_metrics(self._kept[0])
            self._kept.pop(0)


class Timelines:
    """Writes the timelines of one rank; with `patient` those are left out that the disk refuses."""

    def __init__(self, folder: RunFolder, rank: int, say: Callable[[str], None], *, patient: bool) -> None:
        self._folder, self._rank = folder, rank
        self._patience = _Patience(say, _TIMELINES_ARE_LEFT_OUT, patient=patient)

    def add(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append a step. Raises as `files.storage_error` says, unless it may be left out."""
        records = [{"step": step, **row} for row in rows]
        self._patience.bears(lambda: self._folder.append_timeline(self._rank, records))


class _Patience:
    """Bears errors of the disk, if it may, and says them once each time that it begins to refuse."""

    def __init__(self, say: Callable[[str], None], what: str, *, patient: bool) -> None:
        self._say, self._what, self._patient = say, what, patient
        self._refused = False

    def bears(self, write: Callable[[], None]) -> None:
        """Write, and raise what it raises where that is not to be borne."""
        try:
            write()
        except HolmesError as error:
            if not self._patient:
                raise
            if not self._refused:
                self._say(f"WARNING: {error}; training goes on (train.on_save_error=continue), {self._what}")
            self._refused = True
        else:
            self._refused = False
