"""The search: every layout of the asked strategies is estimated, the best are simulated, the fastest is chosen."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner import strategies
from holmes_hpc.planner.candidates import Candidate, make_candidate, micro_batch_sizes
from holmes_hpc.planner.groups import GroupRules, find_groups
from holmes_hpc.planner.manual import manual_pipelines
from holmes_hpc.planner.memory import USABLE_FRACTION
from holmes_hpc.planner.pipelines import build_pipelines, count_microbatches
from holmes_hpc.planner.predict import PERIOD, Layout, predict
from holmes_hpc.planner.schedule_choice import candidate_schedules, first_schedule, words_of
from holmes_hpc.planner.settings import Task
from holmes_hpc.planner.shapes import tensor_degrees
from holmes_hpc.values import Pipeline, Prediction, Rejected, ScheduleChoice

MOST_REJECTED = 10
_MOST_SIMULATED = 8
_MOST_ACTIONS = 50_000
"""Actions that are simulated for each strategy; its best estimate always is."""
_WARMUP_FINALISTS = 3
_WORTHWHILE = 0.99
"""Extra warm-up costs memory, so it has to save a hundredth of the step."""


@dataclass(frozen=True)
class Priced:
    """A layout with its schedule and what is predicted of it; `reason` says why it cannot be used, if so."""

    strategy: str
    words: str
    layout: Layout
    schedule: ScheduleChoice
    predicted: Prediction
    reason: str = ""


def search(task: Task) -> tuple[Priced, tuple[Rejected, ...]]:
    """Return the best layout of the asked strategy (`auto`: of all that search), and the best of the others.

    Raises PlanRefusedError, with the reasons, when there is none.
    """
    if task.settings.strategy == "manual":
        return _manual(task), ()
    names = strategies.names() if task.settings.strategy == "auto" else (task.settings.strategy,)
    priced: list[Priced] = []
    refusals: dict[str, list[str]] = {name: [] for name in names}
    for name in names:
        try:
            priced += _price_strategy(_defaults(task, name), name, refusals[name])
        except PlanRefusedError as refusal:
            refusals[name].append(str(refusal))
    fitting = [each for each in priced if not each.reason]
    if not fitting:
        raise PlanRefusedError(_why(priced, refusals))
    best = min(fitting, key=lambda each: each.predicted.step_seconds)
    return best, _rejected(best, priced, refusals)


def _why(priced: Sequence[Priced], refusals: Mapping[str, Sequence[str]]) -> str:
    """Return the most frequent reason of every strategy, the same one once."""
    reasons = [each.reason for each in priced[:1]]
    reasons += [Counter(messages).most_common(1)[0][0] for messages in refusals.values() if messages and not priced]
    return " Or: ".join(dict.fromkeys(reasons))


def _defaults(task: Task, name: str) -> Task:
    """Return the task with the defaults of Megatron where the baseline is only one of several strategies."""
    settings = task.settings
    if name != "megatron" or settings.strategy == "megatron":
        return task
    split = "uniform" if settings.layer_split == "adaptive" else settings.layer_split
    warmup = 0 if settings.warmup_extra is None else settings.warmup_extra
    schedule = "1f1b" if settings.schedule == "auto" else settings.schedule
    return dataclasses.replace(task, settings=settings.replace(
        layer_split=split, warmup_extra=warmup, schedule=schedule, turns=bool(settings.turns)))


def _price_strategy(task: Task, name: str, refusals: list[str]) -> list[Priced]:
    """Price the layouts of one strategy; wider tensor parallelism only where memory is too small for narrower.

    Pipelines cost less than tensor exchange as long as memory allows.
    """
    priced: list[Priced] = []
    for tensor in tensor_degrees(task):
        candidates = []
        for shape in strategies.shapes_of(name, task, tensor):
            shape = shape.in_chunks(task.settings.chunks)
            for size in micro_batch_sizes(task, shape):
                try:
                    candidates.append(make_candidate(task, shape, size))
                except PlanRefusedError as refusal:
                    refusals.append(str(refusal))
        priced += _price_best(task, candidates)
        if any(not each.reason for each in priced) or not (priced or any(map(_is_memory, refusals))):
            break
    return priced


def _is_memory(reason: str) -> bool:
    return reason.startswith("memory")


def _price_best(task: Task, candidates: Sequence[Candidate]) -> list[Priced]:
    """Simulate the best estimates, then give the fastest of those extra warm-up where it pays."""
    ranked = sorted(candidates, key=lambda each: (not each.fits, each.estimate_seconds))[:_MOST_SIMULATED]
    budget = _MOST_ACTIONS
    priced: list[Priced] = []
    for candidate in ranked:
        budget -= _action_count(task, candidate)
        if not priced or (budget >= 0 and (candidate.fits or not ranked[0].fits)):
            priced.append(_price_candidate(task, candidate))
    if task.settings.schedule != "gpipe":
        fitting = sorted((each for each in priced if not each.reason), key=lambda each: each.predicted.step_seconds)
        finalists = fitting[:_WARMUP_FINALISTS if budget >= 0 else 1]
        priced += [warmer for each in finalists for warmer in _with_schedules(task, each)]
    return priced


def _action_count(task: Task, candidate: Candidate) -> int:
    microbatches = task.settings.global_batch_size // candidate.micro_batch_size
    widths = {len(parts) for parts in candidate.shape.stages}
    if len(widths) == 1:
        # Alike pipelines are simulated in two short steps.
        microbatches = min(microbatches, max(widths) * 4 * (len(candidate.layers) + PERIOD))
    return 4 * microbatches * sum(len(parts[0]) for parts in candidate.shape.stages)


def _price_candidate(task: Task, candidate: Candidate) -> Priced:
    microbatches = count_microbatches(task.settings.global_batch_size, candidate.micro_batch_size)
    pipelines = build_pipelines(candidate.shape.stages, candidate.layers, microbatches)
    return _price(task, candidate.shape.strategy, candidate.words, pipelines, candidate.micro_batch_size,
                  candidate.shape.rules, candidate.shape.chunks)


def _price(task: Task, strategy: str, words: str, pipelines: tuple[Pipeline, ...], size: int,
           rules: GroupRules, chunks: int = 1) -> Priced:
    groups, reductions = find_groups(task.architecture, task.cluster, pipelines, rules)
    layout = Layout(pipelines, groups, reductions, size, task.synchronization(strategy))
    first = candidate_schedules(task, layout, chunks)[0] if _needs_times(task) else first_schedule(task, chunks)
    return _price_schedule(task, strategy, words, layout, first)


def _needs_times(task: Task) -> bool:
    return task.settings.schedule == "zero_bubble"


def _price_schedule(task: Task, strategy: str, words: str, layout: Layout, choice: ScheduleChoice) -> Priced:
    predicted = predict(task, layout, choice)
    return Priced(strategy, words, layout, choice, predicted, _memory_problem(task, predicted))


def _with_schedules(task: Task, priced: Priced) -> list[Priced]:
    """Return the layout with other schedules, extra warm-up and turns, each if it pays and fits.

    Each has to beat the best so far, since all of them cost something: memory, or an order that is harder to follow.
    """
    best, better = priced, []
    for choice in candidate_schedules(task, priced.layout, priced.schedule.chunks)[1:]:
        words = ", ".join(filter(None, (priced.words, words_of(choice))))
        other = _price_schedule(task, priced.strategy, words, priced.layout, choice)
        if other.predicted.step_seconds < _WORTHWHILE * best.predicted.step_seconds and not other.reason:
            best = other
            better.append(other)
    return better


def _memory_problem(task: Task, predicted: Prediction) -> str:
    """Return why a layout does not fit into memory, naming the worst rank, or nothing."""
    worst, over = "", 0.0
    for rank, need in enumerate(predicted.memory_gib_per_rank):
        node = task.cluster.node_of(rank)
        has = task.machine.memory_gib(node) * USABLE_FRACTION
        if need - has > over:
            over = need - has
            worst = (f"memory: rank {rank} ({node.slot}, {task.machine.gpu(node).name}) needs {need:.1f} GiB and has "
                     f"{has:.1f}. Use more pipeline stages or nodes, a smaller parallel.micro_batch_size, or a "
                     f"smaller model.")
    return worst


def _manual(task: Task) -> Priced:
    pipelines, size = manual_pipelines(task)
    words = f"{len(pipelines)} pipelines as written, micro-batch {size}"
    priced = _price(task, "manual", words, pipelines, size, GroupRules(two_level=task.settings.two_level))
    if priced.reason:
        raise PlanRefusedError(priced.reason)
    if task.settings.schedule != "gpipe":
        return min([priced, *_with_schedules(task, priced)], key=lambda each: each.predicted.step_seconds)
    return priced


def _rejected(best: Priced, priced: Sequence[Priced], refusals: Mapping[str, Sequence[str]]) -> tuple[Rejected, ...]:
    """Return the best alternatives with figures, then what could not be planned at all."""
    others = sorted((each for each in priced if each is not best),
                    key=lambda each: (bool(each.reason), each.predicted.step_seconds))
    kept = [Rejected(each.strategy, each.words, each.reason or _slower(best, each), each.predicted) for each in others]
    # The best of every other strategy is shown even where ten layouts of the chosen one are faster.
    first = {each.strategy: each for each in reversed(kept) if each.strategy != best.strategy}
    chosen = kept[:MOST_REJECTED]
    missing = [each for each in first.values() if each not in chosen]
    chosen = chosen[:MOST_REJECTED - len(missing)] + missing
    planned = {each.strategy for each in priced}
    impossible = [Rejected(name, "", Counter(reasons).most_common(1)[0][0])
                  for name, reasons in refusals.items() if name not in planned and reasons]
    return (*chosen[:MOST_REJECTED - len(impossible)], *impossible)


def _slower(best: Priced, other: Priced) -> str:
    ratio = other.predicted.step_seconds / best.predicted.step_seconds - 1
    return "as fast, and later in order" if ratio < 5e-4 else f"{100 * ratio:.1f} % slower"
