"""Whether some nodes alone would be faster than all: kinds of nodes left out, each division priced once.

Where a slow GPU or a slow link costs more than it gives, no plan on all nodes comes near one on some of them. The
user asked for all, so that this is told, not done, unless `parallel.leave_nodes_out` allows it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.layout.node_kinds import Kind, alike_kinds, node_kinds, on_nodes
from holmes_hpc.planner.search.budget import SearchBudget
from holmes_hpc.planner.search.candidate import Candidate
from holmes_hpc.planner.search.in_parts import on_whole, part_of
from holmes_hpc.planner.search.shortlist import evaluate_best
from holmes_hpc.planner.strategies.fleets.space import space_with_degrees
from holmes_hpc.planner.strategies.unlike import micro_batch_sizes_of, proposals
from holmes_hpc.planner.task import Task
from holmes_hpc.words import shorten

_WORTH_TELLING = 0.95
"""Of the step on all nodes, below which a step on some of them is told."""
_MOST_KINDS = 4
"""Kinds up to which every set of them is looked at; of more, single ones and all but one."""
_MOST_PLANNED = 4
_HOPED_FOR = 1.3
"""Estimates of data parallelism alone are so much too long where sums hide behind the backward."""
_MOST_SIMULATED = 4


def faster_on_fewer(task: Task, step_seconds: float) -> Candidate | None:
    """Return the fastest layout found on some kinds of nodes, if it is clearly faster than `step_seconds`; else None.

    Nothing where one machine emulates all nodes: there fewer are faster for want of cores, whatever the cluster.
    """
    if task.machine.has_real_emulation or not task.settings.compares_all:
        return None
    part = part_of(task)
    found = on_fewer(part.task if part else task, _WORTH_TELLING * step_seconds)
    if part:
        found = [each for each in on_whole(part, found) if each.seconds < _WORTH_TELLING * step_seconds]
    return min(found, key=lambda each: each.seconds, default=None)


def on_fewer(task: Task, step_seconds: float) -> list[Candidate]:
    """Return layouts on some of the kinds of nodes that are faster than `step_seconds`.

    Sets of kinds that are too slow even if all their GPUs computed all the time are ruled out unplanned; of the others
    some are planned, single kinds first, and their best estimates simulated.
    """
    hopeful = [(bound, some) for some in _some_kinds(task) if (bound := _bound(some)) < step_seconds]
    found: list[Candidate] = []
    for bound, some in hopeful[:_MOST_PLANNED]:
        if bound < step_seconds:
            found += [each for each in _evaluated(some, step_seconds) if each.seconds < step_seconds]
            step_seconds = min([step_seconds, *(each.seconds for each in found)])
    return found


def left_out(task: Task, other: Task) -> str:
    """Return the nodes of a task that another one does without, in words, by label: `t4 (t4/0, t4/1)`."""
    kept = {node.slot for node in other.cluster.nodes}
    labels: dict[str, list[str]] = {}
    for node in task.cluster.nodes:
        if node.slot not in kept:
            labels.setdefault(node.label, []).append(node.slot)
    return " and ".join(f"{label} ({shorten(slots)})" for label, slots in labels.items())


def _some_kinds(task: Task) -> Iterator[Task]:
    """Yield the task on sets of kinds, small ones first: of sets that differ in like kinds alone one."""
    kinds, like = node_kinds(task), alike_kinds(task)
    settings = task.settings.replace(leave_nodes_out=False)
    everything = range(len(kinds))
    if len(kinds) <= _MOST_KINDS:
        sets = list(itertools.chain.from_iterable(itertools.combinations(everything, size) for size in everything[1:]))
    else:
        sorts = [[k for k in everything if like[k] == model] for model in dict.fromkeys(like)]
        some = [part for sort in sorts for part in (sort[:1], sort[:len(sort) // 2], sort, sort[-1:])]
        sets = [tuple(part) for part in some]
        sets += [tuple(k for k in everything if k not in part) for part in some]
        sets = sorted((each for each in dict.fromkeys(sets) if 0 < len(each) < len(kinds)), key=len)
    unlike = {tuple(sorted(like[k] for k in chosen)): chosen for chosen in reversed(sets)}
    for chosen in sets:
        if unlike[tuple(sorted(like[k] for k in chosen))] == chosen:
            yield dataclasses.replace(on_nodes(task, _slots(tuple(kinds[k] for k in chosen))), settings=settings)


def _slots(kinds: tuple[Kind, ...]) -> list[str]:
    return [node.slot for kind in kinds for node in kind.nodes]


def _bound(task: Task) -> float:
    try:
        space = space_with_degrees(task)
    except PlanRefusedError:
        return float("inf")
    batch = task.settings.global_batch_size
    return min((space.work_bound(size, batch // size) for size in micro_batch_sizes_of(task) if batch % size == 0),
               default=float("inf"))


def _evaluated(task: Task, step_seconds: float) -> list[Candidate]:
    try:
        hopeful = [each for each in proposals(task)
                   if each.fits and each.estimate_seconds < _HOPED_FOR * step_seconds]
    except PlanRefusedError:
        return []
    allowance = SearchBudget(None, task.cluster.world_size).allowance()
    return [each for each in evaluate_best(task, hopeful, allowance, _MOST_SIMULATED)
            if each.fits and not each.missing]
