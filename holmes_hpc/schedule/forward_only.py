"""The forward-only action lists of a validation."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from holmes_hpc.schedule.building import transfers
from holmes_hpc.values import Action, ActionKind, Plan


def forward_actions(plan: Plan, rank: int, microbatches: Iterable[tuple[int, int]]) -> list[Action]:
    """Return the forwards, sends and receives of `rank` for some (pipeline, micro-batch) pairs.

    All ranks walk the micro-batches in one order and sends never block, so no rank waits in a circle.
    """
    actions = []
    for pipeline, microbatch in sorted(microbatches, key=lambda pair: (pair[1], pair[0])):
        stages = plan.pipelines[pipeline].stages
        hops = [transfers(here.ranks, there.ranks) for here, there in itertools.pairwise(stages)]
        for number, stage in enumerate(stages):
            if rank not in stage.ranks:
                continue
            actions += [Action(ActionKind.RECEIVE_ACTIVATION, pipeline, number, microbatch, peer=sender)
                        for sender, receiver in (hops[number - 1] if number > 0 else ()) if receiver == rank]
            actions.append(Action(ActionKind.FORWARD, pipeline, number, microbatch))
            actions += [Action(ActionKind.SEND_ACTIVATION, pipeline, number, microbatch, peer=receiver)
                        for sender, receiver in (hops[number] if number < len(hops) else ()) if sender == rank]
    return actions
