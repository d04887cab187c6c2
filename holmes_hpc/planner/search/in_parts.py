"""Very large clusters: one of many equal parts is searched, and what is best there is repeated in all and priced whole.

A part has the same share of every kind of nodes and of the batch. Its pipelines take as many micro-batches as those of
the whole; what differs is how many ranks sum gradients. So the best of a part are simulated again on the whole cluster,
with all its groups, before one is chosen.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holmes_hpc.cluster import Node
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.layout.node_kinds import node_kinds, on_nodes
from holmes_hpc.planner.layout.pipelines import build_pipelines
from holmes_hpc.planner.search.candidate import Candidate, evaluate_schedule, make_layout
from holmes_hpc.planner.search.catalogue import shapes_of
from holmes_hpc.planner.strategies.proposals import Repeated
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Pipeline, ScheduleChoice, Stage
from holmes_hpc.values.strategy_kinds import MEGATRON

_LARGE = 1024
"""GPUs above which a part is searched."""
_LEAST_RANKS = 768
"""GPUs of a part, at least: pipelines of that many can be found."""
_MOST_WHOLE = 4
_FEW_WHOLE = 2
_VERY_LARGE = 32_768
"""How many layouts are simulated on the whole cluster, and GPUs above which fewer are."""
_NEAR = 1.15
"""Over the best of a part, up to which another one is looked at on the whole cluster."""


@dataclass(frozen=True)
class Part:
    """One of `number` equal parts of a task; `whole` is all of it."""

    whole: Task
    task: Task
    number: int


def part_of(task: Task) -> Part | None:
    """Return the part of a large task that is searched; None where that is the task itself.

    That is so too where nodes or batch have no such parts, and for Megatron's own order of ranks, which has none.
    """
    world, batch = task.cluster.world_size, task.settings.global_batch_size
    if world <= _LARGE or task.machine.has_real_emulation or task.settings.strategy == MEGATRON.name:
        return None
    kinds = node_kinds(task)
    common = math.gcd(batch, task.settings.data or 0, *(len(kind.nodes) for kind in kinds))
    number = max(n for n in range(1, common + 1) if common % n == 0 and (n == 1 or world // n >= _LEAST_RANKS))
    if number == 1:
        return None
    slots = [node.slot for kind in kinds for node in kind.nodes[:len(kind.nodes) // number]]
    data = task.settings.data and task.settings.data // number
    settings = task.settings.replace(global_batch_size=batch // number, data=data)
    return Part(task, dataclasses.replace(on_nodes(task, slots), settings=settings), number)


def on_whole(part: Part, found: Sequence[Candidate]) -> list[Candidate]:
    """Return the best of a part on the whole cluster: those that may be fastest there, and at least one."""
    able = [each for each in found if each.fits and not each.missing] or [each for each in found if each.fits]
    best = sorted(able or found, key=lambda each: (not each.fits, each.seconds))
    most = _FEW_WHOLE if part.whole.cluster.world_size > _VERY_LARGE else _MOST_WHOLE
    # Sums that stay inside a node of a part may leave it on the whole: so unlike numbers of pipelines are looked at.
    unlike = {(len(each.layout.pipelines), each.facts.strategy == MEGATRON.name): each for each in reversed(best)}
    chosen = sorted(unlike.values(), key=lambda each: (not each.fits, each.seconds))[:most]
    chosen += [each for each in best[:most] if each not in chosen][:max(0, most - len(chosen))]
    repeated = [_repeated(part, each) for each in chosen if each is best[0] or each.seconds <= _NEAR * best[0].seconds]
    return [each for each in repeated if each is not None]


def _repeated(part: Part, found: Candidate) -> Candidate | None:
    """Return a candidate with its pipelines in every part; None where that is no layout."""
    places = {node.slot: (kind.nodes, j) for kind in node_kinds(part.whole) for j, node in enumerate(kind.nodes)}
    shares = {kind.node.slot: len(kind.nodes) for kind in node_kinds(part.task)}

    def counterpart(node: Node, number: int) -> Node:
        nodes, j = places[node.slot]
        return nodes[number * shares[nodes[0].slot] + j]

    nodes = found.task.cluster.nodes
    slots = [counterpart(node, number).slot for number in range(part.number) for node in nodes]
    settings = found.task.settings.replace(global_batch_size=part.whole.settings.global_batch_size,
                                           data=part.whole.settings.data)
    task = dataclasses.replace(on_nodes(part.whole, slots), settings=settings)
    facts = dataclasses.replace(found.facts, form=Repeated(found.facts.form, part.number))
    try:
        if found.strategy == MEGATRON.name:
            pipelines = _megatron(task, found)
            facts = found.facts
        else:
            pipelines = tuple(
                Pipeline(pipeline.microbatches, tuple(
                    Stage(tuple(ranks[rank] for rank in stage.ranks), stage.first_layer, stage.num_layers, stage.tensor)
                    for stage in pipeline.stages))
                for number in range(part.number)
                for ranks in [_ranks(found.task, task, functools.partial(counterpart, number=number))]
                for pipeline in found.layout.pipelines)
        layout = make_layout(task, found.strategy, pipelines, found.layout.micro_batch_size, found.rules)
        return evaluate_schedule(task, facts, layout, found.rules, _for_all(found.schedule, part.number))
    except PlanRefusedError:
        return None


def _ranks(task: Task, whole: Task, counterpart: Callable[[Node], Node]) -> dict[int, int]:
    """Return for every rank of a part's task the rank of the whole in its place."""
    found: dict[int, int] = {}
    for node in task.cluster.nodes:
        found.update(zip(task.cluster.ranks_of(node), whole.cluster.ranks_of(counterpart(node)), strict=True))
    return found


def _megatron(task: Task, found: Candidate) -> tuple[Pipeline, ...]:
    """Return Megatron's pipelines of the same degrees on all ranks, which it numbers as Slurm does."""
    stages, chunks = found.layout.pipelines[0].stages, found.schedule.chunks
    settings = task.settings.replace(pipeline=len(stages) // chunks, tensor=stages[0].tensor, data=None)
    shape = shapes_of(MEGATRON.name, dataclasses.replace(task, settings=settings), stages[0].tensor)[0]
    batch = task.settings.global_batch_size // found.layout.micro_batch_size
    return build_pipelines(shape.in_chunks(chunks).stages, [stage.num_layers for stage in stages], batch)


def _for_all(choice: ScheduleChoice, number: int) -> ScheduleChoice:
    """Return the schedule of all parts: the rows that pipelines have of their own, for every part."""
    rows = {name: getattr(choice, name) for name in ("hop_warmups", "stage_times", "hop_times")}
    return dataclasses.replace(choice, **{name: own * number for name, own in rows.items() if len(own) > 1})
