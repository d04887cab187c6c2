"""What limits a plan: where the time of its ranks goes, which link is busiest, and where memory is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from holmes_hpc.planner.cost.network import Resource
from holmes_hpc.planner.cost.rank_memory import RankMemory, peaking_rank
from holmes_hpc.planner.cost.stages import GIB
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.simulation.predict import memory_parts, observe
from holmes_hpc.planner.simulation.traffic import resource_words
from holmes_hpc.planner.task import Task
from holmes_hpc.planner.telling.retrace import Trace, retrace
from holmes_hpc.planner.telling.slow_links import FULL, busiest_cores, limiting_link
from holmes_hpc.values import ActionKind, ScheduleChoice

_MOST_MEMORY_ROWS = 4


@dataclass(frozen=True)
class Shares:
    """Shares of a step: `compute` with the optimizer, `neighbours` waited for, `sums` and gathers waited for."""

    compute: float
    neighbours: float
    sums: float


@dataclass(frozen=True)
class MemoryRow:
    """Ranks whose memory has the same parts, and what a rank's GPU has, both in GiB."""

    ranks: tuple[int, ...]
    parts: Mapping[str, float]
    total_gib: float
    capacity_gib: float


@dataclass(frozen=True)
class Limits:
    """Where time and memory go. `links` are the shares of the step that NICs and trunks are busy, busiest first.

    `peak` is the rank whose memory is fullest, and `peak_part` the largest part of it; `memory` begins with its row.
    """

    limited_by: str
    mean: Shares
    busiest_rank: int
    busiest_share: float
    links: tuple[tuple[str, float], ...]
    peak: int
    peak_part: str
    memory: tuple[MemoryRow, ...]


def find_limits(task: Task, layout: Layout, choice: ScheduleChoice, busy: Mapping[Resource, float],
                step_seconds: float) -> Limits:
    """Return what limits a layout whose step was predicted to take `step_seconds`; `busy` are those of its links."""
    timeline, peaks = observe(task, layout, choice)
    memory = memory_parts(task, layout, peaks)
    trace = retrace(task, layout, choice, folded=True)
    sums = _waits_for_sums(trace)
    compute = sum(timeline.busy_seconds.values()) / task.cluster.world_size / step_seconds
    waited = sum(seconds * trace.stands_for[rank] for rank, seconds in sums.items())
    mean_sums = min(1 - compute, waited / sum(trace.stands_for.values()) / step_seconds)
    shares = Shares(compute, max(0.0, 1 - compute - mean_sums), mean_sums)
    busiest = max(timeline.busy_seconds, key=lambda rank: (timeline.busy_seconds[rank], -rank))
    busiest_share = timeline.busy_seconds[busiest] / step_seconds
    links = sorted(busy.items(), key=lambda item: (-item[1], item[0]))
    capacity = {node.slot: task.machine.memory_gib(node) for node in task.cluster.nodes}
    peak, part = peaking_rank(memory, task.cluster, capacity)
    cores = busiest_cores(task, timeline.busy_seconds)
    verdict = (f"the CPU cores of {cores[0]}, which the ranks share" if cores and cores[1] >= FULL * step_seconds else
               _verdict(task, layout, shares, busiest, busiest_share,
                        _full_link(task, layout, choice, links, step_seconds, compute)))
    return Limits(
        verdict,
        shares, busiest, busiest_share,
        tuple((resource_words(key, task.cluster), seconds / step_seconds) for key, seconds in links),
        peak, part, _memory_rows(task, memory, capacity, peak))


def _waits_for_sums(trace: Trace) -> dict[int, float]:
    """Return how long each traced rank waits for its reductions and gathers, and at the end for all others'."""
    spent = dict(trace.gather_waits)
    last: dict[int, float] = {}
    for rank, action, start, end in trace.records:
        if action.kind in (ActionKind.REDUCE, ActionKind.GATHER):
            spent[rank] = spent.get(rank, 0.0) + end - start
        elif action.kind is ActionKind.OPTIMIZER:
            spent[rank] = spent.get(rank, 0.0) + max(0.0, start - last[rank])
        last[rank] = end
    return spent


def _full_link(task: Task, layout: Layout, choice: ScheduleChoice, links: Sequence[tuple[Resource, float]],
               step_seconds: float, computing: float) -> Resource | None:
    """Return the link that limits the step, if one does: it is full, or ranks mostly wait for it."""
    if links and links[0][1] >= FULL * step_seconds:
        return links[0][0]
    across = limiting_link(task, layout, choice, dict(links), step_seconds, computing)
    return across.resource if across else None


def _verdict(task: Task, layout: Layout, shares: Shares, busiest: int, busiest_share: float,
             link: Resource | None) -> str:
    if shares.compute >= FULL:
        return "computing"
    if link is not None:
        return resource_words(link, task.cluster)
    if busiest_share >= FULL:
        stages = sorted({s for pipeline in layout.pipelines for s, stage in enumerate(pipeline.stages)
                         if busiest in stage.ranks})
        return f"the computing of stage {', '.join(map(str, stages))}, for which the others wait"
    if shares.sums > shares.neighbours:
        networks = {layout.groups[i].network for reduction in layout.reductions
                    for i in reduction.groups if not layout.groups[i].is_inside}
        return f"sums of gradients over {', '.join(sorted(networks))}" if networks else "the optimizer"
    return "the bubble (filling and draining the pipelines, waiting for messages)"


def _memory_rows(task: Task, memory: Sequence[RankMemory], capacity: Mapping[str, float], peak: int
                 ) -> tuple[MemoryRow, ...]:
    """Return the fullest ranks, that of `peak` first; ranks with equal parts on equal GPUs stand together."""
    names = [part.name for part in fields(RankMemory)]
    alike: dict[tuple[float, ...], list[int]] = {}
    for rank, parts in enumerate(memory):
        gib = [round(float(getattr(parts, name)) / GIB, 2) for name in names]
        alike.setdefault((*gib, capacity[task.cluster.node_of(rank).slot]), []).append(rank)
    rows = [MemoryRow(tuple(ranks), {name: float(getattr(memory[ranks[0]], name)) / GIB for name in names},
                      memory[ranks[0]].total / GIB, key[-1]) for key, ranks in alike.items()]
    rows.sort(key=lambda row: (peak not in row.ranks, -row.total_gib / row.capacity_gib, row.ranks))
    return tuple(rows[:_MOST_MEMORY_ROWS])
