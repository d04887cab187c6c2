"""What of a layout is simulated: one of all that do the same, and what its actions cost.

A search tries several schedules on a layout, and shortens long steps. What stands for what, and the prices, depend on
neither, so they are worked out once for each layout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from holmes_hpc.cluster.disturbed import has_unlike_ranks
from holmes_hpc.planner.cost.rank_memory import rank_memory
from holmes_hpc.planner.cost.stages import GIB
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.layout.sharing import updated_parameters
from holmes_hpc.planner.simulation.events import Prices
from holmes_hpc.planner.simulation.prices import compute_cost, core_pools, price
from holmes_hpc.planner.simulation.replicas import Replicas, find_replicas
from holmes_hpc.planner.simulation.symmetry import Folded, alike, fold
from holmes_hpc.planner.task import Task
from holmes_hpc.schedule.in_flight import Peaks
from holmes_hpc.values import Pipeline


@dataclass(frozen=True, eq=False)
class Representatives:
    """The replicas of a layout, and the layout of one of each with its prices.

    In `prices` trunks are as full as all replicas fill them, in `own_prices` as these alone do.
    """

    task: Task
    replicas: Replicas
    layout: Layout
    own_prices: Prices
    prices: Prices
    _folded: dict[bool, Folded] = field(default_factory=dict)

    def folded(self, *, turns: bool) -> Folded:
        """Return what is left to simulate of a step with or without turns: see `symmetry.fold`."""
        if turns not in self._folded:
            few = self.layout
            self._folded[turns] = fold(few.pipelines, few.groups, few.reductions, self.prices,
                                       lambda rank: self.task.cluster.node_of(rank).slot, turns=turns)
        return self._folded[turns]

    def busy_seconds(self, folded: Folded, seen: Mapping[int, float]) -> dict[int, float]:
        """Return how long every rank of the whole layout computes, from what was seen of those that are left."""
        return {rank: seen[folded.rank_like[same]] for rank, same in self.replicas.rank_like().items()}

    def memory_gib(self, peaks: Peaks) -> tuple[float, ...]:
        """Return the memory of every rank of the whole layout in GiB; `peaks` are those of the representatives."""
        few = self.layout
        parts = rank_memory(compute_cost(self.task), self.task.cluster, few.pipelines, few.micro_batch_size, peaks,
                            updated_parameters(self.task, few))
        known = {rank: memory.total / GIB for rank, memory in parts.items()}
        like = self.replicas.rank_like()
        return tuple(known[like[rank]] for rank in range(self.task.cluster.world_size))


@dataclass(frozen=True, eq=False)
class _Everyone(Representatives):
    """A layout in which every rank stands for itself alone."""

    def folded(self, *, turns: bool) -> Folded:
        """Return the whole layout."""
        few = self.layout
        everyone = tuple(range(len(few.pipelines)))
        return Folded(few.pipelines, few.groups, few.reductions, self.prices, everyone, everyone,
                      self.replicas.rank_like())

    def busy_seconds(self, folded: Folded, seen: Mapping[int, float]) -> dict[int, float]:
        """Return what was seen."""
        return dict(seen)


def replicas_of(task: Task, layout: Layout) -> Replicas:
    """Return which pipelines of a layout stand for all."""
    found: Replicas = task.layouts.replicas.of(layout, lambda: find_replicas(task.cluster, layout.pipelines))
    return found


def standing_for_all(task: Task, layout: Layout, *, turns: bool) -> tuple[Pipeline, ...]:
    """Return the pipelines of a layout that are simulated of a step with or without turns; nothing is priced yet."""
    if _all_stand_alone(task):
        return layout.pipelines
    picked = replicas_of(task, layout).picked
    return tuple(picked[p] for p in alike(picked, lambda rank: task.cluster.node_of(rank).slot, turns=turns)[1])


def representatives(task: Task, layout: Layout) -> Representatives:
    """Return what stands for a layout, worked out at the first call for a task."""
    found: Representatives = task.layouts.representatives.of(layout, lambda: _representatives(task, layout))
    return found


def simulated(task: Task, layout: Layout) -> Representatives:
    """Return what of a layout is simulated: its representatives, or all of it where ranks queue for CPU cores.

    Such ranks depend on all others that use the same cores, so that none stands for another.
    """
    if not _all_stand_alone(task):
        return representatives(task, layout)
    found: Representatives = task.layouts.representatives.of(layout, lambda: _everyone(task, layout), "everyone")
    return found


def _all_stand_alone(task: Task) -> bool:
    return bool(core_pools(task)[0]) or has_unlike_ranks(task.cluster)


def _everyone(task: Task, layout: Layout) -> Representatives:
    prices, each = price(task, layout), tuple(range(len(layout.pipelines)))
    return _Everyone(task, Replicas(each, each, layout.pipelines, 1), layout, prices, prices)


def _representatives(task: Task, layout: Layout) -> Representatives:
    replicas = replicas_of(task, layout)
    few = dataclasses.replace(layout, pipelines=replicas.picked, reductions=replicas.restrict(layout.reductions))
    prices = price(task, few)
    return Representatives(task, replicas, few, prices, replicas.fill_trunks(prices))
