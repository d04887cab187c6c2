"""Pipelines of a node that cross Ethernet for the first time one after another.

Pipelines that share a NIC reach it at the same time at the start of a step, and each of their messages takes as long
as all of them together. One after another, the first arrives early, and ever after the pipelines are out of step by
one crossing each, so that their messages no longer meet. The receivers see to it: a message travels when its
receiver is ready for it, receivers have nothing else to do yet, and those of one node pass a token on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.values import Action, ActionKind, Group, Pipeline
from holmes_hpc.values.schedule import INPUT_BACKWARDS, RECEIVES, SENDS

_TOGETHER = (ActionKind.FORWARD, *INPUT_BACKWARDS)


def take_turns(pipelines: Sequence[Pipeline], groups: Sequence[Group],
               actions: Mapping[int, tuple[Action, ...]]) -> dict[int, tuple[Action, ...]]:
    """Return the action lists with the token of every `turn` group: take it, receive, pass it on.

    A rank takes its turn at the first activation that it receives over Ethernet, unless it has a backward to do
    before: then it would make others wait. The first of a group has the token from the start. Turns go in the order
    of the group, or, where ranks serve several stages, in one in which the receives can happen.
    """
    slow = {frozenset(group.ranks) for group in groups if group.kind == "pipeline" and group.network == "ethernet"}
    changed = {rank: list(each) for rank, each in actions.items()}
    served = Counter(rank for pipeline in pipelines for stage in pipeline.stages for rank in stage.ranks)
    shared = max(served.values()) > 1
    order = _possible_order(pipelines, actions) if shared else {}
    for group in groups:
        if group.kind == "turn":
            first = {rank: _first_crossing(actions[rank], pipelines, slow) for rank in group.ranks if rank in actions}
            members = [(rank, at) for rank, at in first.items() if at is not None]
            if shared:
                members.sort(key=lambda member: order[member])
            for number, (rank, at) in reversed(list(enumerate(members))):
                place = actions[rank][at]
                where = (place.pipeline, place.stage, place.microbatch)
                if number + 1 < len(members):
                    changed[rank].insert(at + 1, Action(ActionKind.PASS_TURN, *where, members[number + 1][0]))
                if number > 0:
                    changed[rank].insert(at, Action(ActionKind.TAKE_TURN, *where, members[number - 1][0]))
    return {rank: tuple(each) for rank, each in changed.items()}


def turn_ranks(cluster: ClusterDescription, pipelines: Sequence[Pipeline],
               groups: Sequence[Group]) -> list[tuple[int, ...]]:
    """Return the ranks that take turns: those of a node that receive activations of one stage over Ethernet.

    They are in the order of their pipelines. Of tensor-parallel ranks, those with the same place in their stage take
    turns with one another.
    """
    slow = {frozenset(group.ranks) for group in groups if group.kind == "pipeline" and group.network == "ethernet"}
    found: dict[tuple[str, int, int], dict[int, None]] = {}
    taken: set[int] = set()
    for pipeline in pipelines:
        for s, stage in enumerate(pipeline.stages[1:], start=1):
            if frozenset((*pipeline.stages[s - 1].ranks, *stage.ranks)) in slow and taken.isdisjoint(stage.ranks):
                for place, rank in enumerate(stage.ranks):
                    found.setdefault((cluster.node_of(rank).slot, s, place), {})[rank] = None
        taken.update(rank for stage in pipeline.stages for rank in stage.ranks)
    return [tuple(ranks) for ranks in found.values() if len(ranks) > 1]


def _possible_order(pipelines: Sequence[Pipeline], actions: Mapping[int, Sequence[Action]]
                    ) -> dict[tuple[int, int], int]:
    """Return for every receive of an activation, by rank and place in its list, its number in an order that works.

    All ranks go through their lists in rounds, one action each, as far as their messages have come and
    their tensor-parallel ranks, with whom they exchange sums, are as far.
    """
    places = {(rank, action): at for rank, own in actions.items() for at, action in enumerate(own)
              if action.kind in _TOGETHER}
    position = dict.fromkeys(actions, 0)
    sent: set[tuple[ActionKind, int, int, int, int, int]] = set()
    order: dict[tuple[int, int], int] = {}
    moving = True
    while moving:
        moving = False
        for rank, own in actions.items():
            at = position[rank]
            if at == len(own):
                continue
            action = own[at]
            if action.kind in RECEIVES:
                if (action.kind, action.pipeline, action.stage, action.microbatch, action.peer, rank) not in sent:
                    continue
                order[rank, at] = len(order)
            elif action.kind in _TOGETHER:
                others = pipelines[action.pipeline].stages[action.stage].ranks
                if any(position[other] < places[other, action] for other in others):
                    continue
            elif action.kind in SENDS:
                receive, step = SENDS[action.kind]
                sent.add((receive, action.pipeline, action.stage + step, action.microbatch, rank, action.peer))
            position[rank] += 1
            moving = True
    return order


def _first_crossing(actions: Sequence[Action], pipelines: Sequence[Pipeline],
                    slow: set[frozenset[int]]) -> int | None:
    for at, action in enumerate(actions):
        if action.kind in INPUT_BACKWARDS:
            return None
        if action.kind is ActionKind.RECEIVE_ACTIVATION:
            stages = pipelines[action.pipeline].stages
            if frozenset((*stages[action.stage - 1].ranks, *stages[action.stage].ranks)) in slow:
                return at
    return None
