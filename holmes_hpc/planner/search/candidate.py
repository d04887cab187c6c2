"""From a layout to a candidate: its schedule, what a simulation of it says, and whether it can be used."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from holmes_hpc.planner.cost.rank_memory import USABLE_FRACTION
from holmes_hpc.planner.cost.stages import GIB
from holmes_hpc.planner.layout.groups import GroupRules, find_groups
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.search.budget import Allowance
from holmes_hpc.planner.search.schedules import candidate_schedules, first_schedule
from holmes_hpc.planner.simulation.predict import memory_parts, predict
from holmes_hpc.planner.strategies.proposals import LayoutFacts
from holmes_hpc.planner.task import Task
from holmes_hpc.schedule.building import hop_warmups, slow_hops
from holmes_hpc.schedule.in_flight import Peaks
from holmes_hpc.schedule.policies import in_flight_caps
from holmes_hpc.values import Pipeline, Prediction, ScheduleChoice
from holmes_hpc.values.capabilities import unable

WORTHWHILE = 0.99
"""Extra warm-up costs memory, so it has to save a hundredth of the step."""
_AS_CHEAP = 0.995
"""The same where a schedule needs less warm-up than the best so far."""
_MORE_WARMUP = 2
"""Warm-up forwards that are tried beyond what a hop's delay asks for."""


@dataclass(frozen=True)
class Shortage:
    """The rank that lacks most memory for a layout, and what it needs in GiB."""

    rank: int
    need_gib: float


@dataclass(frozen=True)
class Candidate:
    """A layout that may become the plan, with its schedule and what is predicted of it, on the nodes of `task`.

    `shortage` says where memory is too small for it, if so, and `missing` what the engine of this version lacks to run
    it.
    """

    facts: LayoutFacts
    task: Task
    layout: Layout
    rules: GroupRules
    schedule: ScheduleChoice
    predicted: Prediction
    shortage: Shortage | None = None
    missing: tuple[str, ...] = ()

    @property
    def strategy(self) -> str:
        """The strategy that proposed it."""
        return self.facts.strategy

    @property
    def fits(self) -> bool:
        """Whether memory holds it on every rank."""
        return self.shortage is None

    @property
    def seconds(self) -> float:
        """The predicted seconds of a step."""
        return self.predicted.step_seconds


def evaluate_layout(task: Task, facts: LayoutFacts, pipelines: tuple[Pipeline, ...], size: int, rules: GroupRules,
                    chunks: int = 1, like: ScheduleChoice | None = None,
                    allowance: Allowance | None = None) -> Candidate:
    """Simulate a layout and return it as a candidate; `allowance`, if any, pays for it.

    Its schedule is one like `like`, by default the one that a layout is first looked at with.
    """
    layout = make_layout(task, facts.strategy, pipelines, size, rules)
    if like is not None:
        choice = _adapted(like, task, layout)
    else:
        needs_times = task.settings.first_schedule(chunks).needs_times
        choice = candidate_schedules(task, layout, chunks)[0] if needs_times else first_schedule(task, chunks)
    if allowance is not None:
        allowance.spend(task, layout, choice)
    return evaluate_schedule(task, facts, layout, rules, choice)


def make_layout(task: Task, strategy: str, pipelines: tuple[Pipeline, ...], size: int, rules: GroupRules) -> Layout:
    """Return the layout of these pipelines; the same one for the same, to which several ways lead.

    Raises PlanRefusedError where a rank would hold two slices of one unit.
    """
    synchronization = task.synchronization(strategy)

    def make() -> Layout:
        groups, reductions = find_groups(task.architecture, task.cluster, pipelines, rules,
                                         sharded=synchronization.sharded, in_nodes=task.machine.uses_gloo)
        return Layout(pipelines, groups, reductions, size, synchronization)

    layout: Layout = task.layouts.layouts.of((pipelines, size, rules, synchronization), make)
    return layout


def _adapted(like: ScheduleChoice, task: Task, layout: Layout) -> ScheduleChoice:
    """Return a schedule for another layout: times are those of the layout, warm-ups of single hops the largest one."""
    if like.stage_times:
        for choice in candidate_schedules(task, layout, like.chunks):
            if choice.name == like.name:
                like = dataclasses.replace(like, stage_times=choice.stage_times, hop_times=choice.hop_times)
    return dataclasses.replace(like, hop_warmups=())


def evaluate_schedule(task: Task, facts: LayoutFacts, layout: Layout, rules: GroupRules,
                      choice: ScheduleChoice) -> Candidate:
    """Simulate a layout with a schedule and return both as a candidate."""
    predicted = predict(task, layout, choice)
    degrees = [[stage.tensor for stage in pipeline.stages] for pipeline in layout.pipelines]
    missing = tuple(unable(degrees, choice.name, task.settings.recompute))
    return Candidate(facts, task, layout, rules, choice, predicted, _shortage(task, predicted), missing)


def _shortage(task: Task, predicted: Prediction) -> Shortage | None:
    """Return the worst rank of those that need more memory than may be used of their GPUs."""
    worst, over = None, 0.0
    for node in task.cluster.nodes:
        has = task.machine.memory_gib(node) * USABLE_FRACTION
        for rank in task.cluster.ranks_of(node):
            need = predicted.memory_gib_per_rank[rank]
            if need - has > over:
                worst, over = Shortage(rank, need), need - has
    return worst


