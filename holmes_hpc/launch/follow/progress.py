"""Shows how a run gets on: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from holmes_hpc.words import counted, seconds_words

LINE_SECONDS = 2.0
"""Shortest time between two plain lines."""


class Reporter(Protocol):
    """Takes what happens in a run, in order."""

    def starting(self, done: int, total: int, description: str) -> None:
        """Show that `done` of `total` process groups are connected."""

    def step(self, row: dict[str, Any]) -> None:
        """Show a row of `metrics.jsonl`."""


@contextmanager
def make_reporter(steps: int, stream: TextIO) -> Iterator[Reporter]:
    """Yield the reporter that fits `stream`: live on a terminal, plain lines elsewhere."""
    if not stream.isatty():
        yield PlainReporter(steps, stream)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=stream), auto_refresh=False) as progress:
        yield LiveReporter(steps, progress)


class Pace:
    """How long a run has trained and how long it will go on, by the steps seen since its first one.

    `clock` tells seconds. A run that goes on after a checkpoint begins at another step than 1.
    """

    def __init__(self, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._clock = steps, clock
        self._begin = clock()
        self._first: tuple[int, float] | None = None
        """The first step seen, and when: what comes before it is connecting and warming up."""

    def left(self, step: int) -> str:
        """Return `1 min left`, or nothing where it cannot be told yet, at the end of a step."""
        now = self._clock()
        if self._first is None or step < self._first[0]:
            self._first = step, now
        first, since = self._first
        if step <= first or step >= self._steps:
            return ""
        return f"{_duration((now - since) / (step - first) * (self._steps - step))} left"

    def words(self, step: int) -> str:
        """Return the elapsed time too, with the connecting: `2 min 5 s, 1 min left`."""
        left = self.left(step)
        return _duration(self._clock() - self._begin) + (f", {left}" if left else "")


def _duration(seconds: float) -> str:
    """Return a time to the second below an hour and to the minute above: `2 min 5 s`."""
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


class LiveReporter:
    """A progress bar with the latest loss, speed and MFU; validations stay as lines above it."""

    def __init__(self, steps: int, progress: Progress) -> None:
        self._progress = progress
        self._start: TaskID | None = None
        self._steps = steps
        self._train: TaskID | None = None
        self._pace = Pace(steps)

    def starting(self, done: int, total: int, description: str) -> None:
        """Show the connecting of process groups."""
        if self._start is None:
            self._start = self._progress.add_task("connecting", total=total)
        self._progress.update(self._start, completed=done, description=f"connecting {description}")
        self._progress.refresh()

    def step(self, row: dict[str, Any]) -> None:
        """Advance the bar to this step."""
        if self._train is None:
            if self._start is not None:
                self._progress.remove_task(self._start)
            self._train = self._progress.add_task("training", total=self._steps)
        self._progress.update(self._train, completed=row["step"],
                              description=f"{describe(row)}  {self._pace.left(row['step'])}")
        if row.get("validation_loss") is not None:
            self._progress.console.print(f"step {row['step']}: validation loss {row['validation_loss']:.3f}")
        self._progress.refresh()


class PlainReporter:
    """A line every few seconds, and one for every validation and the last step."""

    def __init__(self, steps: int, stream: TextIO) -> None:
        self._steps, self._stream, self._pace = steps, stream, Pace(steps)
        self._last = 0.0

    def starting(self, done: int, total: int, description: str) -> None:
        """Say when all process groups are connected."""
        if done == total:
            self._line(f"connected {counted(total, 'process group')}")

    def step(self, row: dict[str, Any]) -> None:
        """Write the step's line when it is due."""
        time_words = self._pace.words(row["step"])
        validated = row.get("validation_loss") is not None
        if validated or row["step"] in (1, self._steps) or time.monotonic() - self._last > LINE_SECONDS:
            text = f"step {row['step']}/{self._steps}  {describe(row)}  {time_words}"
            self._line(text + (f"  validation loss {row['validation_loss']:.3f}" if validated else ""))

    def _line(self, text: str) -> None:
        self._last = time.monotonic()
        self._stream.write(text + "\n")
        self._stream.flush()


def describe(row: dict[str, Any]) -> str:
    """Return loss, speed and MFU of a step in a few words."""
    if row.get("timed"):
        return _describe_timed(row)
    # Null in the metrics is a number that is not finite.
    loss = "nan" if row.get("loss") is None else f"{row['loss']:.3f}"
    skipped = f"  {counted(row['skipped_steps'], 'step')} left out" if row.get("skipped_steps") else ""
    speed, seconds, mfu = (row.get(name) or 0.0 for name in ("tokens_per_second", "step_seconds", "mfu"))
    return f"loss {loss}  {speed:,.0f} tokens/s  {seconds * 1e3:.0f} ms/step  MFU {mfu:.0%}{skipped}"


def _describe_timed(row: dict[str, Any]) -> str:
    """Return the speed of a step of a wind tunnel, or why there is none."""
    if row.get("not_valid"):
        return f"emulated, timed: no figures, {row['not_valid']}"
    speed, seconds, mfu = (row.get(name) or 0.0 for name in ("tokens_per_second", "step_seconds", "mfu"))
    return f"emulated, timed: {speed:,.0f} tokens/s  {seconds_words(seconds)}/step  MFU {mfu:.0%}"
