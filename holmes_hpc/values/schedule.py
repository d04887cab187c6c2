"""A schedule: for every rank the explicit list of its actions in one step.

The simulator runs it against the cost model and the engine runs it on torch, so what was predicted is what is
executed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class ActionKind(StrEnum):
    """What an action does; the value is its short name in timelines and digests."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    SEND_ACTIVATION = "SA"
    RECEIVE_ACTIVATION = "RA"
    SEND_GRADIENT = "SG"
    RECEIVE_GRADIENT = "RG"
    REDUCE = "R"
    GATHER = "G"
    OPTIMIZER = "O"
    TAKE_TURN = "TT"
    PASS_TURN = "PT"


BACKWARDS = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
COMPUTES = (ActionKind.FORWARD, *BACKWARDS)
"""What a stage's device does for a micro-batch."""
INPUT_BACKWARDS = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
"""What gives the gradient of a stage's input, which the stage before waits for."""
LAST_BACKWARDS = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)
"""What ends a micro-batch in a stage: its activations can go, its gradients are there."""
SENDS = {ActionKind.SEND_ACTIVATION: (ActionKind.RECEIVE_ACTIVATION, 1),
         ActionKind.SEND_GRADIENT: (ActionKind.RECEIVE_GRADIENT, -1)}
"""Of each send the receive of its message, and how far the receiver's stage is from the sender's."""
RECEIVES = (ActionKind.RECEIVE_ACTIVATION, ActionKind.RECEIVE_GRADIENT)


@dataclass(frozen=True, slots=True)
class Action:
    """One action of one rank.

    For compute and transfers `pipeline`, `stage` and `microbatch` say which; a transfer's `stage` is the stage of
    the rank that acts, and `peer` the rank at the other end. For REDUCE and GATHER `reduction` is an index into
    `Plan.reductions`; a REDUCE sums through `level` of its levels, -1 where there is none. A backward is one BACKWARD,
    or a BACKWARD_INPUT that gives the gradient of the stage's input and a later BACKWARD_WEIGHT that gives those of
    its matrices.

    Where pipelines take turns on a slow NIC, TAKE_TURN waits for the turn's token from `peer`, and the message of the
    receive that follows it does not start to travel before; PASS_TURN gives the token to `peer`. `stage` of a
    PASS_TURN is that of the rank that passes.
    """

    kind: ActionKind
    pipeline: int = -1
    stage: int = -1
    microbatch: int = -1
    peer: int = -1
    reduction: int = -1
    level: int = -1

    def __str__(self) -> str:
        if self.kind in (ActionKind.REDUCE, ActionKind.GATHER):
            return f"{self.kind.value}{self.reduction}" + (f".{self.level}" if self.level > 0 else "")
        if self.kind is ActionKind.OPTIMIZER:
            return self.kind.value
        text = f"{self.kind.value}{self.pipeline}.{self.stage}.{self.microbatch}"
        return text if self.peer < 0 else f"{text}@{self.peer}"


@dataclass(frozen=True)
class Schedule:
    """The action lists of all ranks. A send never blocks its rank; a receive waits for its message."""

    name: str
    actions: Mapping[int, tuple[Action, ...]]

    def digest(self) -> str:
        """Return 16 hexadecimal digits that change when any action or its order changes."""
        digest = hashlib.sha256(self.name.encode())
        for rank in sorted(self.actions):
            digest.update(f"|{rank}:".encode())
            digest.update(" ".join(str(action) for action in self.actions[rank]).encode())
        return digest.hexdigest()[:16]
