"""Whether a schedule is right: complete, executable, its sends matched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holmes_hpc.values import Action, ActionKind, Pipeline, Reduction, Schedule
from holmes_hpc.values.schedule import INPUT_BACKWARDS, RECEIVES, SENDS

_WHOLE = {ActionKind.FORWARD, ActionKind.BACKWARD}
_PARTS = {ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT}
Message = tuple[ActionKind, int, int, int, int, int]


def schedule_problems(pipelines: Sequence[Pipeline], reductions: Sequence[Reduction],
                      schedule: Schedule) -> list[str]:
    """Return what is wrong with a schedule, in words; an empty list means that it can be executed."""
    return [*_missing_work(pipelines, schedule), *_wrong_reductions(reductions, schedule),
            *_execute(pipelines, reductions, schedule)]


def _missing_work(pipelines: Sequence[Pipeline], schedule: Schedule) -> list[str]:
    """Every forward and backward stands exactly once on every rank of its stage, and nowhere else.

    A schedule with any split backward splits them all.
    """
    split = any(action.kind in _PARTS - _WHOLE for actions in schedule.actions.values() for action in actions)
    expected = {
        (rank, kind, p, s, microbatch)
        for p, pipeline in enumerate(pipelines)
        for s, stage in enumerate(pipeline.stages)
        for rank in stage.ranks
        for microbatch in range(pipeline.microbatches)
        for kind in (_PARTS if split else _WHOLE)
    }
    found = Counter(
        (rank, action.kind, action.pipeline, action.stage, action.microbatch)
        for rank, actions in schedule.actions.items() for action in actions
        if action.kind in _PARTS | _WHOLE
    )
    problems = [f"rank {key[0]} runs {_name(key)} {count} times" for key, count in found.items() if count > 1]
    problems += [f"rank {key[0]} never runs {_name(key)}" for key in sorted(expected - set(found))]
    return problems + [f"rank {key[0]} runs {_name(key)}, which is not its work"
                       for key in sorted(set(found) - expected)]


def _name(key: tuple[int, ActionKind, int, int, int]) -> str:
    return str(Action(*key[1:]))


def _wrong_reductions(reductions: Sequence[Reduction], schedule: Schedule) -> list[str]:
    """Every owner reduces what it owns once, in the plan's order; the optimizer follows, and then only gathers."""
    problems = []
    for rank, actions in schedule.actions.items():
        expected = [i for i, reduction in enumerate(reductions) if rank in reduction.owners]
        found = [action.reduction for action in actions if action.kind is ActionKind.REDUCE]
        if found != expected:
            problems.append(f"rank {rank} reduces {found}, and owns {expected}")
        last = [action for action in actions if action.kind is not ActionKind.GATHER][-1:]
        if [action.kind for action in actions].count(ActionKind.OPTIMIZER) != 1 or [str(a) for a in last] != ["O"]:
            problems.append(f"rank {rank} does not end with its one optimizer step")
    return problems


def _execute(pipelines: Sequence[Pipeline], reductions: Sequence[Reduction], schedule: Schedule) -> list[str]:
    """Run the action lists with tokens for messages: whatever cannot go on is stuck.

    The owners of a reduction meet in it, and the tensor-parallel ranks of a stage in all of its forwards and
    backwards, but for the part of a backward that makes weight gradients.
    """
    position = dict.fromkeys(schedule.actions, 0)
    messages: Counter[Message] = Counter()
    done: set[tuple[int, ActionKind, int, int, int]] = set()
    arrived: Counter[str] = Counter()
    entered: set[tuple[int, str]] = set()
    moving = True
    while moving:
        moving = False
        for rank, actions in schedule.actions.items():
            while position[rank] < len(actions):
                action = actions[position[rank]]
                if not _can_start(rank, action, pipelines, messages, done):
                    break
                if (rank, str(action)) not in entered:
                    entered.add((rank, str(action)))
                    arrived[str(action)] += 1
                    moving = True
                if arrived[str(action)] < _meeting(action, pipelines, reductions):
                    break
                _run(rank, action, messages, done)
                position[rank] += 1
                moving = True
    stuck = [f"rank {rank} waits for ever at {schedule.actions[rank][at]}"
             for rank, at in position.items() if at < len(schedule.actions[rank])]
    return stuck + [f"message {message} is never received" for message, count in messages.items() if count]


def _meeting(action: Action, pipelines: Sequence[Pipeline], reductions: Sequence[Reduction]) -> int:
    """Return how many ranks have to be at an action before one of them can end it."""
    if action.kind is ActionKind.REDUCE:
        return len(reductions[action.reduction].owners)
    if action.kind is ActionKind.FORWARD or action.kind in INPUT_BACKWARDS:
        return len(pipelines[action.pipeline].stages[action.stage].ranks)
    return 1


def _can_start(rank: int, action: Action, pipelines: Sequence[Pipeline], messages: Counter[Message],
               done: set[tuple[int, ActionKind, int, int, int]]) -> bool:
    p, s, microbatch = action.pipeline, action.stage, action.microbatch
    if action.kind in RECEIVES:
        return messages[action.kind, p, s, microbatch, action.peer, rank] > 0
    if action.kind is ActionKind.FORWARD:
        return s == 0 or _has_input(rank, action, pipelines[p].stages[s - 1].ranks, done)
    if action.kind is ActionKind.BACKWARD_WEIGHT:
        return (rank, ActionKind.BACKWARD_INPUT, p, s, microbatch) in done
    if action.kind is ActionKind.TAKE_TURN:
        return messages[ActionKind.TAKE_TURN, -1, -1, -1, action.peer, rank] > 0
    if action.kind in INPUT_BACKWARDS:
        last = s == len(pipelines[p].stages) - 1
        own = (rank, ActionKind.FORWARD, p, s, microbatch) in done
        return own and (last or _has_input(rank, action, pipelines[p].stages[s + 1].ranks, done))
    if action.kind in SENDS:
        made = (ActionKind.FORWARD,) if action.kind is ActionKind.SEND_ACTIVATION else INPUT_BACKWARDS
        return any((rank, kind, p, s, microbatch) in done for kind in made)
    return True


def _has_input(rank: int, action: Action, neighbours: Sequence[int],
               done: set[tuple[int, ActionKind, int, int, int]]) -> bool:
    """The input is here when it was received, or when the neighbouring stage ran on this rank."""
    forward = action.kind is ActionKind.FORWARD
    receive = ActionKind.RECEIVE_ACTIVATION if forward else ActionKind.RECEIVE_GRADIENT
    if (rank, receive, action.pipeline, action.stage, action.microbatch) in done:
        return True
    other = action.stage - 1 if forward else action.stage + 1
    return rank in neighbours and (rank, action.kind, action.pipeline, other, action.microbatch) in done


def _run(rank: int, action: Action, messages: Counter[Message],
         done: set[tuple[int, ActionKind, int, int, int]]) -> None:
    p, s, microbatch = action.pipeline, action.stage, action.microbatch
    if action.kind in SENDS:
        receive, further = SENDS[action.kind]
        messages[receive, p, s + further, microbatch, rank, action.peer] += 1
    elif action.kind in RECEIVES:
        messages[action.kind, p, s, microbatch, action.peer, rank] -= 1
    elif action.kind is ActionKind.PASS_TURN:
        messages[ActionKind.TAKE_TURN, -1, -1, -1, rank, action.peer] += 1
    elif action.kind is ActionKind.TAKE_TURN:
        messages[ActionKind.TAKE_TURN, -1, -1, -1, action.peer, rank] -= 1
    done.add((rank, action.kind, p, s, microbatch))
