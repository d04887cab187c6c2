"""The search: every strategy proposes layouts with estimates, the best are simulated, the fastest is chosen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holmes_hpc.errors import BatchRefusedError, MemoryRefusedError, PlanRefusedError
from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.search.budget import SearchBudget
from holmes_hpc.planner.search.candidate import Candidate, evaluate_layout, with_schedules
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
from holmes_hpc.planner.search.in_parts import on_whole, part_of
from holmes_hpc.planner.search.shortlist import HeldBack, evaluate_best
from holmes_hpc.planner.strategies.proposals import AsWritten, LayoutFacts
from holmes_hpc.planner.task import Task
from holmes_hpc.values.strategy_kinds import strategy_kind
from holmes_hpc.words import counted, seconds_words

Progress = Callable[[str], None]
_COSTLY_WIDTH = 4
"""Tensor-parallel ranks whose exchange may cost more than recomputation's third of the work; fewer hardly do."""


@dataclass(frozen=True)
class Searched:
    """What a search found: all that was simulated, and what each strategy refused."""

    candidates: tuple[Candidate, ...]
    refusals: Mapping[str, Sequence[PlanRefusedError]]

    @property
    def best(self) -> Candidate | None:
        """The fastest that fits into memory; one that the engine of this version lacks something for only if all do."""
        fitting = [each for each in self.candidates if each.fits]
        return choose(fitting) if fitting else None


def search(task: Task, progress: Progress | None = None) -> Searched:
    """Return what was found for the asked strategy (`auto`: for all that search).

    `progress` is told in words what goes on. Raises PlanRefusedError for degrees that no strategy could have.
    """
    if task.settings.strategy_kind.is_written:
        return Searched(tuple(_written(task)), {})
    part = part_of(task)
    if part is not None:
        of_part = search(part.task, progress)
        repeated = on_whole(part, of_part.candidates)
        if repeated:
            return Searched(tuple(repeated), of_part.refusals)
    searched = compared_strategies() if task.settings.compares_all else (task.settings.strategy,)
    _check_degrees(task)
    budget = SearchBudget(task.settings.search_seconds, task.cluster.world_size, progress)
    candidates: list[Candidate] = []
    held_back: HeldBack = []
    refusals: dict[str, list[PlanRefusedError]] = {name: [] for name in searched}
    for name in searched:
        budget.say(f"planning: {name}{_so_far(candidates)}")
        own, found = with_defaults(task, name), []
        held: HeldBack = []
        try:
            found = _evaluate_strategy(own, name, refusals[name], budget, held)
        except PlanRefusedError as refusal:
            refusals[name].append(refusal)
        candidates += found
        held_back += held
        best = min((each.seconds for each in candidates if each.fits), default=math.inf)
        if found or held or any(map(_is_memory, refusals[name])):
            candidates += _recomputed(own, name, found, budget, best)
    if not any(each.fits for each in candidates):
        candidates += [simulate() for simulate in held_back]
    if task.settings.compares_all:
        if task.settings.leave_nodes_out:
            candidates += on_fewer(task, min((each.seconds for each in candidates if each.fits), default=math.inf))
        budget.say(f"planning: small changes to the best layouts{_so_far(candidates)}")
        candidates += improve(candidates, budget)
        if task.settings.search_chunks:
            candidates += in_chunks(candidates, budget)
    return Searched(tuple(candidates), refusals)


def _check_degrees(task: Task) -> None:
    """Refuse degrees that ask for more ranks than there are, which every strategy would refuse in its own words."""
    degrees = {name: getattr(task.settings, name) for name in ("tensor", "pipeline", "data")}
    asked = {name: degree for name, degree in degrees.items() if degree is not None}
    needed, world = math.prod(asked.values()), task.cluster.world_size
    if needed > world:
        words = " and ".join(f"parallel.{name}={degree}" for name, degree in asked.items())
        need = "needs" if len(asked) == 1 else "need"
        raise PlanRefusedError(f"{words} {need} {counted(needed, 'rank')}, and the cluster has {world}. Set degrees "
                               f"whose product is at most {world}, or leave one null: then the planner chooses it.")


def _so_far(candidates: Sequence[Candidate]) -> str:
    """Return what was found so far, for people who wait."""
    fitting = [each for each in candidates if each.fits]
    return f", {len(candidates)} simulated, fastest {seconds_words(choose(fitting).seconds, 4)}" if fitting else ""


