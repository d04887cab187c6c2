"""Which of this machine's cores each rank computes on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress


def share_of_cores(number: int, ranks: int, cores: Iterable[int]) -> set[int]:
    """Return the cores of the rank with this number (from 0): neighbouring ones, as many as every other rank has.

    All of them where there are fewer cores than ranks.
    """
    ordered = sorted(cores)
    each = len(ordered) // ranks
    return set(ordered[number * each:(number + 1) * each] if each else ordered)


def bind_to_cores(number: int, ranks: int) -> None:
    """Keep this process, and the threads that it starts later, on its share of the cores, as `srun` does.

    Where the system refuses, it stays on all of them.
    """
    with suppress(OSError):
        os.sched_setaffinity(0, share_of_cores(number, ranks, os.sched_getaffinity(0)))
