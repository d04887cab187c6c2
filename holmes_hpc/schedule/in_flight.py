"""How many micro-batches a schedule keeps alive, which is what its activations take of memory."""

from __future__ import annotations

from collections.abc import Mapping

from holmes_hpc.values import ActionKind, Schedule
from holmes_hpc.values.schedule import LAST_BACKWARDS

_FORWARD = ActionKind.FORWARD
Peaks = Mapping[tuple[int, int, int], int]
"""Micro-batches in flight by (rank, pipeline, stage), when the rank has most of them."""


def peak_in_flight(schedule: Schedule) -> dict[tuple[int, int, int], int]:
    """Return the most micro-batches alive at a time, by (rank, pipeline, stage), when that rank's sum is largest.

    A micro-batch lives from its forward to the end of its backward, or of the weight part of its backward.
    """
    peaks: dict[tuple[int, int, int], int] = {}
    for rank, actions in schedule.actions.items():
        alive: dict[tuple[int, int, int], int] = {}
        best: dict[tuple[int, int, int], int] = {}
        total = most = 0
        for action in actions:
            if action.kind is _FORWARD:
                place = rank, action.pipeline, action.stage
                alive[place] = alive.get(place, 0) + 1
                total += 1
                if total > most:
                    most, best = total, alive.copy()
            elif action.kind in LAST_BACKWARDS:
                alive[rank, action.pipeline, action.stage] -= 1
                total -= 1
        peaks.update(best)
    return peaks
