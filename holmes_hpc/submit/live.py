"""Shows the table of submitted runs until all are over: live on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live

from holmes_hpc.quoting import for_terminal
from holmes_hpc.submit.board import Board, Row, table, text
from holmes_hpc.submit.watch import Watch, Watched

LOOK_SECONDS = 1.0
LINE_SECONDS = 30.0
"""Between two lines about a run that gets on, where the output is no terminal."""


def show_until_over(watch: Watch, board: Board, stream: TextIO,
                    between: Callable[[Sequence[Watched]], None] = lambda changed: None) -> None:
    """Show the runs until every one is over, and then their table, on `stream`.

    `between` is called at every look, with the runs that changed.
    """
    if stream.isatty():
        _live(watch, board, stream, between)
    else:
        _lines(watch, board, stream, between)
        stream.write(text(rows(watch, board)))
        stream.flush()


def rows(watch: Watch, board: Board) -> list[Row]:
    """Return the rows of all runs."""
    return [board.row(watched) for watched in watch.runs]


def _live(watch: Watch, board: Board, stream: TextIO, between: Callable[[Sequence[Watched]], None]) -> None:
    with Live(console=Console(file=stream), auto_refresh=False) as live:
        while True:
            between(watch.poll())
            live.update(table(rows(watch, board)), refresh=True)
            if watch.over:
                return
            time.sleep(LOOK_SECONDS)


def _lines(watch: Watch, board: Board, stream: TextIO, between: Callable[[Sequence[Watched]], None]) -> None:
    shown: dict[str, tuple[str, float]] = {}
    while True:
        between(watch.poll())
        for watched in watch.runs:
            if line := _due_line(watched, board, shown):
                stream.write(for_terminal(line) + "\n")
        stream.flush()
        if watch.over:
            return
        time.sleep(LOOK_SECONDS)


def _due_line(watched: Watched, board: Board, shown: dict[str, tuple[str, float]]) -> str | None:
    """Return the line of a run whose state changed, or that was silent for long while its steps go on."""
    row, now = board.row(watched), time.monotonic()
    key = f"{row.job_id} {row.folder.path}"
    state, at = shown.get(key, ("", 0.0))
    if row.state == state and (row.step is None or watched.over or now - at < LINE_SECONDS):
        return None
    shown[key] = (row.state, now)
    step = f"  step {row.cells()[3]}  {row.cells()[4]} tokens/s  loss {row.cells()[5]}" if row.step else ""
    return f"job {row.job_id} {row.folder.name}/{row.folder.id}: {row.state}{step}"