def with_least_waiting(candidate: Candidate, allowance: Allowance) -> Candidate:
    """Return the layout with the schedule that hides most waiting, but for turns; as it is where that does not pay.

    One simulation says about what a layout can reach, before others are spent on it. Where memory is known to be too
    small for the warm-up, turns take its place if there are some: their simulation costs several, but no memory.
    """
    choices = candidate_schedules(candidate.task, candidate.layout, candidate.schedule.chunks)[1:]
    like = [choice for choice in choices if choice.turns == candidate.schedule.turns]
    cold = [choice for choice in choices if choice.warmup_extra == candidate.schedule.warmup_extra]
    choice = next((each for each in like[-1:] + cold[-1:]
                   if not exceeds_memory(candidate.task, candidate.layout, choice=each)), None)
    if choice is None:
        return candidate
    other = _rescheduled(candidate, choice, allowance)
    return other if other.fits and other.seconds < WORTHWHILE * candidate.seconds else candidate


def with_schedules(candidate: Candidate, allowance: Allowance) -> list[Candidate]:
    """Return the layout with other schedules, extra warm-up and turns, each if it pays and fits.

    Each has to beat the best so far, since all of them cost something: memory, or an order that is harder to follow.
    At least one is tried, the others and more warm-up as long as there is work left.
    """
    best, better, of_name = candidate, [], {candidate.schedule.name: candidate}
    choices = candidate_schedules(candidate.task, candidate.layout, candidate.schedule.chunks)
    for i, choice in enumerate(_hopeful_first(choices)):
        if i and allowance.units <= 0:
            break
        if choice == candidate.schedule:
            continue
        other = _rescheduled(candidate, choice, allowance)
        # Turns in the place of extra warm-up take no more memory.
        worthwhile = WORTHWHILE if choice.warmup_extra >= best.schedule.warmup_extra else _AS_CHEAP
        own = of_name.get(choice.name, other)
        if other.seconds < worthwhile * best.seconds and other.fits:
            best = of_name[choice.name] = other
            better.append(other)
        elif other.fits and other.seconds > best.seconds and (own is other or other.seconds < own.seconds):
            of_name[choice.name] = other
            better.append(other)  # not the fastest, and a start for small changes of its own kind
    for _ in range(_MORE_WARMUP):
        warmer = one_warmer(best, allowance)
        if not warmer or warmer[0].seconds >= WORTHWHILE * best.seconds:
            break
        best = warmer[0]
        better.append(best)
    return better


def _hopeful_first(choices: Sequence[ScheduleChoice]) -> list[ScheduleChoice]:
    """Return the choices but for the first in the order in which they are tried.

    With turns no pipeline stands for others, so that a simulation costs several of the others: of these only the most
    hopeful one goes first, which needs no warm-up for what turns hide.
    """
    turning = [choice for choice in choices if choice.turns and choice.name == choices[-1].name]
    return sorted(choices[1:], key=lambda choice: (choice not in turning[:1], choice.turns))


def one_warmer(candidate: Candidate, allowance: Allowance) -> list[Candidate]:
    """Return the layout with one more warm-up forward, whether or not that pays; nothing where it makes no sense."""
    hops = slow_hops(candidate.layout.pipelines, candidate.layout.groups)
    if (not hops or candidate.task.settings.warmup_extra is not None or allowance.units <= 0
            or not candidate.schedule.kind.warms_up):
        return []
    choice = dataclasses.replace(candidate.schedule, warmup_extra=candidate.schedule.warmup_extra + 1, hop_warmups=())
    warmer = _rescheduled(candidate, choice, allowance)
    return [warmer] if warmer.fits else []


def _rescheduled(candidate: Candidate, choice: ScheduleChoice, allowance: Allowance) -> Candidate:
    allowance.spend(candidate.task, candidate.layout, choice)
    return evaluate_schedule(candidate.task, candidate.facts, candidate.layout, candidate.rules, choice)


def exceeds_memory(task: Task, layout: Layout, peaks: Peaks | None = None,
                   choice: ScheduleChoice | None = None) -> bool:
    """Return whether a layout is known not to fit without being simulated.

    `peaks` are the micro-batches in flight, if they are known. Otherwise ranks that serve one stage of one pipeline
    keep as many as 1F1B and zero bubble let them with the warm-up of `choice` (None: with none), and at least one with
    any other schedule; those that serve several are not judged.
    """
    served = Counter(rank for pipeline in layout.pipelines for stage in pipeline.stages for rank in stage.ranks)
    exact = (choice.kind if choice is not None else task.settings.first_schedule()).is_capped
    warmups = hop_warmups(layout.pipelines, layout.groups, choice) if choice is not None else {}
    peaks = peaks or {(rank, p, s): min(cap, layout.pipelines[p].microbatches) if exact else 1
             for (p, s), cap in in_flight_caps(layout.pipelines, warmups).items()
             for rank in layout.pipelines[p].stages[s].ranks if served[rank] == 1}
    memory = memory_parts(task, layout, peaks)
    return any(memory[rank].total > task.machine.memory_gib(task.cluster.node_of(rank)) * USABLE_FRACTION * GIB
               for rank in served)
