"""Small changes to the best layouts, kept where the simulation says that they pay."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.layout.pipelines import apportion
from holmes_hpc.planner.search.budget import Allowance, SearchBudget, layout_units
from holmes_hpc.planner.search.candidate import WORTHWHILE, Candidate, evaluate_layout, one_warmer, with_least_waiting
from holmes_hpc.planner.simulation.bounds import least_seconds
from holmes_hpc.planner.strategies.shapes import indivisible
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Pipeline
from holmes_hpc.values.strategy_kinds import strategy_kind

_STARTS = 16
_MOST_ROUNDS = 12
_FEW_PIPELINES = 4
_FEW_RANKS = 8
_HOPEFUL = 1.25
"""Over the fastest layout, up to which one is changed: beyond, in 73 problems none became the fastest."""
_LEAST_GAIN = 1e-6
"""Of the step, below which a change is no gain."""


def improve(candidates: Sequence[Candidate], budget: SearchBudget) -> list[Candidate]:
    """Return improved layouts, each better than the one that it came from, until the work is spent.

    Of the best layouts each moves one layer between two stages, or one micro-batch between pipelines, as long as that
    pays. The closed forms that proposed them do not know what hides behind what; the simulation does. What work is left
    goes to the best of other sequences of ranks.
    """
    allowance = budget.allowance_to_improve()
    starts = sorted((each for each in candidates if each.fits and each.schedule.chunks == 1
                     and strategy_kind(each.strategy).changed),
                    key=lambda each: each.seconds)
    better: list[Candidate] = []
    limit = _HOPEFUL * min((each.seconds for each in starts), default=0.0)
    unlike = _unlike(starts)
    chosen = [each for each in unlike if each.seconds <= limit][:_STARTS]
    further = itertools.chain.from_iterable(_hiding(one, limit, allowance) for one in _other_sequences(unlike, chosen))
    for start in itertools.chain((each for one in chosen for each in itertools.chain((one,), _warmer(one, allowance))),
                                 further):
        current = start
        for _ in range(0 if allowance.is_beyond(start.task, start.layout) else _MOST_ROUNDS):
            step = _best_change(current, allowance)
            if step is None:
                break
            current = step
        if current not in chosen:
            better.append(current)
    return better


def _warmer(start: Candidate, allowance: Allowance) -> Iterator[Candidate]:
    """Yield the start with one more warm-up forward, simulated when it is its turn."""
    yield from one_warmer(start, allowance)


def _hiding(start: Candidate, limit: float, allowance: Allowance) -> Iterator[Candidate]:
    """Yield the start with the schedule that hides most waiting, if there is work left and it then takes no longer."""
    if allowance.units > 0:
        tried = with_least_waiting(start, allowance)
        if tried.seconds <= limit:
            yield tried


def _unlike(candidates: Sequence[Candidate]) -> list[Candidate]:
    seen: dict[object, Candidate] = {}
    for each in candidates:
        seen.setdefault((_sequences(each), each.schedule.name, each.layout.micro_batch_size), each)
    return list(seen.values())


def _other_sequences(candidates: Sequence[Candidate], chosen: Sequence[Candidate]) -> list[Candidate]:
    """Return the best of each sequence of ranks that none of the chosen has.

    Layouts were cut by an estimate and simulated with their first schedule; where many wait on slow links alike, that
    says little of what they reach with another cut and schedule.
    """
    seen = {_sequences(each) for each in chosen}
    found: dict[object, Candidate] = {}
    for each in candidates:
        if (sequences := _sequences(each)) not in seen:
            found.setdefault(sequences, each)
    return list(found.values())


def _sequences(candidate: Candidate) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return tuple(tuple(stage.ranks for stage in pipeline.stages) for pipeline in candidate.layout.pipelines)


def _best_change(candidate: Candidate, allowance: Allowance) -> Candidate | None:
    best = candidate
    for warmer in one_warmer(candidate, allowance):
        if warmer.seconds < WORTHWHILE * best.seconds:
            return warmer
    task, units = candidate.task, layout_units(candidate.task, candidate.layout, turns=candidate.schedule.turns)
    changes = itertools.chain(_changes(task, candidate.layout), _joined(task, candidate.layout),
                              _other_sizes(candidate))
    for change in changes:
        if allowance.units <= 0:
            break
        if least_seconds(task, change.samples(), change.size) >= best.seconds * (1 - _LEAST_GAIN):
            # Its compute alone takes too long. It counts like any other, so that the bound does not change the plan.
            allowance.units -= units
            continue
        try:
            other = evaluate_layout(task, candidate.facts, change.pipelines(), change.size, candidate.rules,
                                    candidate.schedule.chunks, candidate.schedule, allowance)
        except PlanRefusedError:
            continue
        if other.fits and other.seconds < best.seconds * (1 - _LEAST_GAIN):
            best = other
    if best is candidate:
        return None
    return dataclasses.replace(best, facts=dataclasses.replace(best.facts, tuned=True))


@dataclass(frozen=True)
class _Change:
    """One change of a layout. `changed[p]` makes the new pipeline of an old one; the others stay, but for `without`.

    `typical` are some of the changed ones, of each kind at least one: enough for a bound.
    """

    before: Sequence[Pipeline]
    size: int
    changed: Mapping[int, Callable[[Pipeline], Pipeline]]
    typical: Sequence[int]
    without: int | None = None

    def samples(self) -> tuple[Pipeline, ...]:
        """Return the typical ones as they would be."""
        return tuple(self.changed[p](self.before[p]) for p in self.typical)

    def pipelines(self) -> tuple[Pipeline, ...]:
        """Return all pipelines as they would be."""
        return tuple(self.changed[p](pipeline) if p in self.changed else pipeline
                     for p, pipeline in enumerate(self.before) if p != self.without)


def _changes(task: Task, layout: Layout) -> Iterator[_Change]:
    """Yield the layouts one change away: like pipelines change together. Layers that were asked for stay."""
    pipelines, size = layout.pipelines, layout.micro_batch_size
    alike: dict[object, list[int]] = {}
    for p, pipeline in enumerate(pipelines):
        key = tuple((stage.first_layer, stage.num_layers, stage.tensor) for stage in pipeline.stages)
        alike.setdefault(key, []).append(p)
    for members in alike.values():
        typical = _typical(task, pipelines, members)
        depth = len(pipelines[members[0]].stages) if task.settings.layer_split == "adaptive" else 0
        for a in range(depth):
            for b in range(depth):
                if a != b and pipelines[members[0]].stages[a].num_layers > 1:
                    yield _Change(pipelines, size, dict.fromkeys(members, functools.partial(_move_layer, a=a, b=b)),
                                  typical)
    few = len(pipelines) <= _FEW_PIPELINES
    givers = range(len(pipelines)) if few else [members[-1] for members in alike.values()]
    takers = range(len(pipelines)) if few else [members[0] for members in alike.values()]
    for a in givers:
        for b in takers:
            if a != b and pipelines[a].microbatches > 1:
                yield _Change(pipelines, size, {a: functools.partial(_add_microbatches, count=-1),
                                                b: functools.partial(_add_microbatches, count=1)}, (b,))


def _joined(task: Task, layout: Layout) -> Iterator[_Change]:
    """Yield the layouts in which two pipelines that differ in one stage become one, with all of both's ranks there.

    Shared stages have one tensor degree each; here one fast rank may serve two single GPUs and a pair, say.
    """
    pipelines = layout.pipelines
    if task.cluster.world_size > _FEW_RANKS or task.settings.tensor is not None or task.settings.data is not None:
        return
    serves = Counter(rank for pipeline in pipelines for stage in pipeline.stages for rank in stage.ranks)
    for p, q in itertools.combinations(range(len(pipelines)), 2):
        pairs = list(zip(pipelines[p].stages, pipelines[q].stages, strict=False))
        differ = [s for s, (a, b) in enumerate(pairs) if a != b]
        if len(differ) != 1 or len(pipelines[p].stages) != len(pipelines[q].stages):
            continue
        a, b = pairs[differ[0]]
        ranks = tuple(sorted(a.ranks + b.ranks))
        nodes = list(dict.fromkeys(map(task.cluster.node_of, ranks)))
        alone = a.num_layers == b.num_layers and all(serves[rank] == 1 for rank in ranks)
        if alone and len(nodes) == 1 and nodes[0].gpus % len(ranks) == 0 and not indivisible(task, len(ranks)):
            joined = functools.partial(_with_ranks, s=differ[0], ranks=ranks, count=pipelines[q].microbatches)
            yield _Change(pipelines, layout.micro_batch_size, {p: joined}, (p,), without=q)


def _with_ranks(pipeline: Pipeline, s: int, ranks: tuple[int, ...], count: int) -> Pipeline:
    stages = list(pipeline.stages)
    stages[s] = dataclasses.replace(stages[s], ranks=ranks, tensor=len(ranks))
    return Pipeline(pipeline.microbatches + count, tuple(stages))


def _typical(task: Task, pipelines: Sequence[Pipeline], members: Sequence[int]) -> tuple[int, ...]:
    """Return one pipeline for each sequence of GPUs; all where ranks serve several pipelines."""
    ranks = [rank for p in members for stage in pipelines[p].stages for rank in stage.ranks]
    if len(set(ranks)) < len(ranks):
        return tuple(members)
    found: dict[object, int] = {}
    for p in members:
        gpus = tuple(task.cluster.node_of(stage.ranks[0]).gpu for stage in pipelines[p].stages)
        found.setdefault((pipelines[p].microbatches, gpus), p)
    return tuple(found.values())


def _other_sizes(candidate: Candidate) -> Iterator[_Change]:
    """Yield the layout with micro-batches of twice and of half the size, shared in the same proportions."""
    size, settings = candidate.layout.micro_batch_size, candidate.task.settings
    pipelines = candidate.layout.pipelines
    for other in (2 * size, size // 2):
        if settings.micro_batch_size is None and other and settings.global_batch_size % other == 0:
            total = settings.global_batch_size // other
            if total >= len(pipelines):
                counts = apportion(total, [Fraction(pipeline.microbatches) for pipeline in pipelines])
                changed = {p: functools.partial(_add_microbatches, count=count - pipeline.microbatches)
                           for p, (pipeline, count) in enumerate(zip(pipelines, counts, strict=True))}
                yield _Change(pipelines, other, changed, range(len(pipelines)))


def _add_microbatches(pipeline: Pipeline, count: int) -> Pipeline:
    return dataclasses.replace(pipeline, microbatches=pipeline.microbatches + count)


def _move_layer(pipeline: Pipeline, a: int, b: int) -> Pipeline:
    stages, first = [], 0
    for s, stage in enumerate(pipeline.stages):
        count = stage.num_layers + (s == b) - (s == a)
        stages.append(dataclasses.replace(stage, first_layer=first, num_layers=count))
        first += count
    return dataclasses.replace(pipeline, stages=tuple(stages))
