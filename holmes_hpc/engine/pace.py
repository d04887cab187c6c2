"""How fast a rank computes at this moment, where its cluster is disturbed on purpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from holmes_hpc.values.disturbances import ON_LINKS, Disturbance, acting_at, changes, slowdown_of

_LEAST_WAIT_SECONDS = 2e-4
"""Shorter waits are put off: a sleep takes nearly as long."""


class Pace:
    """What acts on one rank in the step that it is at; without disturbances nothing ever does.

    A slow rank waits beside its compute, in proportion to the seconds that its thread computed: what other ranks take
    of its core is not made longer, and the core is theirs while it waits. `factor` is how many times as long its
    compute takes now. `wait_for_links` is called in every step whose links are another than before.
    """

    def __init__(self, disturbances: Sequence[Disturbance] = (), slot: str = "", local_rank: int = 0,
                 wait_for_links: Callable[[int], None] = lambda step: None) -> None:
        self._disturbances, self._slot, self._local_rank = tuple(disturbances), slot, local_rank
        self._wait_for_links = wait_for_links
        self._link_changes = changes(each for each in self._disturbances if each.kind in ON_LINKS)
        self._at = 0
        self._mark = 0.0
        self._owed = 0.0
        self.factor = 1.0
        self.words: tuple[str, ...] = ()

    def begin(self, step: int) -> bool:
        """Let what acts in a step take effect; return whether that took a wait, which is in no step's time."""
        if not self._disturbances:
            return False
        waits = self.changes_links(step)
        if waits:
            self._wait_for_links(step)
        acting = acting_at(self._disturbances, step)
        self._at = step
        self.factor = slowdown_of(acting, self._slot, self._local_rank)
        self.words = tuple(each.words for each in acting)
        return waits

    def changes_links(self, step: int) -> bool:
        """Return whether `begin` will wait for links that are others in a step than before."""
        return any(self._at < change <= step for change in self._link_changes)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Mark the body as compute, beside which a slow rank waits."""
        self._mark = time.thread_time()
        yield
        self.breathe()

    def breathe(self) -> None:
        """Wait for what was computed since the last call, in the middle of compute as at its end."""
        if self.factor == 1.0:
            return
        now = time.thread_time()
        self._owed += (self.factor - 1.0) * (now - self._mark)
        self._mark = now
        if self._owed >= _LEAST_WAIT_SECONDS:
            began = time.perf_counter()
            time.sleep(self._owed)
            self._owed -= time.perf_counter() - began
