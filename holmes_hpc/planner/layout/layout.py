"""A layout: everything of a plan but its schedule and its prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from holmes_hpc.values import Group, Pipeline, Reduction


class Overlap(Protocol):
    """What is overlapped: the fields of a plan's synchronization."""

    @property
    def sharded(self) -> bool: ...
    @property
    def overlap_grad_reduce(self) -> bool: ...
    @property
    def overlap_param_gather(self) -> bool: ...
    @property
    def bucket_mib(self) -> float: ...


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
