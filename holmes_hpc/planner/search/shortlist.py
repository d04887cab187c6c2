"""From proposals with estimates to prices: the most promising ones are simulated, as far as the work allows."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.search.budget import Allowance, layout_units
from holmes_hpc.planner.search.priced import Priced, exceeds_memory, make_layout, price_layout, with_schedules
from holmes_hpc.planner.simulation.bounds import least_seconds
from holmes_hpc.planner.simulation.replicas import likeness
from holmes_hpc.planner.strategies.proposals import Proposal
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Pipeline

_MOST_DEAR = 6
"""Layouts that are passed over because they cost more than what is left."""
_NEAR_DEAR = 1.03
"""Over the best estimate, up to which a cheaper layout is simulated before one that costs all that is left."""
_WARMUP_FINALISTS = 8
_COMPUTE_PART = 0.1
"""Of a layout's compute bound, added to its step; a large part would forget the messages of small models."""
_WARMUP_SHARE = 0.5
"""Of the work, kept back for extra warm-up: across slow links it can turn the order of layouts."""


def price_best(task: Task, proposals: Sequence[Proposal], allowance: Allowance, most: int) -> list[Priced]:
    """Simulate the best estimates, then give the fastest of those other schedules where they pay."""
    ranked = sorted(proposals, key=lambda each: (not each.fits, each.estimate_seconds))[:2 * most]
    warms_up = task.settings.first_schedule().warms_up
    selection = _Selection(allowance, most, _WARMUP_SHARE * allowance.units if warms_up else 0.0)
    for proposal in ranked:
        if selection.ends_before(proposal, best_fits=ranked[0].fits):
            break
        selection.consider(proposal)
    priced = selection.result()
    return priced + _rescheduled(priced, allowance) if warms_up else priced


class _Selection:
    """Prices proposals in the order of their estimates, as far as the work allows."""

    def __init__(self, allowance: Allowance, most: int, kept_back: float) -> None:
        self._allowance, self._most, self._kept_back = allowance, most, kept_back
        self._priced: list[Priced] = []
        self._seen: set[tuple[object, ...]] = set()
        self._alike: set[tuple[object, ...]] = set()
        self._dear: list[tuple[Proposal, tuple[Pipeline, ...]]] = []
        """Passed over because they cost more than what is left: cheaper ones go first, if not far to seek."""

    def ends_before(self, proposal: Proposal, *, best_fits: bool) -> bool:
        """Say whether neither this proposal nor those that follow it are worth the work that is left."""
        if len(self._priced) >= self._most or len(self._dear) > _MOST_DEAR:
            return True
        if self._priced:
            return self._allowance.units <= self._kept_back or (best_fits and not proposal.fits)
        return bool(self._dear) and (proposal.estimate_seconds > _NEAR_DEAR * self._dear[0][0].estimate_seconds)

    def consider(self, proposal: Proposal) -> None:
        """Price a proposal, unless it is refused, like one before, or too dear."""
        try:
            pipelines = proposal.build()
            if not self._is_new(proposal, pipelines):
                return
            layout = make_layout(proposal.task, proposal.facts.strategy, pipelines, proposal.facts.micro_batch_size,
                                 proposal.rules)
        except PlanRefusedError:
            return
        units = layout_units(proposal.task, layout)
        if units > self._allowance.units - self._kept_back:
            self._dear.append((proposal, pipelines))
            return
        if not all(each.fits for each in self._priced) and exceeds_memory(proposal.task, layout):
            return  # One that does not fit is simulated, for what is said of it; the work is for those that do.
        like = (likeness(proposal.task.cluster, pipelines), proposal.facts.micro_batch_size, proposal.rules,
                proposal.task.settings.recompute)
        if like in self._alike:
            self._allowance.units -= units  # Other ranks of equal nodes: it takes as long, and counts as if simulated.
            self._most -= 1
            return
        self._alike.add(like)
        self._price(proposal, pipelines)

    def result(self) -> list[Priced]:
        """Return what was priced; the best of the dear ones where all were."""
        if self._dear and not self._priced:
            self._price(*self._dear[0])
        return self._priced

    def _is_new(self, proposal: Proposal, pipelines: tuple[Pipeline, ...]) -> bool:
        key = (pipelines, proposal.facts.micro_batch_size, proposal.rules, proposal.task.settings.recompute,
               tuple(node.slot for node in proposal.task.cluster.nodes))
        new = key not in self._seen
        self._seen.add(key)
        return new

    def _price(self, proposal: Proposal, pipelines: tuple[Pipeline, ...]) -> None:
        self._priced.append(price_layout(
            proposal.task, proposal.facts, pipelines, proposal.facts.micro_batch_size, proposal.rules, proposal.chunks,
            allowance=self._allowance))


def _rescheduled(priced: Sequence[Priced], allowance: Allowance) -> list[Priced]:
    """Return the most hopeful layouts with other schedules."""
    # Layouts that swap equal fabrics take equally long, and one of them is enough.
    unlike = {round(each.seconds, 12): each for each in reversed(priced) if each.fits}
    found: list[Priced] = []
    for i, each in enumerate(sorted(unlike.values(), key=_hope)[:_WARMUP_FINALISTS]):
        if i == 0 or allowance.units > 0:
            found += with_schedules(each, allowance)
    return found


def _hope(priced: Priced) -> float:
    """Return what orders layouts for other schedules: their step, and a part of what compute alone would take.

    The first schedule waits where later ones do not, so that its step alone says little of what they can reach.
    """
    least = least_seconds(priced.task, priced.layout.pipelines, priced.layout.micro_batch_size)
    return priced.seconds + _COMPUTE_PART * least