def choose(fitting: Sequence[Candidate]) -> Candidate:
    """Return the fastest that the engine runs, else the fastest."""
    pool = [each for each in fitting if not each.missing] or list(fitting)
    return min(pool, key=lambda each: each.seconds)


def _evaluate_strategy(task: Task, name: str, refusals: list[PlanRefusedError], budget: SearchBudget,
                       held_back: HeldBack, limit: float = math.inf,
                       narrower_than: float = math.inf) -> list[Candidate]:
    """Evaluate the layouts of one strategy; wider tensor parallelism only where narrower has too little memory.

    Pipelines cost less than tensor exchange as long as memory allows. Where narrow stages make more pipelines than
    there are micro-batches, wider ones are looked at too. What is estimated to take `limit` seconds or more is
    left out, and so are tensor degrees from `narrower_than` on. Raises PlanRefusedError where no degree has one.
    """
    candidates: list[Candidate] = []
    refused: list[PlanRefusedError] = []
    for tensor in degrees_of(name, task):
        if (tensor or 1) >= narrower_than:
            break
        try:
            proposals = [each for each in propose_by(name, task, tensor, refusals) if each.estimate_seconds < limit]
        except PlanRefusedError as refusal:
            refused.append(refusal)  # a wider degree that cannot be says nothing of those before it
            continue
        candidates += evaluate_best(task, proposals, budget.allowance(), strategy_kind(name).most_simulated,
                                    held_back)
        if any(each.fits for each in candidates) or not (candidates or held_back
                                                         or any(map(_may_be_wider, refusals))):
            break
    if refused and not (candidates or held_back):
        raise refused[0]
    return candidates


def _may_be_wider(refusal: PlanRefusedError) -> bool:
    return isinstance(refusal, MemoryRefusedError | BatchRefusedError)


def _is_memory(refusal: PlanRefusedError) -> bool:
    return isinstance(refusal, MemoryRefusedError)


def _recomputed(task: Task, name: str, candidates: Sequence[Candidate], budget: SearchBudget,
                limit: float) -> list[Candidate]:
    """Return layouts with recomputation, where it is left open and memory is too small for what is best without.

    That is where nothing fits, or only what exchanges over wide tensor parallelism; then what may take less than
    `limit` seconds, the best of all strategies so far.
    """
    if strategy_kind(name).tries_recomputation or not task.settings.search_recompute:
        return []
    widths = [each.layout.pipelines[0].stages[0].tensor for each in candidates if each.fits]
    narrowest = degrees_of(name, task)[0] or 1
    if widths and (min(widths) == narrowest or min(widths) < _COSTLY_WIDTH):
        return []
    all_found: list[Candidate] = []
    for recompute in task.settings.recomputations[1:]:
        other = dataclasses.replace(task, settings=task.settings.replace(recompute=recompute, search_recompute=False))
        try:
            found = _evaluate_strategy(other, name, [], budget, [], limit, min(widths, default=math.inf))
        except PlanRefusedError:
            continue
        if any(each.fits for each in found):
            all_found += [dataclasses.replace(each, facts=dataclasses.replace(each.facts, recompute=recompute))
                          for each in found]
        if _has_narrow(found, narrowest):
            break
    return all_found


def _has_narrow(candidates: Sequence[Candidate], tensor: int) -> bool:
    return any(each.fits and each.layout.pipelines[0].stages[0].tensor == tensor for each in candidates)


def _written(task: Task) -> list[Candidate]:
    """Return the layout that the user wrote down, with its first schedule and, where it fits, with better ones."""
    pipelines, size = written_pipelines(task)
    facts = LayoutFacts(task.settings.strategy, AsWritten(len(pipelines)), size)
    rules = GroupRules(two_level=task.settings.two_level)
    candidate = evaluate_layout(task, facts, pipelines, size, rules, task.settings.chunks)
    if not candidate.fits or not candidate.schedule.kind.warms_up:
        return [candidate]
    allowance = SearchBudget(task.settings.search_seconds, task.cluster.world_size).allowance()
    return [min([candidate, *with_schedules(candidate, allowance)], key=lambda each: each.seconds)]
