"""Small changes to the best layouts, kept where the simulation says that they pay."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.pipelines import apportion
from holmes_hpc.planner.priced import WORTHWHILE, Priced, one_warmer, price_layout
from holmes_hpc.planner.work import Allowance, Work
from holmes_hpc.values import Pipeline

_STARTS = 16
_MOST_ROUNDS = 12
_FEW_PIPELINES = 4


def improve(priced: Sequence[Priced], work: Work) -> list[Priced]:
    """Return improved layouts, each better than the one that it came from, until the work is spent.

    Of the best layouts each moves one layer between neighbouring stages, or one micro-batch between pipelines, as long
    as that pays. The closed forms that proposed them do not know what hides behind what; the simulation does.
    """
    allowance = work.allowance_to_improve()
    starts = sorted((each for each in priced if not each.reason and each.schedule.chunks == 1
                     and each.strategy in ("auto", "flashflex", "holmes")),
                    key=lambda each: each.seconds)
    better: list[Priced] = []
    chosen = _unlike(starts)[:_STARTS]
    for start in [each for each in chosen for each in (each, *one_warmer(each, allowance))]:
        current = start
        for _ in range(_MOST_ROUNDS):
            step = _best_change(current, allowance)
            if step is None:
                break
            current = step
        if current not in chosen:
            better.append(current)
    return better


def _unlike(priced: Sequence[Priced]) -> list[Priced]:
    seen: dict[object, Priced] = {}
    for each in priced:
        key = tuple(tuple(stage.ranks for stage in pipeline.stages) for pipeline in each.layout.pipelines)
        seen.setdefault((key, each.schedule.name, each.layout.micro_batch_size), each)
    return list(seen.values())


def _best_change(priced: Priced, allowance: Allowance) -> Priced | None:
    best = priced
    for warmer in one_warmer(priced, allowance):
        if warmer.seconds < WORTHWHILE * best.seconds:
            return warmer
    size = priced.layout.micro_batch_size
    changes = ((pipelines, size) for pipelines in _changes(priced.layout.pipelines))
    for pipelines, size in itertools.chain(changes, _other_sizes(priced)):
        if allowance.units <= 0:
            break
        try:
            other = price_layout(priced.task, priced.strategy, priced.words, pipelines,
                                 size, priced.rules, priced.schedule.chunks, priced.schedule, allowance)
        except PlanRefusedError:
            continue
        if not other.reason and other.seconds < best.seconds * (1 - 1e-6):
            best = other
    if best is priced:
        return None
    return dataclasses.replace(best, words=_reworded(priced, best))


def _reworded(before: Priced, after: Priced) -> str:
    base = before.words.partition(", tuned")[0]
    pipelines = after.layout.pipelines
    cuts = list(dict.fromkeys("+".join(str(stage.num_layers) for stage in pipeline.stages) for pipeline in pipelines))
    counts = "+".join(str(count) for count in dict.fromkeys(pipeline.microbatches for pipeline in pipelines))
    return (f"{base}, tuned to layers {', '.join(cuts)}, micro-batch {after.layout.micro_batch_size} x {counts}")


def _changes(pipelines: Sequence[Pipeline]) -> Iterator[tuple[Pipeline, ...]]:
    """Yield the layouts one change away: like pipelines change together."""
    alike: dict[object, list[int]] = {}
    for p, pipeline in enumerate(pipelines):
        key = tuple((stage.first_layer, stage.num_layers, len(stage.ranks)) for stage in pipeline.stages)
        alike.setdefault(key, []).append(p)
    for members in alike.values():
        depth = len(pipelines[members[0]].stages)
        for a in range(depth):
            for b in range(depth):
                if a != b and pipelines[members[0]].stages[a].num_layers > 1:
                    yield tuple(_move_layer(pipeline, a, b) if p in members else pipeline
                                for p, pipeline in enumerate(pipelines))
    few = len(pipelines) <= _FEW_PIPELINES
    givers = range(len(pipelines)) if few else [members[-1] for members in alike.values()]
    takers = range(len(pipelines)) if few else [members[0] for members in alike.values()]
    for a in givers:
        for b in takers:
            if a != b and pipelines[a].microbatches > 1:
                yield tuple(dataclasses.replace(pipeline, microbatches=pipeline.microbatches + (p == b) - (p == a))
                            for p, pipeline in enumerate(pipelines))


def _other_sizes(priced: Priced) -> Iterator[tuple[tuple[Pipeline, ...], int]]:
    """Yield the layout with micro-batches of twice and of half the size, shared in the same proportions."""
    size, settings = priced.layout.micro_batch_size, priced.task.settings
    pipelines = priced.layout.pipelines
    for other in (2 * size, size // 2):
        if settings.micro_batch_size is None and other and settings.global_batch_size % other == 0:
            total = settings.global_batch_size // other
            if total >= len(pipelines):
                counts = apportion(total, [Fraction(pipeline.microbatches) for pipeline in pipelines])
                yield tuple(dataclasses.replace(pipeline, microbatches=count)
                            for pipeline, count in zip(pipelines, counts, strict=True)), other


def _move_layer(pipeline: Pipeline, a: int, b: int) -> Pipeline:
    stages, first = [], 0
    for s, stage in enumerate(pipeline.stages):
        count = stage.num_layers + (s == b) - (s == a)
        stages.append(dataclasses.replace(stage, first_layer=first, num_layers=count))
        first += count
    return dataclasses.replace(pipeline, stages=tuple(stages))
