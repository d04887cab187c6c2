"""A layout: everything of a plan but its schedule and its prediction."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

from holmes_hpc.values import Group, Pipeline, Reduction

Made = TypeVar("Made")


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

    def once(self, what: Hashable, of: object, make: Callable[[], Made]) -> Made:
        """Return what `make` makes for this layout `of` a task; it is asked at the first call for that task alone.

        A search tries many schedules on a layout, and comes to the same layout on several ways.
        """
        known = self._made.get(what)
        if known is None or known[0] is not of:
            known = self._made[what] = of, make()
        made: Made = known[1]
        return made

    @cached_property
    def _made(self) -> dict[Hashable, tuple[object, Any]]:
        return {}
