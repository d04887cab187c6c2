"""Trains on the strict backend and on gloo, and compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.engine_worlds import World, train_world
from tests.strict.backend import NAME, strict_backend
from tests.strict.report import Report
from tests.strict.rules import Rules

RELATIVE = 1e-7
"""Of losses and norms on the strict backend and on gloo: sums of other orders."""


class StrictError(AssertionError):
    """A run that the rules ended."""


def train_strictly(folder: Path, overrides: list[str], rules: Rules, **further: Any) -> World:
    """Train on the strict backend. Raises StrictError with the ranks' one report where they gave up."""
    told = folder / "strict"
    folder.mkdir(parents=True, exist_ok=True)
    with strict_backend(rules, told):
        world = train_world(folder, overrides, backend=NAME, check=False, **further)
    failed = [f"rank {rank}: {each.error}: {each.message}\n{each.trace}" for rank, each in enumerate(world.seen)
              if each.error]
    if failed:
        raise StrictError(str(Report(told)) + "\n\n" + "\n".join(failed))
    return world


def difference(one: World, other: World) -> float:
    """Return the largest relative difference of losses and norms of two runs."""
    pairs = [(a[key], b[key]) for a, b in zip(one.rows, other.rows, strict=True) for key in ("loss", "grad_norm")]
    return max(abs(a - b) / abs(b) for a, b in pairs)
