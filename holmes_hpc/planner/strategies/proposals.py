"""A proposal: a complete layout with a closed form's word on its step, before it is simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Pipeline


@dataclass(frozen=True)
class Proposal:
    """A layout that may be worth simulating. `task` is on the nodes that it uses.

    `build` makes the pipelines of ranks, which takes longer than the estimate; it raises PlanRefusedError where the
    batch does not fit.
    """

    strategy: str
    words: str
    task: Task
    micro_batch_size: int
    rules: GroupRules
    estimate_seconds: float
    fits: bool
    build: Callable[[], tuple[Pipeline, ...]]
    chunks: int = 1
