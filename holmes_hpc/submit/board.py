"""The table of submitted runs: state, step, tokens per second and loss of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from holmes_hpc import foreign
from holmes_hpc.cluster.slurm.states import is_final
from holmes_hpc.quoting import for_table, for_terminal
from holmes_hpc.runs import RunFolder, last_metrics, read_result
from holmes_hpc.runs.job import final_state
from holmes_hpc.runs.starts import nearness
from holmes_hpc.submit.states import JobStatus
from holmes_hpc.submit.watch import NOT_SUBMITTED, NOT_YET, Watched

TRACEBACK_LINES = 6
COLUMNS = ("job", "run", "state", "step", "tokens/s", "loss")
NUMBERS = ("step", "tokens/s", "loss")


@dataclass(frozen=True)
class Row:
    """One run of the table; what is not known is None."""

    job_id: str
    folder: RunFolder
    state: str
    step: int | None
    steps: int | None
    tokens_per_second: float | None
    loss: float | None
    words: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return the cells of COLUMNS, and the overrides where there are any."""
        step = "" if self.step is None else f"{self.step}/{self.steps}" if self.steps else str(self.step)
        speed = "" if self.tokens_per_second is None else f"{self.tokens_per_second:,.0f}"
        loss = "" if self.loss is None else f"{self.loss:.3f}"
        run = f"{self.folder.name}/{self.folder.id}"
        return (self.job_id, run, self.state, step, speed, loss, *([self.words] if self.words else []))


class Board:
    """Reads the rows of runs; `words` are what to show beside the run in a folder, such as its overrides."""

    def __init__(self, words: Mapping[Path, str] | None = None) -> None:
        self._words = words or {}
        self._steps: dict[RunFolder, int | None] = {}

    def row(self, watched: Watched) -> Row:
        """Return the row of a run as its folder and Slurm tell of it."""
        folder = watched.run.folder
        result, last = read_result(folder) or {}, last_metrics(folder) or {}
        if folder not in self._steps:
            self._steps[folder] = planned_steps(folder)
        if watched.run.job_id in (NOT_SUBMITTED, NOT_YET):
            state = "not submitted" if watched.run.job_id == NOT_SUBMITTED else "to be submitted"
            return Row(watched.run.job_id, folder, state, None, self._steps[folder], None, None,
                       self._words.get(folder.path, ""))
        done = result.get("status") == "completed"
        ended = final_state(folder) if watched.status is None else None
        status = JobStatus(ended) if ended else watched.status
        return Row(
            job_id=watched.run.job_id, folder=folder, state=shown_state(status, result.get("status")),
            step=last.get("step"), steps=self._steps[folder], loss=last.get("loss"),
            tokens_per_second=(result if done else last).get("tokens_per_second_median" if done
                                                             else "tokens_per_second"),
            words=self._words.get(folder.path, ""))


def shown_state(status: JobStatus | None, result: str | None) -> str:
    """Return a run's state in a word: what its ranks wrote at its end, else what Slurm says.

    A failed run whose job lives is on its way back into the queue, as after a node died. A job that somebody cancelled
    stays cancelled, whatever its ranks could still write.
    """
    if status is not None and status.state == "CANCELLED" and result != "completed":
        return "cancelled"
    if result == "completed" or (result == "failed" and (status is None or is_final(status.state))):
        return result
    if status is None:
        return result or "unknown"
    reason = f" ({status.reason})" if status.reason and status.state == "PENDING" else ""
    return status.state.lower() + reason


def planned_steps(folder: RunFolder) -> int | None:
    """Return `train.steps` of a run, or None where its configuration cannot be read."""
    try:
        config = foreign.read_yaml(folder.config_path)
    except foreign.ForeignError:
        return None
    train = config.get("train") if isinstance(config, dict) else None
    return foreign.whole_number(train.get("steps")) if isinstance(train, dict) else None


def table(rows: Sequence[Row]) -> Table:
    """Return the rows as a table for a terminal."""
    drawn = Table(box=None, pad_edge=False)
    named = any(row.words for row in rows)
    for name in COLUMNS + (("overrides",) if named else ()):
        drawn.add_column(name, justify="right" if name in NUMBERS else "left",
                         overflow="fold" if name == "overrides" else "ellipsis", no_wrap=name != "overrides")
    for row in rows:
        cells = row.cells()
        drawn.add_row(*map(for_table, cells), *([""] if named and not row.words else []))
    return drawn


def text(rows: Sequence[Row]) -> str:
    """Return the rows as aligned lines of plain text."""
    named = any(row.words for row in rows)
    return for_terminal(aligned([COLUMNS + (("overrides",) if named else ()), *(row.cells() for row in rows)]))


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells, the first their head, with columns of one width; numbers stand at the right."""
    widths = [max(len(line[column]) for line in lines if column < len(line)) for column in range(len(lines[0]))]
    align: list[Callable[[str, int], str]] = [str.rjust if name in NUMBERS else str.ljust for name in lines[0]]
    return "".join("  ".join(align[column](cell, widths[column]) for column, cell in enumerate(line)).rstrip() + "\n"
                   for line in lines)


def failure_lines(folder: RunFolder) -> list[str]:
    """Return why a run failed: its error, and the last lines of the traceback of the rank whose error is the cause."""
    lines = [str((read_result(folder) or {}).get("error") or f"no error is written down; see {folder.logs}")]
    reports = {path: report for path in folder.ranks.glob("rank-[0-9]*.error.json")
               if (report := foreign.read_object(path)) and isinstance(report.get("traceback"), str)}
    for path in sorted(reports, key=lambda path: (nearness(reports[path]), _rank_of(path)))[:1]:
        lines.append(f"rank {_rank_of(path)}, the last lines of its traceback:")
        lines += [f"  {line}" for line in reports[path]["traceback"].rstrip().splitlines()[-TRACEBACK_LINES:]]
    return lines


def _rank_of(path: Path) -> int:
    number = path.name.removeprefix("rank-").partition(".")[0]
    return int(number) if number.isdecimal() else 0
