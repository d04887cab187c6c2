"""From a layout and its schedule to what is expected of it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from holmes_hpc.planner.cost.rank_memory import RankMemory, memory_per_rank
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.layout.sharing import updated_parameters
from holmes_hpc.planner.simulation.events import Prices, Timeline, simulate
from holmes_hpc.planner.simulation.long_steps import Shortened, shortened
from holmes_hpc.planner.simulation.prices import compute_cost
from holmes_hpc.planner.simulation.representatives import simulated
from holmes_hpc.planner.task import Task
from holmes_hpc.schedule.building import make_schedule
from holmes_hpc.schedule.in_flight import Peaks, peak_in_flight
from holmes_hpc.values import Action, ActionKind, Group, Pipeline, Prediction, Reduction, Schedule, ScheduleChoice

_STEP_COLLECTIVES = 3
"""Small collectives over the world in each step: loss, gradient norm, the barrier before the step."""


def predict(task: Task, layout: Layout, choice: ScheduleChoice) -> Prediction:
    """Simulate one step of a layout and return the figures of a plan."""
    found: Prediction = task.layouts.predictions.of(layout, lambda: _predict(task, layout, choice), choice)
    return found


def _predict(task: Task, layout: Layout, choice: ScheduleChoice) -> Prediction:
    architecture, world = task.architecture, task.cluster.world_size
    timeline, peaks = _observe_few(task, layout, choice)
    memory = simulated(task, layout).memory_gib(peaks)
    seconds = timeline.step_seconds + step_collectives(task, layout.groups[0])
    samples = task.settings.global_batch_size
    flops = architecture.model_flops_per_sample() * samples
    busy = sum(timeline.busy_seconds.values()) / world
    band = task.error_band
    return Prediction(
        machine=task.machine.label,
        step_seconds=seconds,
        tokens_per_second=samples * architecture.sequence_length / seconds,
        tflops_per_gpu=flops / (seconds * world * 1e12),
        memory_gib_per_rank=memory,
        idle_fraction=max(0.0, 1.0 - busy / seconds),
        error_percent=band.percent,
        error_basis=band.basis,
    )


def observe(task: Task, layout: Layout, choice: ScheduleChoice) -> tuple[Timeline, Peaks]:
    """Simulate a step; return what was seen, and the micro-batches in flight."""
    timeline, peaks = _observe_few(task, layout, choice)
    return timeline, simulated(task, layout).replicas.spread_peaks(peaks)


def _observe_few(task: Task, layout: Layout, choice: ScheduleChoice) -> tuple[Timeline, Peaks]:
    """Return what `observe` does, the micro-batches in flight of what was simulated alone.

    Long steps repeat themselves, so two shorter ones tell how long each further micro-batch takes.
    """
    short = shortened(simulated(task, layout).folded(turns=choice.turns).pipelines, choice)
    if short is None:
        return _simulate(task, layout, choice)
    first, _ = _simulate(task, layout, choice, short.first)
    second, peaks = _simulate(task, layout, choice, short.second)
    periods = _periods(layout, short)
    busy = {rank: seconds + periods.get(rank, short.periods) * (seconds - first.busy_seconds[rank])
            for rank, seconds in second.busy_seconds.items()}
    return Timeline(second.step_seconds + short.periods * (second.step_seconds - first.step_seconds), busy), peaks


def _periods(layout: Layout, short: Shortened) -> dict[int, float]:
    """Return by rank the periods that its computing lasts longer, where pipelines differ in that."""
    if len(short.first) == 1:
        return {}
    return {rank: short.periods_of(pipeline.microbatches)
            for pipeline in layout.pipelines for stage in pipeline.stages for rank in stage.ranks}


def memory_parts(task: Task, layout: Layout, peaks: Peaks) -> tuple[RankMemory, ...]:
    """Return the memory of every rank by parts; `peaks` are those of `observe`."""
    return memory_per_rank(compute_cost(task), task.cluster, layout.pipelines, layout.micro_batch_size, peaks,
                           updated_parameters(task, layout))


def _with_counts(pipelines: tuple[Pipeline, ...], counts: Mapping[int, int] | None) -> tuple[Pipeline, ...]:
    if counts is None:
        return pipelines
    return tuple(dataclasses.replace(pipeline, microbatches=counts[pipeline.microbatches]) for pipeline in pipelines)


def _simulate(task: Task, layout: Layout, choice: ScheduleChoice,
              counts: Mapping[int, int] | None = None) -> tuple[Timeline, Peaks]:
    """Simulate a step of all micro-batches, or of so many of each pipeline, by how many it has."""
    few = simulated(task, layout)
    folded = few.folded(turns=choice.turns)
    own = choice.for_pipelines(few.replicas.chosen).for_pipelines(folded.kept)
    schedule = make_schedule(_with_counts(folded.pipelines, counts), folded.groups, folded.reductions, own)
    schedule = with_gathers(schedule, folded.reductions, folded.prices)
    timeline = simulate(schedule, folded.reductions, folded.prices)
    busy = few.busy_seconds(folded, timeline.busy_seconds)
    return Timeline(timeline.step_seconds, busy), folded.spread_peaks(few.layout.pipelines, peak_in_flight(schedule))


def with_gathers(schedule: Schedule, reductions: Sequence[Reduction], prices: Prices) -> Schedule:
    """Return the schedule with the gathers that nothing hides, as the plan's has them."""
    if prices.overlap_gathers or not prices.gathers:
        return schedule
    return dataclasses.replace(schedule, actions={
        rank: (*actions, *(Action(ActionKind.GATHER, reduction=index) for index in sorted(prices.gathers, reverse=True)
                           if rank in reductions[index].owners))
        for rank, actions in schedule.actions.items()})


def step_collectives(task: Task, world: Group) -> float:
    """Return the time of the step's small collectives, which take latencies only: log2 of the ranks, both ways."""
    latency = task.prices.latencies.of((world.network, world.ranks), lambda: _longest_latency_us(task, world) * 1e-6)
    return _STEP_COLLECTIVES * 2 * (len(world.ranks) - 1).bit_length() * latency


def _longest_latency_us(task: Task, world: Group) -> float:
    """Return the longest latency between two fabrics of a group, or between its NICs where it has one fabric only."""
    nodes = list({node.slot: node for node in map(task.cluster.node_of, world.ranks)}.values())
    fabrics = {node.fabric: node for node in nodes}
    pairs = list(itertools.combinations(fabrics.values(), 2))
    if not pairs:
        pairs = [(nodes[0], node) for node in {node.nic: node for node in nodes}.values()]
    return max(task.machine.link(world.network, a, b).latency_us for a, b in pairs)
