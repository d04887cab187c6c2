"""Which schedules are worth simulating for a layout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.simulation.events import Prices
from holmes_hpc.planner.simulation.representatives import representatives
from holmes_hpc.planner.task import Task
from holmes_hpc.schedule.building import slow_hops
from holmes_hpc.schedule.policies import Place
from holmes_hpc.values import ActionKind, ScheduleChoice

_RESOLUTION = 240
"""Whole numbers for the shortest forward: times that differ by less than this share do not change an order."""

Item = TypeVar("Item")


def first_schedule(task: Task, chunks: int = 1) -> ScheduleChoice:
    """Return the schedule with which a layout is first simulated: the asked one, without what needs its prices."""
    settings = task.settings
    kind = settings.first_schedule(chunks)
    return ScheduleChoice(kind.name, settings.warmup_extra or 0, chunks, turns=bool(settings.turns) and kind.warms_up)


def candidate_schedules(task: Task, layout: Layout, chunks: int = 1) -> tuple[ScheduleChoice, ...]:
    """Return the schedules to compare for a layout, `first_schedule` (or as near as it can be) first.

    They differ in what the settings leave open: the schedule itself (all that are compared for these chunks), the
    extra warm-up of every slow hop, and turns where several pipelines of a node cross Ethernet. Extra warm-up is
    k = ceil(2 D / (F + B)) for every hop, where D is the time of one message behind the others of its node, and F and
    B are those of the longest stage.
    """
    settings, first = task.settings, first_schedule(task, chunks)
    if not first.kind.warms_up:
        return (first,)
    found_few = representatives(task, layout)
    few, prices, like = found_few.layout, found_few.own_prices, found_few.replicas.like
    hops = slow_hops(few.pipelines, few.groups)
    warmups = hop_warmups(task, few, prices, hops) if hops and settings.warmup_extra is None else {}
    kinds = settings.open_schedules(chunks) if settings.schedule is None else (first.kind,)
    takes_turns = bool(hops) and any(group.kind == "turn" for group in layout.groups)
    turns = [settings.turns] if settings.turns is not None else [False, True]
    found = []
    for kind in kinds:
        times = _times(few, prices, like) if kind.needs_times else ((), ())
        for extra in ({}, warmups) if any(warmups.values()) else ({},):
            for turn in turns:
                if turn and not takes_turns:
                    turn = False
                most = max(extra.values(), default=0) if settings.warmup_extra is None else settings.warmup_extra
                even = len(set(extra.values())) <= 1
                found.append(ScheduleChoice(
                    kind.name, most, chunks, turns=turn, hop_warmups=() if even else _rows(few, extra, 0, like),
                    stage_times=times[0], hop_times=times[1]))
    return tuple(dict.fromkeys(found))


def hop_warmups(task: Task, layout: Layout, prices: Prices, hops: set[Place]) -> dict[Place, int]:
    """Return the extra warm-up forwards that every slow hop deserves."""
    period = max(prices.compute[ActionKind.FORWARD, p, s] + prices.compute[ActionKind.BACKWARD, p, s]
                 for p, pipeline in enumerate(layout.pipelines) for s in range(len(pipeline.stages)))
    crowds = Counter((s, task.cluster.node_of(layout.pipelines[p].stages[s].ranks[0]).slot) for p, s in hops)
    extra = {}
    for p, s in hops:
        slot = task.cluster.node_of(layout.pipelines[p].stages[s].ranks[0]).slot
        delay, busy = _hop_seconds(layout, prices, p, s)
        extra[p, s] = min(math.ceil(2 * max(delay, crowds[s, slot] * busy) / period),
                          layout.pipelines[p].microbatches)
    return extra


def _hop_seconds(layout: Layout, prices: Prices, p: int, s: int) -> tuple[float, float]:
    """Return the delay of a message over a hop and how long it occupies the scarcest NIC."""
    before, after = layout.pipelines[p].stages[s].ranks, layout.pipelines[p].stages[s + 1].ranks
    traffic = prices.messages.get((before[0], after[0]))
    if traffic is None:
        return 0.0, 0.0
    busy = max([traffic.seconds, *traffic.busy.values()])
    return busy + traffic.latency_seconds, busy


Table = tuple[tuple[Item, ...], ...]


def _times(layout: Layout, prices: Prices, like: Sequence[int]) -> tuple[Table[tuple[int, ...]],
                                                                         Table[tuple[int, ...]]]:
    """Return the stage and hop times of a layout as whole numbers, one row for all pipelines if they are alike."""
    compute = prices.compute
    unit = min(seconds for (kind, _, _), seconds in compute.items() if kind is ActionKind.FORWARD) / _RESOLUTION

    def whole(seconds: float) -> int:
        return max(1, round(seconds / unit))

    stages, hops = {}, {}
    for p, pipeline in enumerate(layout.pipelines):
        for s in range(len(pipeline.stages)):
            weight = whole(compute[ActionKind.BACKWARD_WEIGHT, p, s])
            backward = weight + whole(compute[ActionKind.BACKWARD_INPUT, p, s])
            stages[p, s] = (whole(compute[ActionKind.FORWARD, p, s]), backward, weight)
            if s + 1 < len(pipeline.stages):
                delay, busy = _hop_seconds(layout, prices, p, s)
                hops[p, s] = (round(delay / unit), round(busy / unit))
    return _rows(layout, stages, (1, 2, 1), like), _rows(layout, hops, (0, 0), like)


def _rows(layout: Layout, values: Mapping[Place, Item], default: Item, like: Sequence[int]) -> Table[Item]:
    """Return the rows of all pipelines, of which `like` says whose row each has; one row where all are equal."""
    rows = tuple(tuple(values.get((p, s), default) for s in range(len(pipeline.stages)))
                 for p, pipeline in enumerate(layout.pipelines))
    return rows[:1] if len(set(rows)) == 1 else tuple(rows[p] for p in like)
