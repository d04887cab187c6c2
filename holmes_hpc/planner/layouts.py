"""A layout: everything of a plan but its schedule and its prediction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from holmes_hpc.planner.overlap import Overlap
from holmes_hpc.values import Group, Pipeline, Reduction


@dataclass(frozen=True)
class Layout:
    """A complete layout, without its prediction.

    `overlap` says what is exchanged under compute; None: every reduction stands alone at the end of the step.
    """

    pipelines: tuple[Pipeline, ...]
    groups: tuple[Group, ...]
    reductions: tuple[Reduction, ...]
    micro_batch_size: int
    overlap: Overlap | None = None

    @cached_property
    def derived(self) -> dict[Any, Any]:
        """Room for what is derived from this layout and asked for with every schedule that is tried on it."""
        return {}
