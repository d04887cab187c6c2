"""Ranks whose own work takes much longer than that of their peers, from the time before each collective."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holmes_hpc.values import Plan

WINDOW_STEPS = 10
"""Steps whose median counts, so that one pause (a validation, a checkpoint) makes no straggler."""

FACTOR = 1.5
"""A rank that takes this many times as long as its peers is a straggler."""

RECOVERED = 1.25
"""It is one until it takes less than this."""

ALONE_FACTOR = 2.0
"""A rank without peers must take so many times what it took earlier: that was another time on another load."""

ALONE_RECOVERED = 1.5

SHARE_OF_STEP = 0.1
"""What it takes longer must be this share of a step, else nobody waits for it noticeably; half of it, to stay one."""

SAID_SECONDS = 0.5
"""A straggler is worth a line once it has taken so much longer than its peers since it became one."""

RECOVERED_STEPS = 5
"""Steps in a row for which it is none before that is said."""

MOST_PATIENCE_STEPS = 1024
"""The longest that a rank which comes and goes must stay a straggler before it is said again."""


@dataclass
class _Spell:
    """A rank's present time as a straggler: seconds lost and steps in a row since it became one, and what was said.

    `times` is how many times as long it took when it became one.
    `patience` is how many steps in a row it must be one before that is said; it doubles with each recovery.
    """

    lost_seconds: float = 0.0
    times: float = 1.0
    steps: int = 0
    recovered_steps: int = 0
    said: bool = False
    patience: int = 1


class Stragglers:
    """Compares ranks with their peers: same layers, tensor degree and GPU kind; seconds count for each micro-batch.

    `say` is told of one that has lost `SAID_SECONDS`, and when it has been none for `RECOVERED_STEPS`; each time it
    comes back it must stay one for twice as long before it is said again. A rank without peers is judged by its own
    best time in this run, and by how much slower than theirs the other ranks have become meanwhile.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._plan, self._say = plan, say
        self._peers = _peers(plan)
        self._work = [_microbatches(plan, rank) for rank in range(plan.world_size)]
        self._windows: list[deque[float]] = [deque(maxlen=WINDOW_STEPS) for _ in range(plan.world_size)]
        self._steps: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._best: list[float | None] = [None] * plan.world_size
        self._spells = [_Spell() for _ in range(plan.world_size)]
        self._count = 0
        self.now: list[int] = []

    def add(self, step: int, own_seconds: Sequence[float], step_seconds: float) -> list[int] | None:
        """Take the seconds that every rank spent outside collectives in a step; return the stragglers' ranks.

        None as long as there are too few steps to tell.
        """
        self._steps.append(step_seconds)
        for window, seconds, work in zip(self._windows, own_seconds, self._work, strict=True):
            window.append(seconds / work)
        if len(self._steps) < WINDOW_STEPS:
            return None
        medians = [statistics.median(window) for window in self._windows]
        self._count += 1
        if self._count % WINDOW_STEPS == 1:  # windows that share no step
            self._best = [now if best is None else min(best, now)
                          for now, best in zip(medians, self._best, strict=True)]
        found = [rank for rank in range(self._plan.world_size) if self._is_slow(rank, medians)]
        for rank in range(self._plan.world_size):
            self._follow(step, rank, medians, slow=rank in found)
        self.now = found
        return list(found)

    def _follow(self, step: int, rank: int, medians: list[float], *, slow: bool) -> None:
        """Count a rank's spell as a straggler, and say its beginning and its end where they are worth it."""
        spell = self._spells[rank]
        if slow:
            # The whole window made it one, so its seconds are lost as well.
            if not spell.steps:
                spell.times = self._times(rank, medians)
            spell.lost_seconds += self._excess(rank, medians) * (1 if spell.steps else WINDOW_STEPS)
            spell.steps, spell.recovered_steps = spell.steps + 1, 0
            if not spell.said and spell.lost_seconds >= SAID_SECONDS and spell.steps >= spell.patience:
                spell.said = True
                self._say(self._describe(step, rank, medians))
            return
        spell.steps, spell.lost_seconds, spell.recovered_steps = 0, 0.0, spell.recovered_steps + 1
        if spell.said and spell.recovered_steps == RECOVERED_STEPS:
            spell.said, spell.patience = False, min(2 * spell.patience, MOST_PATIENCE_STEPS)
            self._say(f"step {step}: {self._name(rank)} is no straggler any more")

    def _is_slow(self, rank: int, medians: list[float]) -> bool:
        first, until = (FACTOR, RECOVERED) if self._peers[rank] else (ALONE_FACTOR, ALONE_RECOVERED)
        factor, share = (until, SHARE_OF_STEP / 2) if rank in self.now else (first, SHARE_OF_STEP)
        return (medians[rank] >= factor * self._usual(rank, medians)
                and self._excess(rank, medians) >= share * statistics.median(self._steps))

    def _usual(self, rank: int, medians: list[float]) -> float:
        """Return what the rank's peers take, or without any what it took itself, slowed down as the others are."""
        if self._peers[rank]:
            return statistics.median(medians[peer] for peer in self._peers[rank])
        slower = [medians[other] / best for other, best in enumerate(self._best) if other != rank and best]
        return (self._best[rank] or 0.0) * max(1.0, statistics.median(slower) if slower else 1.0)

    def _excess(self, rank: int, medians: list[float]) -> float:
        """Return the seconds of a step by which a rank takes longer than its peers would for as many micro-batches."""
        return (medians[rank] - self._usual(rank, medians)) * self._work[rank]

    def _times(self, rank: int, medians: list[float]) -> float:
        """Return how many times as long as its peers a rank takes."""
        return medians[rank] / max(self._usual(rank, medians), 1e-9)

    def _describe(self, step: int, rank: int, medians: list[float]) -> str:
        usual, work = self._usual(rank, medians), self._work[rank]
        peers = ", ".join(map(str, self._peers[rank][:8])) + (", ..." if len(self._peers[rank]) > 8 else "")
        times, first = self._times(rank, medians), self._spells[rank].times
        # It is said once it has cost something, and may have become less slow since, down to what it stays one with.
        before = f", and {first:.1f} times when it became one" if round(first, 1) > round(times, 1) else ""
        than = (f"its peers (ranks {peers}: {usual * work * 1e3:.0f} ms for as many micro-batches)" if peers
                else f"earlier in this run ({usual * work * 1e3:.0f} ms; it has no peers)")
        return (f"step {step}: {self._name(rank)} is a straggler: outside collectives it takes "
                f"{medians[rank] * work * 1e3:.0f} ms a step, {times:.1f} times as long as {than}{before}")

    def _name(self, rank: int) -> str:
        place = next(place for place in self._plan.ranks if place.rank == rank)
        return f"rank {rank} on node {place.node or place.slot}"


def _peers(plan: Plan) -> list[tuple[int, ...]]:
    gpus = {place.rank: place.gpu for place in plan.ranks}
    kinds: dict[int, tuple[object, ...]] = {}
    for rank in range(plan.world_size):
        stages = [plan.pipelines[pipeline].stages[number] for pipeline, number in plan.stages_of(rank)]
        layers = tuple(sorted({(stage.first_layer, stage.num_layers, stage.tensor) for stage in stages}))
        kinds[rank] = (gpus[rank], layers)
    return [tuple(peer for peer in kinds if peer != rank and kinds[peer] == kinds[rank]) for rank in kinds]


def _microbatches(plan: Plan, rank: int) -> int:
    return max(1, sum(plan.pipelines[pipeline].microbatches for pipeline in {p for p, _ in plan.stages_of(rank)}))
