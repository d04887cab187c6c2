"""From proposals with estimates to candidates: the most promising ones are simulated, as far as the work allows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.search.budget import Allowance, layout_units
from holmes_hpc.planner.search.candidate import (
    Candidate,
    evaluate_layout,
    exceeds_memory,
    make_layout,
    with_least_waiting,
    with_schedules,
)
from holmes_hpc.planner.simulation.replicas import likeness
from holmes_hpc.planner.strategies.proposals import Proposal, SharedStages, UnlikePipelines
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Pipeline

_MOST_DEAR = 6
"""Layouts that are passed over because they cost more than what is left."""
_NEAR_DEAR = 1.03
"""Over the best estimate, up to which a cheaper layout is simulated before one that costs all that is left."""
_TWIN = 1e-4
"""Estimates that differ by less, as a fraction, of layouts of one cut are one layout's for both."""
_LOOKED_AT, _TABLE_ERROR = 40, 1.15
"""Proposals that are looked at for one whose tied table stays inside a fabric, and how much worse it may seem."""
_WARMUP_FINALISTS = 8
_ESTIMATE_ERROR = 1.08
"""So much longer than what warm-up can reach estimates are at most: a layout beyond that does not become the best."""
_RATIO_ERROR = 1.02
"""The same of estimates of one search, once it is known by what ratio they are too high."""
_KEPT_FOR_BEST = 3
"""Simulations kept back for other schedules of the best layout, while further ones get their first other one."""
_WARMUP_SHARE = 0.5
"""Of the work, kept back for extra warm-up: across slow links it can turn the order of layouts."""


HeldBack = list[Callable[[], Candidate]]
"""Simulations of layouts that do not fit, which are dear and tell nothing where another layout fits."""


def evaluate_best(task: Task, proposals: Sequence[Proposal], allowance: Allowance, most: int,
                  held_back: HeldBack | None = None) -> list[Candidate]:
    """Simulate the best estimates, then give the fastest of those other schedules where they pay.

    Where none fits into memory and the best is dear, its simulation is put into `held_back`, if that is given.
    """
    ranked = sorted(proposals, key=lambda each: (not each.fits, each.estimate_seconds))[:2 * most]
    warms_up = task.settings.first_schedule().warms_up
    selection = _Selection(allowance, most, _WARMUP_SHARE * allowance.units if warms_up else 0.0)
    first, twins = twins_last(ranked)
    for proposal in (*_with_table_inside(task, first), *twins):
        if selection.ends_before(proposal, best_fits=ranked[0].fits):
            break
        selection.consider(proposal)
    found = selection.result(held_back)
    candidates = [each.candidate for each in found]
    return candidates + _rescheduled(found, allowance) if warms_up else candidates


def _with_table_inside(task: Task, ranked: list[Proposal]) -> list[Proposal]:
    """Return proposals with the best that keeps a tied token table inside a fabric as the second.

    Estimates are too hopeful of tables that cross fabrics: without this, none that stays inside may be simulated.
    """
    if not task.architecture.tied_embeddings or not ranked:
        return ranked
    for i, each in enumerate(ranked[:_LOOKED_AT]):
        if each.estimate_seconds > _TABLE_ERROR * ranked[0].estimate_seconds:
            break
        if _table_stays(each):
            return [*ranked[:min(i, 1)], each, *ranked[min(i, 1):i], *ranked[i + 1:]]
    return ranked


def _table_stays(proposal: Proposal) -> bool:
    try:
        pipelines = proposal.build()
    except PlanRefusedError:
        return False
    fabrics = {proposal.task.cluster.node_of(pipeline.stages[s].ranks[0]).fabric
               for pipeline in pipelines for s in (0, -1)}
    return len(fabrics) == 1


def twins_last(ranked: Sequence[Proposal]) -> tuple[list[Proposal], list[Proposal]]:
    """Return proposals, and apart those that are estimated like one before them that has the same stages in a row.

    They swap fabrics that are nearly equal, or stand otherwise on the nodes: one of them says about what both take, and
    the work of the other one is better spent on an unlike layout.
    """
    first: list[Proposal] = []
    twins: list[Proposal] = []
    seen: dict[object, float] = {}
    for each in ranked:
        key = _cut(each)
        known = seen.get(key) if key is not None else None
        if known is not None and each.estimate_seconds <= known * (1 + _TWIN):
            twins.append(each)
        else:
            first.append(each)
            seen[key] = each.estimate_seconds
    return first, twins


def _cut(proposal: Proposal) -> object:
    """Return what twins have in common: stages in a row and their layers, the micro-batch size, and the rest.

    None where nothing is known of the stages.
    """
    facts, form = proposal.facts, proposal.facts.form
    cut: object = facts.layers
    if isinstance(form, SharedStages):
        cut = tuple(stage[1:] for stage in form.stages)
    elif isinstance(form, UnlikePipelines):
        cut = tuple((each.copies, each.layers, tuple(stage[1:] for stage in each.stages)) for each in form.forms)
    return (cut, facts.micro_batch_size, facts.recompute, proposal.fits, proposal.chunks, proposal.rules,
            proposal.task.cluster.world_size) if cut else None


