"""The search: every strategy proposes layouts with estimates, the best are simulated, the fastest is chosen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.search.alternatives import alternatives
from holmes_hpc.planner.search.budget import SearchBudget
from holmes_hpc.planner.search.catalogue import (
    compared_strategies,
    degrees_of,
    propose_by,
    with_defaults,
    written_pipelines,
)
from holmes_hpc.planner.search.fewer_nodes import on_fewer
from holmes_hpc.planner.search.improve import improve
from holmes_hpc.planner.search.in_chunks import in_chunks
from holmes_hpc.planner.search.priced import Priced, price_layout, with_schedules
from holmes_hpc.planner.search.shortlist import price_best
from holmes_hpc.planner.strategies.refusals import MEMORY, no_plan
from holmes_hpc.planner.strategies.unlike import RECOMPUTATIONS
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Rejected
from holmes_hpc.values.strategy_kinds import strategy_kind
from holmes_hpc.words import counted

Progress = Callable[[str], None]


def search(task: Task, progress: Progress | None = None) -> tuple[Priced, tuple[Rejected, ...]]:
    """Return the best layout of the asked strategy (`auto`: of all that search), and the best of the others.

    What the engine of this version cannot run is chosen only where nothing else fits; faster ones are among the
    others, marked so. `progress` is told in words what goes on. Raises PlanRefusedError, with the reasons, when there
    is no layout.
    """
    if task.settings.strategy_kind.is_written:
        return _written(task), ()
    searched = compared_strategies() if task.settings.compares_all else (task.settings.strategy,)
    _check_degrees(task)
    budget = SearchBudget(task.settings.search_seconds, task.cluster.world_size, progress)
    priced: list[Priced] = []
    refusals: dict[str, list[str]] = {name: [] for name in searched}
    for name in searched:
        budget.say(f"planning: {name}{_so_far(priced)}")
        own, found = with_defaults(task, name), []
        try:
            found = _price_strategy(own, name, refusals[name], budget)
        except PlanRefusedError as refusal:
            refusals[name].append(str(refusal))
        priced += found + _recomputed(own, name, found, refusals[name], budget)
    if task.settings.compares_all:
        if task.settings.leave_nodes_out:
            priced += on_fewer(task, min((each.seconds for each in priced if not each.reason), default=math.inf))
        budget.say(f"planning: small changes to the best layouts{_so_far(priced)}")
        priced += improve(priced, budget)
        if task.settings.search_chunks:
            priced += in_chunks(priced, budget)
    fitting = [each for each in priced if not each.reason]
    if not fitting:
        raise PlanRefusedError(no_plan([each.reason for each in priced], refusals))
    best = choose(fitting)
    return best, alternatives(best, priced, refusals)


def _check_degrees(task: Task) -> None:
    """Refuse degrees that ask for more ranks than there are, which every strategy would refuse in its own words."""
    degrees = {name: getattr(task.settings, name) for name in ("tensor", "pipeline", "data")}
    asked = {name: degree for name, degree in degrees.items() if degree is not None}
    needed, world = math.prod(asked.values()), task.cluster.world_size
    if needed > world:
        words = " and ".join(f"parallel.{name}={degree}" for name, degree in asked.items())
        raise PlanRefusedError(f"{words} need {counted(needed, 'rank')}, and the cluster has {world}. Set degrees "
                               f"whose product is at most {world}, or leave one null: then the planner chooses it.")


def _so_far(priced: Sequence[Priced]) -> str:
    """Return what was found so far, for people who wait."""
    fitting = [each for each in priced if not each.reason]
    return f", {len(priced)} simulated, fastest {choose(fitting).seconds:.4g} s" if fitting else ""


def choose(fitting: Sequence[Priced]) -> Priced:
    """Return the fastest that the engine runs, else the fastest."""
    pool = [each for each in fitting if not each.missing] or list(fitting)
    return min(pool, key=lambda each: each.seconds)


def _price_strategy(task: Task, name: str, refusals: list[str], budget: SearchBudget) -> list[Priced]:
    """Price the layouts of one strategy; wider tensor parallelism only where memory is too small for narrower.

    Pipelines cost less than tensor exchange as long as memory allows.
    """
    priced: list[Priced] = []
    for tensor in degrees_of(name, task):
        proposals = propose_by(name, task, tensor, refusals)
        priced += price_best(task, proposals, budget.allowance(), strategy_kind(name).most_simulated)
        if any(not each.reason for each in priced) or not (priced or any(map(_is_memory, refusals))):
            break
    return priced


def _is_memory(reason: str) -> bool:
    return reason.startswith(MEMORY)


def _recomputed(task: Task, name: str, priced: Sequence[Priced], refusals: Sequence[str],
                budget: SearchBudget) -> list[Priced]:
    """Return layouts with recomputation, where it is left open and nothing fits into memory without."""
    short = any(each.reason for each in priced) or (not priced and any(map(_is_memory, refusals)))
    settled = strategy_kind(name).tries_recomputation or not task.settings.search_recompute
    if settled or not short or any(not each.reason for each in priced):
        return []
    for recompute in RECOMPUTATIONS[1:]:
        other = dataclasses.replace(task, settings=task.settings.replace(recompute=recompute, search_recompute=False))
        try:
            found = _price_strategy(other, name, [], budget)
        except PlanRefusedError:
            continue
        if any(not each.reason for each in found):
            return [dataclasses.replace(each, words=f"{each.words}, recomputing {recompute}") for each in found]
    return []


def _written(task: Task) -> Priced:
    """Return the layout that the user wrote down, with its best schedule."""
    pipelines, size = written_pipelines(task)
    words = f"{counted(len(pipelines), 'pipeline')} as written, micro-batch {size}"
    rules = GroupRules(two_level=task.settings.two_level)
    priced = price_layout(task, task.settings.strategy, words, pipelines, size, rules, task.settings.chunks)
    if priced.reason:
        raise PlanRefusedError(priced.reason)
    if priced.schedule.kind.warms_up:
        allowance = SearchBudget(task.settings.search_seconds, task.cluster.world_size).allowance()
        return min([priced, *with_schedules(priced, allowance)], key=lambda each: each.seconds)
    return priced
