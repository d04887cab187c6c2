"""Lanes keep `launch.max_jobs` by dependencies between jobs: in each, one job runs after another.

As one job ends the next of its lane may start, so a sweep runs as a sliding window and nobody has to follow it. An
array that runs K tasks at a time takes K lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Lanes:
    """`count` lanes, each with the jobs that a later one of it waits for."""

    def __init__(self, count: int, running: Iterable[tuple[str, int]] = ()) -> None:
        """`running`: jobs that are there already, each with its width: how many lanes it takes."""
        self.count = count
        self._ends: list[set[str]] = [set() for _ in range(count)]
        self._since = [0] * count
        self._number = 0
        for job, width in running:
            for place in self._least_filled(min(width, count)):
                self._ends[place].add(job)

    def choose(self, width: int) -> tuple[list[int], tuple[str, ...]]:
        """Return the lanes for a job of this width, and the jobs that it has to wait for.

        Free lanes are taken first, then those whose last job was submitted earliest.
        """
        order = sorted(range(self.count), key=lambda place: (bool(self._ends[place]), self._since[place], place))
        places = order[:min(width, self.count)]
        after = sorted({job for place in places for job in self._ends[place]}, key=int)
        return places, tuple(after)

    def give(self, places: Sequence[int], job: str) -> None:
        """Let a submitted job be the last of these lanes."""
        self._number += 1
        for place in places:
            self._ends[place], self._since[place] = {job}, self._number

    def _least_filled(self, width: int) -> list[int]:
        return sorted(range(self.count), key=lambda place: (len(self._ends[place]), place))[:width]
