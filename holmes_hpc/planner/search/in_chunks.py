"""Chunks for finished layouts: pipelines that go round their ranks, where the search is free to let them.

Interleaving makes the filling of a pipeline v times shorter for v times the messages (Narayanan et al. 2021). It is
worth simulating where pipelines are alike in depth, every rank is in one of them, and compute alone leaves room for a
gain; over slow links it never is.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.search.budget import Allowance, SearchBudget, layout_units
from holmes_hpc.planner.search.candidate import (
    WORTHWHILE,
    Candidate,
    evaluate_layout,
    exceeds_memory,
    make_layout,
    with_schedules,
)
from holmes_hpc.planner.simulation.bounds import least_seconds
from holmes_hpc.planner.simulation.representatives import representatives
from holmes_hpc.planner.strategies.layer_split import uniform
from holmes_hpc.planner.task import Task
from holmes_hpc.schedule.interleaved import goes_round, interleaved_orders
from holmes_hpc.schedule.list_scheduling import FORWARD
from holmes_hpc.values import ActionKind, Pipeline
from holmes_hpc.values.schedule_kinds import compared_schedules

CHUNKS = (2, 4)
_NEAR = 1.05
"""Over the best layout, up to which a layout in chunks is given more warm-up and turns."""


def in_chunks(candidates: Sequence[Candidate], budget: SearchBudget) -> list[Candidate]:
    """Return the best layouts in chunks, those that are faster than all that came before, until the work is spent."""
    allowance = budget.allowance_for_chunks()
    fitting = [each for each in candidates if each.fits]
    best = min((each.seconds for each in fitting), default=0.0)
    found: list[Candidate] = []
    starts = sorted(_regular(fitting), key=lambda start: _hoped_for(start, max(CHUNKS)))
    for start, chunks in itertools.product(starts, CHUNKS):
        if _hoped_for(start, chunks) >= WORTHWHILE * best or allowance.units <= 0:
            continue
        other = _chunked(start, chunks, best, allowance)
        if other is not None and other.fits:
            found.append(other)
            best = min(best, other.seconds)
    found.sort(key=lambda each: each.seconds)
    if found and found[0].seconds < _NEAR * best and allowance.units >= layout_units(found[0].task, found[0].layout):
        found += with_schedules(found[0], allowance)
    fastest = min(each.seconds for each in fitting) if fitting else 0.0
    return [each for each in found if each.seconds < WORTHWHILE * fastest]


def _regular(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the fastest of each regular division of the ranks, whatever its layers and its schedule."""
    found: dict[object, Candidate] = {}
    for each in sorted(candidates, key=lambda each: each.seconds):
        pipelines = each.layout.pipelines
        key = tuple(tuple(stage.ranks for stage in pipeline.stages) for pipeline in pipelines)
        deep = {len(pipeline.stages) for pipeline in pipelines}
        if len(deep) == 1 and deep != {1} and goes_round(pipelines, 1):
            found.setdefault((key, each.layout.micro_batch_size), each)
    return list(found.values())


def _hoped_for(start: Candidate, chunks: int) -> float:
    """Return the step if chunks shorten the filling of 1F1B and cost nothing."""
    task, layout = start.task, start.layout
    compute = representatives(task, layout).own_prices.compute
    stages: dict[int, list[float]] = {}
    for (kind, p, s), seconds in compute.items():
        if kind is ActionKind.FORWARD:
            stages.setdefault(p, []).append(seconds + compute[ActionKind.BACKWARD, p, s])
    filling = max(sum(each) - max(each) for each in stages.values())
    return start.seconds - (1 - 1 / chunks) * filling


def _chunked(start: Candidate, chunks: int, best: float, allowance: Allowance) -> Candidate | None:
    """Return the layout in chunks; None where it cannot be faster than `best`, or does not fit."""
    pipelines = [go_round(pipeline, chunks) for pipeline in start.layout.pipelines]
    task, size = _interleaved(start.task), start.layout.micro_batch_size
    rounds = tuple(pipeline for pipeline in pipelines if pipeline is not None)
    if len(rounds) < len(pipelines) or least_seconds(task, rounds, size) >= WORTHWHILE * best:
        return None
    layers = tuple(stage.num_layers for stage in rounds[0].stages)
    facts = dataclasses.replace(start.facts, micro_batch_size=size, layers=layers, tuned=False)
    try:
        layout = make_layout(task, start.strategy, rounds, size, start.rules)
        if exceeds_memory(task, layout, _peaks(rounds, chunks)):
            return None
        return evaluate_layout(task, facts, rounds, size, start.rules, chunks, allowance=allowance)
    except PlanRefusedError:
        return None


def _peaks(pipelines: Sequence[Pipeline], chunks: int) -> dict[tuple[int, int, int], int]:
    """Return the micro-batches in flight after the warm-up and one forward more, by (rank, pipeline, stage)."""
    peaks = {}
    for rank, order in interleaved_orders(pipelines, chunks, {}).items():
        before = itertools.takewhile(lambda each: each[0] == FORWARD, order)
        for (p, s), count in Counter((p, s) for _, p, s, _ in before).items():
            peaks[rank, p, s] = count
    return peaks


def _interleaved(task: Task) -> Task:
    schedule = compared_schedules(in_chunks=True)[0]
    return dataclasses.replace(task, settings=task.settings.replace(schedule=schedule))


def go_round(pipeline: Pipeline, chunks: int) -> Pipeline | None:
    """Return the pipeline whose ranks hold as many layers as before, in chunks; None where one has too few."""
    if any(stage.num_layers < chunks for stage in pipeline.stages):
        return None
    cuts = [uniform(stage.num_layers, chunks) for stage in pipeline.stages]
    stages, first = [], 0
    for chunk in range(chunks):
        for stage, cut in zip(pipeline.stages, cuts, strict=True):
            stages.append(dataclasses.replace(stage, first_layer=first, num_layers=cut[chunk]))
            first += cut[chunk]
    return dataclasses.replace(pipeline, stages=tuple(stages))
