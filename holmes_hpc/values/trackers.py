"""What a tracker is told of a run, and what it has to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from holmes_hpc.values.plan import Plan


@dataclass(frozen=True)
class TrackedRun:
    """A run: its name, its folder (whose name is the run's id), its configuration as plain values, and its plan."""

    name: str
    folder: Path
    config: Mapping[str, Any]
    plan: Plan


class Tracker(Protocol):
    """What takes the rows of a run's metrics, in order."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Take the row of a step, as it stands in metrics.jsonl."""

    def close(self) -> None:
        """Send or write what is left; no row follows."""


OpenTracker = Callable[[TrackedRun], Tracker]
"""Opens a tracker for a run."""
