"""Messages are made ready for in the order in which they are sent, as NCCL needs it, and before they are waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.engine.receives import ReceiveQueue, arrivals
from holmes_hpc.schedule.building import make_schedule
from holmes_hpc.values import Action, ActionKind, Pipeline, ScheduleChoice
from holmes_hpc.values.schedule import RECEIVES
from tests.fuzzing import examples
from tests.test_planner_schedules import in_chunks, layouts

SENDS = {ActionKind.SEND_ACTIVATION: 1, ActionKind.SEND_GRADIENT: 0}


def posted_by(rank: int, actions: Iterable[Action], actions_of: Callable[[int], Iterable[Action]], ahead: int = 2
              ) -> list[Action]:
    """Run a rank's list through the queue and return its receives in the order in which they were posted."""
    posted: list[Action] = []
    actions = list(actions)
    queue = ReceiveQueue(arrivals(rank, actions, actions_of),
                         [action for action in actions if action.kind is ActionKind.TAKE_TURN], posted.append, ahead)
    for action in actions:
        queue.before(action)
        assert action.kind not in RECEIVES or action in posted
        queue.after(action)
    return posted


def message(action: Action, sends: bool) -> tuple[bool, int, int, int]:
    """What both ends of a transfer call it: forward or not, pipeline, micro-batch, the hop."""
    forward = action.kind in (ActionKind.SEND_ACTIVATION, ActionKind.RECEIVE_ACTIVATION)
    upstream = action.stage if forward == sends else action.stage - 1
    return forward, action.pipeline, action.microbatch, upstream


def check(ranks: int, actions_of: Callable[[int], Iterable[Action]]) -> None:
    for receiver in range(ranks):
        for ahead in (1, 2):
            posted = posted_by(receiver, actions_of(receiver), actions_of, ahead)
            for sender in range(ranks):
                sent = [message(action, sends=True) for action in actions_of(sender)
                        if action.kind in SENDS and action.peer == receiver]
                assert [message(action, sends=False) for action in posted if action.peer == sender] == sent


@given(layouts(), st.sampled_from(["1f1b", "gpipe", "zero_bubble", "interleaved"]), st.integers(0, 3))
@examples(60)
def test_receives_are_posted_as_they_are_sent(pipelines: tuple[Pipeline, ...], name: str, extra: int) -> None:
    ranks = 1 + max(rank for pipeline in pipelines for stage in pipeline.stages for rank in stage.ranks)
    schedule = make_schedule(pipelines, (), (), ScheduleChoice(name, warmup_extra=extra))
    check(ranks, lambda rank: schedule.actions.get(rank, ()))


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [(2, 2, 4), (2, 3, 8), (4, 2, 8)])
def test_chunks_send_both_kinds_in_one_direction(ranks: int, chunks: int, microbatches: int) -> None:
    schedule = make_schedule(in_chunks(ranks, chunks, microbatches), (), (),
                             ScheduleChoice("interleaved", chunks=chunks))
    check(ranks, lambda rank: schedule.actions[rank])
    first_to_second = [action.kind for action in schedule.actions[0] if action.kind in SENDS and action.peer == 1]
    if ranks == 2:
        assert len(set(first_to_second)) == 2, "activations and gradients share a direction"


def test_a_message_that_nobody_sends_is_named() -> None:
    action = Action(ActionKind.RECEIVE_ACTIVATION, 0, 1, 0, peer=0)
    with pytest.raises(RuntimeError, match="rank 0 sends no such message"):
        posted_by(1, [action], lambda rank: [])
