"""Gives the rows of a run to trackers, beside the training: whatever they do, no step waits for them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, cast

from holmes_hpc.runs.files import finite
from holmes_hpc.troubles import described
from holmes_hpc.values.trackers import OpenTracker, TrackedRun, Tracker

MOST_WAITING = 10_000
"""Rows that wait for a tracker; a slower one misses rows, so that memory does not grow."""
_SECONDS_AT_THE_END = 10.0
_SECONDS_AFTER_A_FAILURE = 2.0
_END = None


class Trackers:
    """The trackers of a run, each on a thread of its own, so that a slow one holds up neither training nor others.

    What goes wrong with one is said once, and it is given later rows all the same. Used as a context, it closes them at
    the end, and waits for them a few seconds at most.
    """

    def __init__(self, open_by_name: Mapping[str, OpenTracker], run: TrackedRun, say: Callable[[str], None]) -> None:
        self._say = say
        self._lanes = [_Lane(name, opens, run) for name, opens in open_by_name.items()]

    def add(self, row: Mapping[str, Any]) -> None:
        """Give a row to all trackers and return at once."""
        for lane in self._lanes:
            lane.put(finite(row))
        self._say_troubles()

    def close(self, seconds: float = _SECONDS_AT_THE_END) -> None:
        """Let all trackers end, and wait for them so long at most, all together."""
        until = time.monotonic() + seconds
        for lane in self._lanes:
            lane.end()
        for lane in self._lanes:
            if not lane.ended(max(0.0, until - time.monotonic())):
                lane.trouble(f"it did not end within {seconds:g} s")
        self._say_troubles()

    def _say_troubles(self) -> None:
        """Say what went wrong on the threads, from this one."""
        for lane in self._lanes:
            text = lane.new_trouble()
            if text is not None:
                self._say(f"WARNING: the tracker {lane.name}: {text}; rows of it may be missing, and training goes on")

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close(_SECONDS_AT_THE_END if error is None else _SECONDS_AFTER_A_FAILURE)


class _Lane:
    """One tracker, its thread, and the rows that wait for it."""

    def __init__(self, name: str, opens: OpenTracker, run: TrackedRun) -> None:
        self.name = name
        self._opens, self._run = opens, run
        self._rows: queue.Queue[Mapping[str, Any] | None] = queue.Queue(MOST_WAITING)
        self._trouble: str | None = None
        self._is_said = False
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, row: Mapping[str, Any]) -> None:
        """Let a row wait, unless too many do."""
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            self.trouble(f"it is slower than the training, and {MOST_WAITING} rows wait for it")

    def end(self) -> None:
        """Let the thread end after the rows that wait."""
        try:
            self._rows.put_nowait(_END)
        except queue.Full:
            self.trouble(f"it is slower than the training, and {MOST_WAITING} rows wait for it")

    def ended(self, seconds: float) -> bool:
        """Wait at most so long and return whether the thread has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def trouble(self, text: str) -> None:
        """Keep the first trouble to be said."""
        self._trouble = self._trouble or text

    def new_trouble(self) -> str | None:
        """Return the trouble if it was not said yet."""
        if self._trouble is None or self._is_said:
            return None
        self._is_said = True
        return self._trouble

    def _work(self) -> None:
        tracker: Tracker | None = None
        try:
            tracker = _checked(self._opens(self._run))
        except BaseException as error:  # whatever a plug-in raises ends this thread alone
            self.trouble(f"it cannot be opened: {described(error)}")
        for row in iter(self._rows.get, _END):
            if tracker is not None:
                self._try(lambda tracker=tracker, row=row: tracker.add(row))  # type: ignore[misc]
        if tracker is not None:
            self._try(getattr(tracker, "close", lambda: None))

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # as above
            self.trouble(described(error))


def _checked(tracker: Any) -> Tracker:
    """Return what a plug-in opened. Raises TypeError where it takes no rows."""
    if not callable(getattr(tracker, "add", None)):
        raise TypeError(f"what it returned, {type(tracker).__name__}, has no add(row)")
    return cast(Tracker, tracker)
