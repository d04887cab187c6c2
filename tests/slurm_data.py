"""What Slurm 22.05 and 24.11 said on a cluster of two `ib` and two `roce` nodes, from tests/data/slurm/."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "data" / "slurm"


def text(name: str) -> str:
    """Return a file's text."""
    return (FOLDER / name).read_text()


@cache
def _environments() -> dict[str, dict]:
    return json.loads(text("environments.json"))


def environments(case: str) -> list[dict[str, str]]:
    """Return the environment of each task of a case, in the order of ranks."""
    recorded = _environments()[case]
    return [{**recorded["all"], **task} for task in recorded["tasks"]]


def cases(word: str) -> list[str]:
    """Return the names of the cases that hold a word."""
    return [name for name in _environments() if word in name]
