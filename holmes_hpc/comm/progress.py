"""Lets collectives go on while the thread that trains is blocked in a wait for another rank.

A collective of several steps needs this rank between two of them. Where it is blocked in a receive or waits for its
turn, its neighbours would stand with it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch


class Goes(Protocol):
    """What may have something to do while the training thread is blocked."""

    def waits_for_steps(self) -> bool:
        """Return whether there is anything that could go on."""

    def go_on(self) -> None:
        """Begin what can begin, without waiting."""


class Progress:
    """A thread of a rank that works only while the training thread is blocked, so that never both do.

    It sleeps until an operation of several steps says by `arrived` that one of them is over, which must be `told`: not
    so where futures are over as soon as an operation is issued. An error that it meets is raised in the training thread
    when that goes on.
    """

    def __init__(self, *, told: bool = True) -> None:
        self.told = told
        self._all: list[Goes] = []
        self._turn = threading.Lock()
        self._wake = threading.Event()
        self._blocked = self._ended = False
        self._thread: threading.Thread | None = None
        self._owner = 0
        self._fault: Exception | None = None

    def watch(self, goes: Goes) -> None:
        """Take something up; the thread that first calls it is the one that trains."""
        self._owner = self._owner or threading.get_ident()
        self._all.append(goes)

    def arrived(self) -> None:
        """Note that an operation is over; any thread may call it."""
        self._wake.set()

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Mark the body as a wait of the training thread, in which others may go on."""
        if threading.get_ident() != self._owner or not any(each.waits_for_steps() for each in self._all):
            yield
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()
        self._blocked = True
        self._wake.set()
        try:
            yield
        finally:
            with self._turn:
                self._blocked = False
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def here(self) -> bool:
        """Return whether this is the thread that lets others go on."""
        return threading.current_thread() is self._thread

    def end(self) -> None:
        """End the thread."""
        self._ended = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    @torch.no_grad()
    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            with self._turn:
                if self._ended:
                    return
                if self._blocked and self._fault is None:
                    self._go_on()

    def _go_on(self) -> None:
        try:
            for each in self._all:
                if each.waits_for_steps():
                    each.go_on()
        except Exception as error:
            self._fault = error
