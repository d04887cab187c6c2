"""From a plan to its schedule: the order of the work, with transfers, reductions and the optimizer around it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping, Sequence

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.schedule.alike import alike
from holmes_hpc.schedule.kinds import ORDERS, Orders
from holmes_hpc.schedule.list_scheduling import FORWARD, WEIGHT, Pass
from holmes_hpc.schedule.policies import Place, row_of
from holmes_hpc.schedule.turns import take_turns
from holmes_hpc.values import Action, ActionKind, Group, Pipeline, Plan, Reduction, Schedule, ScheduleChoice
from holmes_hpc.values.schedule_kinds import SCHEDULE_KINDS


def build_schedule(plan: Plan, step: int = 0) -> Schedule:
    """Return the schedule of a plan; the same plan always gives the same action lists.

    Steps repeat in a cycle (`Plan.cycle`), counted from 1; in the last of a cycle, and in step 0, all levels of the
    reductions are done. Raises PlanRefusedError for a schedule that this version cannot build.
    """
    return make_schedule(plan.pipelines, plan.groups, plan.reductions, plan.schedule,
                         gathers=True, step=step)


def plan_digest(plan: Plan) -> str:
    """Return the digest that a plan names (`ScheduleChoice.digest`), made anew: see `schedule_digest`."""
    return schedule_digest(plan.pipelines, plan.groups, plan.reductions, plan.schedule)


def schedule_digest(pipelines: Sequence[Pipeline], groups: Sequence[Group], reductions: Sequence[Reduction],
                    choice: ScheduleChoice) -> str:
    """Return 16 hexadecimal digits that change when any action of a layout's schedule or its order changes.

    Of pipelines that do the same, and of the ranks of a tensor-parallel group, one is looked at: who stands for whom
    follows from the layout.
    """
    slow = slow_hops(pipelines, groups)

    def row(p: int) -> tuple[object, ...]:
        return (tuple(s for s in range(len(pipelines[p].stages)) if (p, s) in slow),
                *(tuple(row_of(rows, p)) for rows in (choice.hop_warmups, choice.stage_times, choice.hop_times)))

    everyone = list(range(len(pipelines)))
    like, kept = (everyone, everyone) if choice.turns else alike(pipelines, lambda rank: None, row)
    few = [pipelines[p] for p in kept]
    ranks = None if choice.turns else {stage.ranks[0] for pipeline in few for stage in pipeline.stages}
    schedule = make_schedule(few, groups, reductions, choice.for_pipelines(kept), gathers=True, ranks=ranks)
    sums = [(reduction.due(0), reduction.divides) for reduction in reductions]
    return hashlib.sha256(f"{schedule.digest()} {like} {sums}".encode()).hexdigest()[:16]


def make_schedule(pipelines: Sequence[Pipeline], groups: Sequence[Group], reductions: Sequence[Reduction],
                  choice: ScheduleChoice, *, gathers: bool = False, step: int = 0,
                  ranks: Collection[int] | None = None) -> Schedule:
    """Return the schedule of a layout: see `build_schedule`, which takes the parts from a plan.

    With `gathers`, every rank gathers what it shares with others after its optimizer's step. With `ranks` the schedule
    has the actions of these alone, which takes no turns.
    """
    actions = lower(pipelines, reductions, _orders(pipelines, groups, choice),
                    split=choice.kind.splits, gathers=gathers, step=step, ranks=ranks)
    return Schedule(choice.name, take_turns(pipelines, groups, actions) if choice.turns else actions)


def _orders(pipelines: Sequence[Pipeline], groups: Sequence[Group],
            choice: ScheduleChoice) -> Orders:
    kind = choice.kind
    if choice.chunks != 1 and not kind.in_chunks:
        able = " or ".join(each.name for each in SCHEDULE_KINDS.values() if each.in_chunks)
        raise PlanRefusedError(f"parallel.chunks={choice.chunks} with parallel.schedule={choice.name}: only the "
                               f"schedule {able} has chunks. Set parallel.chunks=1.")
    return ORDERS[kind](pipelines, hop_warmups(pipelines, groups, choice) if kind.warms_up else {}, choice)


def hop_warmups(pipelines: Sequence[Pipeline], groups: Sequence[Group], choice: ScheduleChoice) -> dict[Place, int]:
    """Return how many more forwards run ahead upstream of which hop."""
    if choice.hop_warmups:
        return {(p, s): extra for p in range(len(pipelines))
                for s, extra in enumerate(row_of(choice.hop_warmups, p)) if extra}
    return dict.fromkeys(slow_hops(pipelines, groups), choice.warmup_extra) if choice.warmup_extra else {}


def slow_hops(pipelines: Sequence[Pipeline], groups: Sequence[Group]) -> set[tuple[int, int]]:
    """Return the (pipeline, stage) pairs whose hop to the next stage crosses Ethernet."""
    slow = {group.ranks for group in groups if group.kind == "pipeline" and group.network == "ethernet"}
    return {
        (p, s) for p, pipeline in enumerate(pipelines) for s in range(len(pipeline.stages) - 1)
        if edge_ranks(pipeline, s) in slow
    }


def edge_ranks(pipeline: Pipeline, stage: int) -> tuple[int, ...]:
    """Return the ranks on both sides of the edge after `stage`, sorted and each once."""
    return tuple(sorted({*pipeline.stages[stage].ranks, *pipeline.stages[stage + 1].ranks}))


def transfers(senders: Sequence[int], receivers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return who sends to whom between two stages: every receiver once, senders spread evenly.

    Stages of equal tensor-parallel degree pair their ranks, since with sequence parallelism rank j of both holds the
    j-th shard of the sequence. Between unlike degrees every rank holds the whole activation, so a receiver that is
    in both stages already has it. A pair of one rank with itself needs no transfer and is left out.
    """
    if len(senders) == len(receivers):
        pairs = list(zip(senders, receivers, strict=True))
    else:
        pairs = [(receiver if receiver in senders else senders[i * len(senders) // len(receivers)], receiver)
                 for i, receiver in enumerate(receivers)]
    return tuple((sender, receiver) for sender, receiver in pairs if sender != receiver)


def lower(pipelines: Sequence[Pipeline], reductions: Sequence[Reduction],
          orders: Mapping[int, Sequence[Pass]], *, split: bool = False, gathers: bool = False, step: int = 0,
          ranks: Collection[int] | None = None) -> dict[int, tuple[Action, ...]]:
    """Put transfers around the work, then every rank's reductions in the plan's order, then the optimizer.

    A receive stands right before the work that needs it and a send right after the work that made it; between
    stages on the same rank there is neither. With `split` a backward is its input part, and its weight part is work
    of its own. A reduction stands where it ends: with overlap it begins as soon as its gradients are there. It names
    the level through which it sums in this `step`; 0 is the step of a cycle in which all levels are done. With
    `gathers`, they follow the optimizer, first what the next forward uses first; a gather stands where it begins:
    with overlap it ends where its parameters are used. `ranks` are those whose actions are asked for, by default all.
    """
    ways = _ways(pipelines)
    owned: dict[int, list[int]] = {}
    for index, reduction in enumerate(reductions):
        for rank in reduction.owners:
            owned.setdefault(rank, []).append(index)
    lowered = {}
    for rank, works in orders.items():
        if ranks is not None and rank not in ranks:
            continue
        actions: list[Action] = []
        parts: dict[tuple[int, int, int], list[tuple[ActionKind, int]]] = {}
        for kind, p, s, microbatch in works:
            if (kind, p, s) not in parts:
                parts[kind, p, s] = _parts_of(kind, ways[rank].get((kind == FORWARD, p, s), _NOBODY), split)
            actions += [_action(part, p, s, microbatch, peer) for part, peer in parts[kind, p, s]]
        own = owned.get(rank, [])
        actions += [Action(ActionKind.REDUCE, reduction=index, level=reductions[index].due(step)) for index in own]
        actions.append(Action(ActionKind.OPTIMIZER))
        if gathers:
            actions += [Action(ActionKind.GATHER, reduction=index) for index in reversed(own)
                        if reductions[index].divides]
        lowered[rank] = tuple(actions)
    return lowered


_action = functools.lru_cache(maxsize=2**17)(Action)
"""Actions are values, and the schedules of a search are made of the same ones."""

Ways = dict[tuple[bool, int, int], tuple[list[int], list[int]]]
"""From whom a rank receives before a forward (True) or backward (False) of a stage, and to whom it sends after it."""


def _ways(pipelines: Sequence[Pipeline]) -> dict[int, Ways]:
    """Return the ways of every rank."""
    ways: dict[int, Ways] = {rank: {} for pipeline in pipelines for stage in pipeline.stages for rank in stage.ranks}
    for p, pipeline in enumerate(pipelines):
        for s in range(len(pipeline.stages) - 1):
            before, after = pipeline.stages[s].ranks, pipeline.stages[s + 1].ranks
            for sender, receiver in transfers(before, after):
                ways[sender].setdefault((True, p, s), ([], []))[1].append(receiver)
                ways[receiver].setdefault((True, p, s + 1), ([], []))[0].append(sender)
            for sender, receiver in transfers(after, before):
                ways[sender].setdefault((False, p, s + 1), ([], []))[1].append(receiver)
                ways[receiver].setdefault((False, p, s), ([], []))[0].append(sender)
    return ways


def _parts_of(kind: int, way: tuple[list[int], list[int]], split: bool) -> list[tuple[ActionKind, int]]:
    """Return the actions of a work, in order, each with the rank at the other end (-1: none)."""
    if kind == WEIGHT:
        return [(ActionKind.BACKWARD_WEIGHT, -1)]
    senders, receivers = way
    if kind == FORWARD:
        receive, compute, send = ActionKind.RECEIVE_ACTIVATION, ActionKind.FORWARD, ActionKind.SEND_ACTIVATION
    else:
        compute = ActionKind.BACKWARD_INPUT if split else ActionKind.BACKWARD
        receive, send = ActionKind.RECEIVE_GRADIENT, ActionKind.SEND_GRADIENT
    return [*((receive, sender) for sender in senders), (compute, -1), *((send, receiver) for receiver in receivers)]


_NOBODY: tuple[list[int], list[int]] = ([], [])
