"""What a rank is doing now: written by its training thread, read by the thread that watches it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from holmes_hpc.values.doing import OUTSIDE, Doing

__all__ = ["OUTSIDE", "Activity", "Doing", "Wait"]


@dataclass(frozen=True)
class Wait:
    """A wait that has ended, with or without an error."""

    doing: Doing
    seconds: float


class Activity:
    """The state of one rank. `now` is replaced whole, so that another thread always reads one state.

    `changes` counts the states; a rank whose count stands still makes no progress. `beside` says what another thread
    of the rank does meanwhile, such as writing a checkpoint, with a number that tells each from the one before.
    `at_training` is called by the training thread when its first step begins.
    """

    def __init__(self) -> None:
        self.now = Doing()
        self.changes = 0
        self.beside: tuple[int, str] = (0, "")
        self.last_wait = Wait(Doing(), 0.0)
        self.at_training: Callable[[], None] = lambda: None
        self._waited_seconds = 0.0
        self._mark = (time.perf_counter(), 0.0)

    def begin(self, action: str, step: int | None = None) -> None:
        """Say that `action` begins, in another step where `step` is given."""
        before = self.now.step
        self._enter(Doing(before if step is None else step, action))
        if step and not before:
            self.at_training()

    @contextmanager
    def doing_beside(self, what: str) -> Iterator[None]:
        """Mark the body as something that another thread does beside the training."""
        self.beside = (self.beside[0] + 1, what)
        try:
            yield
        finally:
            self.beside = (self.beside[0], "")

    @contextmanager
    def waiting(self, group: int, operation: str) -> Iterator[None]:
        """Mark the body as an operation of a group, which may have to wait for its other ranks."""
        before, began = self.now, time.perf_counter()
        doing = replace(before, group=group, operation=operation)
        self._enter(doing)
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            self.last_wait = Wait(doing, seconds)
            if before.group == OUTSIDE:
                self._waited_seconds += seconds
            self._enter(before)

    def own_seconds(self) -> float:
        """Return the seconds since the last call that the rank spent outside the operations of groups."""
        now, waited = time.perf_counter(), self._waited_seconds
        (then, waited_then), self._mark = self._mark, (now, waited)
        return now - then - (waited - waited_then)

    def _enter(self, doing: Doing) -> None:
        self.now = doing
        self.changes += 1
