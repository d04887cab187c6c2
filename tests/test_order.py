"""The order in which the tests run: each once, and files that wait between those that compute."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from tests.order import spread


class Item:
    def __init__(self, name: str, number: int, waits: bool) -> None:
        self.path, self.number, self.waits = Path(name), number, waits

    def get_closest_marker(self, name: str) -> bool:
        return self.waits and name == "slurm"


def files_of(items: list[Any]) -> list[str]:
    return [str(path) for path, _ in itertools.groupby(items, lambda item: item.path)]


def test_files_that_wait_stand_at_even_distances_and_every_test_once() -> None:
    names = [*(f"computes-{number}" for number in range(8)), "waits-0", "waits-1", "waits-2"]
    items: list[Any] = [Item(name, number, name.startswith("waits")) for name in names for number in range(10)]
    found = spread(items)
    assert sorted(map(id, found)) == sorted(map(id, items))
    assert [item.number for item in found] == list(range(10)) * len(names)
    assert [place for place, name in enumerate(files_of(found)) if name.startswith("waits")] == [2, 5, 8]


def test_files_of_one_kind_stay_as_they_are() -> None:
    for waits in (True, False):
        items: list[Any] = [Item(name, 0, waits) for name in "abc"]
        assert spread(items) == items
    assert spread([]) == []
