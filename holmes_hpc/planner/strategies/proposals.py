"""A proposal: a complete layout with a closed form's word on its step, before it is simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Pipeline


@dataclass(frozen=True)
class AlikePipelines:
    """Pipelines of one form: their number, stages in a row as (kind of nodes, tensor degree, count), and layers."""

    copies: int
    stages: tuple[tuple[str, int, int], ...]
    layers: tuple[int, ...]


@dataclass(frozen=True)
class UnlikePipelines:
    """A layout of several forms of pipelines. `stages_together` says what fills a node, where that can differ."""

    forms: tuple[AlikePipelines, ...]
    stages_together: bool | None = None


@dataclass(frozen=True)
class SharedStages:
    """A layout of stages that all pipelines share, each as (kind of nodes, tensor degree, width, layers)."""

    stages: tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class AsWritten:
    """So many pipelines that the user wrote down."""

    pipelines: int


@dataclass(frozen=True)
class Repeated:
    """A layout that so many equal parts of a very large cluster have each."""

    form: Form
    parts: int


Form = str | Repeated | UnlikePipelines | SharedStages | AsWritten
"""What the ranks of a layout form; a text is how its strategy calls it, and nobody reads it but people."""


@dataclass(frozen=True)
class LayoutFacts:
    """What a layout was made from; with its pipelines and its schedule `telling.layouts` makes words of it.

    `micro_batch_size` and `layers` (where the form has none) are as proposed; `tuned` says that small changes were made
    since. `recompute` is what the search chose.
    """

    strategy: str
    form: Form
    micro_batch_size: int
    layers: tuple[int, ...] = ()
    recompute: str = "none"
    tuned: bool = False


@dataclass(frozen=True)
class Proposal:
    """A layout that may be worth simulating. `task` is on the nodes that it uses.

    `build` makes the pipelines of ranks, which takes longer than the estimate; it raises PlanRefusedError where the
    batch does not fit.
    """

    facts: LayoutFacts
    task: Task
    rules: GroupRules
    estimate_seconds: float
    fits: bool
    build: Callable[[], tuple[Pipeline, ...]]
    chunks: int = 1
