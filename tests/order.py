"""Puts the files whose tests wait between those that compute, so that workers of a parallel run do both at any time.

Each worker begins with a stretch of all tests, in their order; by the names of their files, those of Slurm are
neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

WAITING = ("slurm", "emulated")
"""Marks of tests that wait for daemons, networks and clocks longer than they compute."""


def spread(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with the files that wait at even distances among the others; each file stays as it is."""
    files = [list(group) for _, group in itertools.groupby(items, lambda item: item.path)]
    waiting = [tests for tests in files if sum(map(waits, tests)) * 2 > len(tests)]
    others = [tests for tests in files if tests not in waiting]
    distance = sum(map(len, others)) / (len(waiting) + 1)
    ordered: list[pytest.Item] = []
    passed = 0
    for tests in others:
        ordered += tests
        passed += len(tests)
        while waiting and passed >= distance:
            ordered += waiting.pop(0)
            passed -= distance
    return [*ordered, *itertools.chain.from_iterable(waiting)]


def waits(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in WAITING)
