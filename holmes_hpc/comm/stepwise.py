"""Collectives of several steps, many of them under way at once, begun in one order on all ranks.

A rank begins them in a total order on which all ranks agree, and each step of one after the same step of those
before it. So the operations of every process group come in the same order on all its members, whatever the time at
which a rank gets to them, and no two ranks can wait for each other. Nothing here runs in a thread: `Lane.poll`, which
is called often, begins the next step of whatever has arrived.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from holmes_hpc.comm.groups import Communicator


class Step(Protocol):
    """One operation of a group: `begin` starts it, `end` uses what has arrived."""

    group: ProcessGroup
    doing: str

    def begin(self) -> list[Work]: ...

    def end(self) -> None: ...


class Scratch:
    """Flat tensors that are lent out and taken back, since fresh memory of this size costs a page fault per 4 kB."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: dict[tuple[int, torch.dtype], list[Tensor]] = {}

    def take(self, length: int, dtype: torch.dtype) -> Tensor:
        """Return an uninitialised flat tensor."""
        free = self._free.get((length, dtype))
        return free.pop() if free else torch.empty(length, dtype=dtype, device=self._device)

    def give(self, tensor: Tensor) -> None:
        """Take a tensor back."""
        self._free.setdefault((tensor.numel(), tensor.dtype), []).append(tensor)


class Loan:
    """A scratch tensor that is taken when it is first asked for."""

    def __init__(self, scratch: Scratch, length: int, dtype: torch.dtype) -> None:
        self._scratch, self._length, self._dtype = scratch, length, dtype
        self._tensor: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """The tensor."""
        if self._tensor is None:
            self._tensor = self._scratch.take(self._length, self._dtype)
        return self._tensor

    def give_back(self) -> None:
        """Give the tensor back, if it was taken."""
        if self._tensor is not None:
            self._scratch.give(self._tensor)
            self._tensor = None


class Collective:
    """Steps that follow each other. `began` and `ended` are of `time.perf_counter`, while it was on the network.

    A step's place says what it does (sum inside the node, across nodes, between fabrics), and None stands where this
    rank has no part in it, so that the same operation has the same place on all ranks.
    """

    def __init__(self, steps: Sequence[Step | None], communicator: Communicator,
                 then: Callable[[], None] | None = None) -> None:
        self._steps = steps if any(step is not None for step in steps) else ()
        self._communicator, self._then = communicator, then
        self._works: list[Work] = []
        self._arrived: list[float] = []
        self.begun = self.number = 0
        self.began = self.ended = 0.0
        self.done = False

    @property
    def length(self) -> int:
        """The number of steps."""
        return len(self._steps)

    def arrived(self) -> bool:
        """Return whether the step under way is over, without waiting."""
        return all(work.is_completed() for work in self._works)

    def begin(self) -> None:
        """Begin the next step."""
        step = self._steps[self.begun]
        self._works, self._arrived = [], []
        if step is not None:
            self.began = self.began or time.perf_counter()
            with self._communicator.naming(step.group, step.doing):
                self._works = step.begin()
        for work in self._works:
            _when_done(work, self._arrived)
        self.begun += 1

    def end(self) -> None:
        """Wait for the step under way and use what has arrived."""
        step = self._steps[self.begun - 1]
        if step is not None:
            for work in self._works:
                self._communicator.wait(work, step.group, step.doing)
            self.ended = max(self._arrived) if len(self._arrived) == len(self._works) > 0 else time.perf_counter()
            self._works = []
            step.end()
        if self.begun == len(self._steps):
            self.done = True
            if self._then is not None:
                self._then()


class Lane:
    """The collectives of one phase of a rank, in the order in which they were added.

    With `early` false, `poll` begins no later steps; `finish` does. That keeps the order where one group does the
    first step of one collective and a later step of another.
    """

    def __init__(self, *, early: bool = True) -> None:
        self._early = early
        self._pending: list[Collective] = []
        self._added = 0

    def add(self, collective: Collective) -> None:
        """Begin a collective. One without steps is done at once."""
        self._added += 1
        collective.number = self._added
        if collective.length:
            collective.begin()
            self._pending.append(collective)

    def poll(self) -> None:
        """Let everything go on that can, without waiting."""
        if self._early and self._pending:
            self._advance()

    def finish(self, collective: Collective | None = None) -> None:
        """Wait until a collective and those before it are done; None: until all are."""
        last = self._added if collective is None else collective.number
        while waiting := [each for each in self._pending if each.number <= last]:
            level = min(each.begun for each in waiting)
            for each in waiting:
                if each.begun == level:
                    each.end()
                    if not each.done:
                        each.begin()
            self._pending = [each for each in self._pending if not each.done]

    def _advance(self) -> None:
        # A step may begin when everything before has begun its step of the same number, or has no such step.
        reached = 1 << 30
        for each in self._pending:
            while not each.done and each.arrived():
                if each.begun < each.length and each.begun >= reached:
                    break
                each.end()
                if not each.done:
                    each.begin()
            if each.begun < each.length:
                reached = min(reached, each.begun)
        self._pending = [each for each in self._pending if not each.done]


def _when_done(work: Work, times: list[float]) -> None:
    """Note the time at which an operation is over, where torch can tell."""
    try:
        work.get_future().add_done_callback(lambda _: times.append(time.perf_counter()))
    except RuntimeError:
        return
