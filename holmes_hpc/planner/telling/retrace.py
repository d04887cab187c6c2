"""One step of a plan simulated again with all its times: for the picture, and for what ranks wait for."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holmes_hpc.planner.cost.network import Resource
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.simulation.events import Prices, simulate
from holmes_hpc.planner.simulation.long_steps import actions_of
from holmes_hpc.planner.simulation.predict import with_gathers
from holmes_hpc.planner.simulation.representatives import simulated
from holmes_hpc.planner.task import Task
from holmes_hpc.schedule.building import make_schedule
from holmes_hpc.values import Action, ActionKind, ScheduleChoice

MOST_ACTIONS = 60_000
"""Longer steps are shortened before they are traced: they only repeat themselves."""
Record = tuple[int, Action, float, float]
_SENDS = {">F": ActionKind.SEND_ACTIVATION, ">B": ActionKind.SEND_GRADIENT}


@dataclass(frozen=True)
class Transfer:
    """What a link carried: `kind` as for actions, the NICs and trunks that it occupied, seconds of the step."""

    kind: ActionKind
    resources: tuple[Resource, ...]
    start: float
    end: float


@dataclass(frozen=True)
class Trace:
    """A traced step. `records` are (rank, action, start, end); an optimizer's record begins when all ranks are there.

    `gather_waits` says how long a rank's forwards waited inside for parameters. `microbatches` is how many of its own
    each pipeline ran: fewer than planned, where the step was shortened. Of replicas that do the same at the same time
    only one is in it, and a traced rank `stands_for` so many.
    """

    step_seconds: float
    records: Sequence[Record]
    transfers: Sequence[Transfer]
    gather_waits: Mapping[int, float]
    stands_for: Mapping[int, int]
    microbatches: tuple[int, ...]
    shortened: bool


def retrace(task: Task, layout: Layout, choice: ScheduleChoice, most_actions: int = MOST_ACTIONS, *,
            folded: bool = False) -> Trace:
    """Simulate a step of a layout and return everything that was seen, of at most about `most_actions` actions.

    With `folded`, one rank is traced for all that do the same on the same node, which takes less time.
    """
    few, own, prices, stands_for = _without_replicas(task, layout, choice, folded)
    counts = tuple(pipeline.microbatches for pipeline in few.pipelines)
    short = _shorten(few, own, most_actions)
    schedule = with_gathers(make_schedule(short.pipelines, short.groups, short.reductions, own), short.reductions,
                            prices)
    timeline = simulate(schedule, short.reductions, prices, trace=True)
    records = [(rank, action, max(start, end - prices.optimizer[rank]) if action.kind is ActionKind.OPTIMIZER
                else start, end) for rank, action, start, end in timeline.records]
    now = tuple(pipeline.microbatches for pipeline in short.pipelines)
    return Trace(timeline.step_seconds, records, [_transfer(prices, *each) for each in timeline.transfers],
                 _gather_waits(prices, records), stands_for, now, now != counts)


def _without_replicas(task: Task, layout: Layout, choice: ScheduleChoice, folded: bool
                      ) -> tuple[Layout, ScheduleChoice, Prices, Mapping[int, int]]:
    found = simulated(task, layout)
    few, own, same = found.layout, choice.for_pipelines(found.replicas.chosen), found.replicas.rank_like()
    if not folded:
        return few, own, found.prices, Counter(same.values())
    less = found.folded(turns=choice.turns)
    few = dataclasses.replace(few, pipelines=less.pipelines, groups=less.groups, reductions=less.reductions)
    return few, own.for_pipelines(less.kept), less.prices, Counter(less.rank_like[rank] for rank in same.values())


def _shorten(layout: Layout, choice: ScheduleChoice, most_actions: int) -> Layout:
    """Return the layout with fewer micro-batches in proportion, but enough to fill and drain every pipeline."""
    whole = actions_of(layout.pipelines)
    if whole <= most_actions:
        return layout
    pipelines = []
    for pipeline in layout.pipelines:
        depth = len(pipeline.stages)
        least = 2 * (depth + choice.warmup_extra * depth)
        count = max(least, pipeline.microbatches * most_actions // whole)
        # Interleaved schedules take micro-batches in rounds of as many as there are ranks.
        count += -count % (depth // choice.chunks)
        pipelines.append(dataclasses.replace(pipeline, microbatches=min(pipeline.microbatches, count)))
    return dataclasses.replace(layout, pipelines=tuple(pipelines))


def _gather_waits(prices: Prices, records: Sequence[Record]) -> dict[int, float]:
    """Return, by rank, by how much forwards took longer than they compute; ranks that queue for cores are left out."""
    waits: dict[int, float] = {}
    for rank, action, start, end in records:
        if action.kind is ActionKind.FORWARD and rank not in prices.core_pools:
            compute = prices.compute[action.kind, action.pipeline, action.stage]
            waits[rank] = waits.get(rank, 0.0) + max(0.0, end - start - compute)
    return waits


def _transfer(prices: Prices, what: str, start: float, end: float) -> Transfer:
    pair, _, message = what.partition(" ")
    if message:
        sender, receiver = map(int, pair.split(">"))
        return Transfer(_SENDS[f">{message[0]}"], tuple(prices.messages[sender, receiver].busy), start, end)
    kind, index = ActionKind(what[0]), int(what[1:])
    parts = (prices.gathers if kind is ActionKind.GATHER else prices.buckets).get(index)
    return Transfer(kind, tuple((parts[0].traffic if parts else prices.reductions[index]).busy), start, end)
