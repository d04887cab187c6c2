"""From proposals with estimates to prices: the most promising ones are simulated, as far as the work allows."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.bounds import least_seconds
from holmes_hpc.planner.priced import Priced, exceeds_memory, make_layout, price_layout, with_schedules
from holmes_hpc.planner.proposals import Proposal
from holmes_hpc.planner.replicas import likeness
from holmes_hpc.planner.settings import Task
from holmes_hpc.planner.work import Allowance, layout_units
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
    warms_up = task.settings.schedule != "gpipe"
    kept_back = _WARMUP_SHARE * allowance.units if warms_up else 0.0
    priced: list[Priced] = []
    seen: set[tuple[object, ...]] = set()
    alike: set[tuple[object, ...]] = set()
    dear: list[tuple[Proposal, tuple[Pipeline, ...]]] = []
    for proposal in ranked:
        if dear and not priced and proposal.estimate_seconds > _NEAR_DEAR * dear[0][0].estimate_seconds:
            break
        if len(priced) >= most or (priced and (allowance.units <= kept_back or (ranked[0].fits and not proposal.fits))):
            break
        try:
            pipelines = proposal.build()
        except PlanRefusedError:
            continue
        key = (pipelines, proposal.micro_batch_size, proposal.rules, proposal.task.settings.recompute,
               tuple(node.slot for node in proposal.task.cluster.nodes))
        if key in seen:
            continue
        seen.add(key)
        try:
            layout = make_layout(proposal.task, proposal.strategy, pipelines, proposal.micro_batch_size, proposal.rules)
        except PlanRefusedError:
            continue
        units = layout_units(proposal.task, layout)
        if units > allowance.units - kept_back:
            dear.append((proposal, pipelines))  # Cheaper ones go before it, as long as they are not far to seek.
            if len(dear) > _MOST_DEAR:
                break
            continue
        if any(each.reason for each in priced) and exceeds_memory(proposal.task, layout):
            continue  # One that does not fit is simulated, for what is said of it; the work is for those that do.
        like = likeness(proposal.task.cluster, pipelines), proposal.micro_batch_size, proposal.rules, key[3]
        if like in alike:
            allowance.units -= units  # Other ranks of equal nodes: it takes as long, and counts as if simulated.
            most -= 1
            continue
        alike.add(like)
        priced.append(_price(proposal, pipelines, allowance))
    if dear and not priced:
        priced.append(_price(*dear[0], allowance))
    if warms_up:
        # Layouts that swap equal fabrics take equally long, and one of them is enough.
        fitting = sorted({round(each.seconds, 12): each for each in reversed(priced) if not each.reason}.values(),
                         key=_hope)
        for i, each in enumerate(fitting[:_WARMUP_FINALISTS]):
            if i == 0 or allowance.units > 0:
                priced += with_schedules(each, allowance)
    return priced


def _hope(priced: Priced) -> float:
    """Return what orders layouts for other schedules: their step, and a part of what compute alone would take.

    The first schedule waits where later ones do not, so that its step alone says little of what they can reach.
    """
    least = least_seconds(priced.task, priced.layout.pipelines, priced.layout.micro_batch_size)
    return priced.seconds + _COMPUTE_PART * least


def _price(proposal: Proposal, pipelines: tuple[Pipeline, ...], allowance: Allowance) -> Priced:
    return price_layout(proposal.task, proposal.strategy, proposal.words, pipelines, proposal.micro_batch_size,
                        proposal.rules, proposal.chunks, allowance=allowance)