@dataclass(frozen=True)
class _Found:
    """What was simulated of a proposal, and what had been estimated of it."""

    candidate: Candidate
    estimate_seconds: float

    @property
    def hope(self) -> float:
        """What orders layouts for other schedules: the step simulated, and the one estimated.

        The first schedule waits where later ones do not, so that its step alone says little of what they can reach;
        the estimate knows what warm-up takes away, and not what hides behind what.
        """
        return (self.candidate.seconds + self.estimate_seconds) / 2


class _Selection:
    """Prices proposals in the order of their estimates, as far as the work allows."""

    def __init__(self, allowance: Allowance, most: int, kept_back: float) -> None:
        self._allowance, self._most, self._kept_back = allowance, most, kept_back
        self._found: list[_Found] = []
        self._seen: set[tuple[object, ...]] = set()
        self._alike: set[tuple[object, ...]] = set()
        self._dear: list[tuple[Proposal, tuple[Pipeline, ...]]] = []
        """Passed over because they cost more than what is left: cheaper ones go first, if not far to seek."""

    def ends_before(self, proposal: Proposal, *, best_fits: bool) -> bool:
        """Say whether neither this proposal nor those that follow it are worth the work that is left."""
        if len(self._found) >= self._most or len(self._dear) > _MOST_DEAR:
            return True
        if self._found:
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
        if not all(each.candidate.fits for each in self._found) and exceeds_memory(proposal.task, layout):
            return  # One that does not fit is simulated, for what is said of it; the work is for those that do.
        like = (likeness(proposal.task.cluster, pipelines), proposal.facts.micro_batch_size, proposal.rules,
                proposal.task.settings.recompute)
        if like in self._alike:
            self._allowance.units -= units  # Other ranks of equal nodes: it takes as long, and counts as if simulated.
            self._most -= 1
            return
        self._alike.add(like)
        self._evaluate(proposal, pipelines)

    def result(self, held_back: HeldBack | None) -> list[_Found]:
        """Return what was simulated; the best of the dear ones where all were, but for one that is held back."""
        if self._dear and not self._found:
            proposal, pipelines = self._dear[0]
            if held_back is None or proposal.fits:
                self._evaluate(proposal, pipelines)
            else:
                held_back.append(functools.partial(self._priced, proposal, pipelines))
        return self._found

    def _is_new(self, proposal: Proposal, pipelines: tuple[Pipeline, ...]) -> bool:
        key = (pipelines, proposal.facts.micro_batch_size, proposal.rules, proposal.task.settings.recompute,
               tuple(node.slot for node in proposal.task.cluster.nodes))
        new = key not in self._seen
        self._seen.add(key)
        return new

    def _evaluate(self, proposal: Proposal, pipelines: tuple[Pipeline, ...]) -> None:
        self._found.append(_Found(self._priced(proposal, pipelines), proposal.estimate_seconds))

    def _priced(self, proposal: Proposal, pipelines: tuple[Pipeline, ...]) -> Candidate:
        return evaluate_layout(proposal.task, proposal.facts, pipelines, proposal.facts.micro_batch_size,
                               proposal.rules, proposal.chunks, allowance=self._allowance)


def _rescheduled(found: Sequence[_Found], allowance: Allowance) -> list[Candidate]:
    """Return the most hopeful layouts with other schedules: each with one that hides much, the best with all."""
    # Layouts that swap equal fabrics take equally long, and one of them is enough.
    unlike = {round(each.candidate.seconds, 12): each for each in reversed(found) if each.candidate.fits}
    finalists = sorted(unlike.values(), key=lambda each: each.hope)[:_WARMUP_FINALISTS]
    if not finalists:
        return []
    reached: list[tuple[Candidate, Candidate]] = []
    best, kept, ratio = math.inf, 0.0, 1.0
    for each in finalists:
        # What may well be faster than the best so far goes before other schedules of that. Other schedules can take
        # more away than estimates know, of all layouts alike: `ratio` is the most that they took from one.
        hope = min(each.estimate_seconds / _ESTIMATE_ERROR, ratio * each.estimate_seconds / _RATIO_ERROR)
        left = allowance.units - (kept if each.estimate_seconds >= best else 0.0)
        if reached and (left <= 0 or hope > best):
            continue
        tried = with_least_waiting(each.candidate, allowance)
        reached.append((each.candidate, tried))
        ratio = min(ratio, tried.seconds / each.estimate_seconds)
        if tried.seconds < best:
            best, kept = tried.seconds, _KEPT_FOR_BEST * layout_units(tried.task, tried.layout)
    better = [tried for candidate, tried in reached if tried is not candidate]
    reached.sort(key=lambda pair: pair[1].seconds)
    for i, (_, tried) in enumerate(reached):
        if i == 0 or allowance.units > 0:
            better += with_schedules(tried, allowance)
    return better
