"""The forward-only action lists of a validation."""

from __future__ import annotations

from collections.abc import Iterable

from holmes_hpc.values import Action, ActionKind, Plan


def forward_actions(plan: Plan, rank: int, microbatches: Iterable[tuple[int, int]]) -> list[Action]:
    """Return the forwards, sends and receives of `rank` for some (pipeline, micro-batch) pairs.

    All ranks walk the micro-batches in one order and sends never block, so no rank waits in a circle.
    """
    actions = []
    for pipeline, microbatch in sorted(microbatches, key=lambda pair: (pair[1], pair[0])):
        stages = plan.pipelines[pipeline].stages
        for number, stage in enumerate(stages):
            if rank not in stage.ranks:
                continue
            if number > 0 and rank not in stages[number - 1].ranks:
                actions.append(Action(ActionKind.RECEIVE_ACTIVATION, pipeline, number, microbatch,
                                      peer=stages[number - 1].ranks[0]))
            actions.append(Action(ActionKind.FORWARD, pipeline, number, microbatch))
            if number + 1 < len(stages) and rank not in stages[number + 1].ranks:
                actions.append(Action(ActionKind.SEND_ACTIVATION, pipeline, number, microbatch,
                                      peer=stages[number + 1].ranks[0]))
    return actions
