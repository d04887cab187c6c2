"""When a rank makes ready for messages: ahead of their turn, and in the order in which they are sent.

NCCL has no tags: what two ranks pass in one direction has to be received in the order in which it is sent, and the
receiver's own order may be another one, where it serves several stages or pipelines.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from holmes_hpc.values import Action, ActionKind
from holmes_hpc.values.schedule import RECEIVES, SENDS

Place = tuple[int, int, int]
"""Pipeline, stage, micro-batch."""


def place_of(action: Action) -> Place:
    """Return what a compute action or a transfer works on."""
    return action.pipeline, action.stage, action.microbatch


def arrivals(rank: int, actions: Iterable[Action], actions_of: Callable[[int], Iterable[Action]]
             ) -> dict[int, list[Action]]:
    """Return, by neighbour, this rank's receives in the order in which the neighbour sends.

    `actions` are the rank's own, `actions_of` gives those of another one.
    """
    peers = sorted({action.peer for action in actions if action.kind in RECEIVES})
    return {peer: [_receive_of(sent, peer) for sent in actions_of(peer)
                   if sent.kind in SENDS and sent.peer == rank] for peer in peers}


def _receive_of(sent: Action, sender: int) -> Action:
    kind, further = SENDS[sent.kind]
    return dataclasses.replace(sent, kind=kind, stage=sent.stage + further, peer=sender)


class ReceiveQueue:
    """Posts the receives of one step, `ahead` of them before their turn for each neighbour.

    Where a rank takes its turn before the first message of a neighbour, nothing of that neighbour is posted earlier:
    the message would travel.
    """

    def __init__(self, arriving: Mapping[int, Sequence[Action]], turns: Iterable[Action],
                 post: Callable[[Action], None], ahead: int) -> None:
        self._post, self._ahead = post, ahead
        self._posted: set[Action] = set()
        self._waiting = {peer: deque(receives) for peer, receives in arriving.items() if receives}
        places = {place_of(turn) for turn in turns}
        self._closed = {peer for peer, waiting in self._waiting.items()
                        if waiting[0].kind is ActionKind.RECEIVE_ACTIVATION and place_of(waiting[0]) in places}
        self._at_turn = {place_of(self._waiting[peer][0]): peer for peer in self._closed}
        for peer in self._waiting.keys() - self._closed:
            self._next(peer, self._ahead)

    def before(self, action: Action) -> None:
        """Post what `action` receives, and all that is sent before it.

        Raises RuntimeError for a message that its neighbour does not send.
        """
        while action.kind in RECEIVES and action not in self._posted:
            if not self._waiting.get(action.peer):
                raise RuntimeError(f"{action}: rank {action.peer} sends no such message in this step")
            self._next(action.peer, 1)

    def after(self, action: Action) -> None:
        """Post one more receive when `action` has just used one, or given a rank its turn."""
        if action.kind is ActionKind.TAKE_TURN:
            if place_of(action) in self._at_turn:
                self._next(self._at_turn[place_of(action)], 1)
        elif action.kind in RECEIVES:
            self._next(action.peer, self._ahead if action.peer in self._closed else 1)
            self._closed.discard(action.peer)

    def _next(self, peer: int, count: int) -> None:
        for _ in range(min(count, len(self._waiting[peer]))):
            receive = self._waiting[peer].popleft()
            self._posted.add(receive)
            self._post(receive)
