"""Runs one rank's action list: the interpreter that trains."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.point_to_point import Transfers
from holmes_hpc.engine.compute import Batches, Compute
from holmes_hpc.engine.gradients import Gradients
from holmes_hpc.engine.pace import Pace
from holmes_hpc.engine.receives import Place, ReceiveQueue, place_of
from holmes_hpc.engine.timeline import Timeline
from holmes_hpc.values import Action, ActionKind, Plan
from holmes_hpc.values.schedule import RECEIVES, SENDS


class Executor:
    """Interprets actions. A send leaves at once and never blocks; a receive was posted ahead and waits.

    `compute` does what the device does between them.
    """

    def __init__(self, plan: Plan, rank: int, compute: Compute, gradients: Gradients,
                 communicator: Communicator, pace: Pace | None = None) -> None:
        pace = pace or Pace()
        self._plan, self._rank, self._compute, self._gradients = plan, rank, compute, gradients
        self._communicator = communicator
        self._transfers = Transfers(communicator)
        self._inputs: dict[Place, torch.Tensor] = {}
        self._incoming_gradients: dict[Place, torch.Tensor] = {}
        self._outgoing: dict[tuple[ActionKind, Place], torch.Tensor] = {}
        self._sends: Counter[tuple[ActionKind, Place]] = Counter()
        self._received: set[tuple[ActionKind, Place]] = set()
        self._handlers: dict[ActionKind, Callable[[Action], None]] = {
            ActionKind.FORWARD: pace.computing()(self._forward),
            ActionKind.BACKWARD: pace.computing()(self._backward),
            ActionKind.BACKWARD_INPUT: pace.computing()(self._backward),
            ActionKind.BACKWARD_WEIGHT: pace.computing()(compute.backward_weight),
            ActionKind.TAKE_TURN: self._take_turn,
            ActionKind.PASS_TURN: self._pass_turn,
            ActionKind.SEND_ACTIVATION: self._send,
            ActionKind.SEND_GRADIENT: self._send,
            ActionKind.RECEIVE_ACTIVATION: self._receive_activation,
            ActionKind.RECEIVE_GRADIENT: self._receive_gradient,
            ActionKind.REDUCE: self._reduce,
        }

    def run(self, actions: Sequence[Action], arriving: Mapping[int, Sequence[Action]],
            batches: Batches, timeline: Timeline, *, training: bool = True
            ) -> torch.Tensor:
        """Run `actions` (without OPTIMIZER) over `batches` and return this rank's share of the mean loss, a number.

        The host waits for nothing that a GPU computes, so that it can run ahead.

        `arriving` has the receives among them by neighbour, in the order in which it sends.
        """
        self._compute.begin(actions, batches, training=training)
        self._received = {(a.kind, place_of(a)) for a in actions if a.kind in RECEIVES}
        self._sends = Counter((a.kind, place_of(a)) for a in actions
                              if a.kind in SENDS)
        turns = [a for a in actions if a.kind is ActionKind.TAKE_TURN]
        queue = ReceiveQueue(arriving, turns, self._post, self._communicator.backend.abilities.receives_ahead)
        with torch.set_grad_enabled(training):
            for action in actions:
                queue.before(action)
                with timeline.record(action):
                    self._handlers[action.kind](action)
                queue.after(action)
        self._transfers.finish()
        return self._compute.loss

    def _forward(self, action: Action) -> None:
        pipeline, stage, microbatch = place = place_of(action)
        output = self._compute.forward(place, self._inputs.pop(place) if stage else None)
        if output is None:
            return
        self._pass_on(ActionKind.SEND_ACTIVATION, place, output)
        following = (pipeline, stage + 1, microbatch)
        if self._is_here(ActionKind.RECEIVE_ACTIVATION, following):
            self._inputs[following] = output.detach()

    def _backward(self, action: Action) -> None:
        pipeline, stage, microbatch = place = place_of(action)
        last = stage == len(self._plan.pipelines[pipeline].stages) - 1
        gradient = self._compute.backward(action, None if last else self._incoming_gradients.pop(place))
        if gradient is None:
            return
        self._pass_on(ActionKind.SEND_GRADIENT, place, gradient)
        preceding = (pipeline, stage - 1, microbatch)
        if self._is_here(ActionKind.RECEIVE_GRADIENT, preceding):
            self._incoming_gradients[preceding] = gradient

    def _take_turn(self, action: Action) -> None:
        group = self._turn_group(action.peer)
        self._transfers.post_receive(group, action.peer, 0, (1,), torch.float32)
        with self._waiting():
            self._transfers.receive(group, action.peer, 0)

    def _pass_turn(self, action: Action) -> None:
        token = torch.zeros(1, device=self._communicator.device)
        self._transfers.send(token, self._turn_group(action.peer), action.peer, 0)

    def _turn_group(self, peer: int) -> torch.distributed.ProcessGroup:
        index = next(index for index, group in enumerate(self._plan.groups)
                     if group.kind == "turn" and {self._rank, peer} <= set(group.ranks))
        return self._communicator.group(index)

    def _pass_on(self, kind: ActionKind, place: Place, tensor: torch.Tensor) -> None:
        """Keep a result until it is sent, as often as the schedule sends it: stages of unlike degrees send unevenly."""
        if self._sends[kind, place]:
            self._outgoing[kind, place] = tensor

    def _is_here(self, receive: ActionKind, place: Place) -> bool:
        """Return whether a neighbouring stage is on this rank too and does not receive from another one."""
        stage = self._plan.pipelines[place[0]].stages[place[1]]
        return self._rank in stage.ranks and (receive, place) not in self._received

    def _send(self, action: Action) -> None:
        key = (action.kind, place_of(action))
        self._sends[key] -= 1
        tensor = self._outgoing[key] if self._sends[key] else self._outgoing.pop(key)
        self._transfers.send(tensor, self._edge(action), action.peer, self._tag(action))

    def _post(self, action: Action) -> None:
        self._transfers.post_receive(self._edge(action), action.peer, self._tag(action), *self._compute.message(action))

    def _receive(self, action: Action) -> torch.Tensor:
        before = time.perf_counter()
        tensor = self._transfers.receive(self._edge(action), action.peer, self._tag(action))
        self._compute.arrived(action, tensor, time.perf_counter() - before)
        return tensor

    def _receive_activation(self, action: Action) -> None:
        self._inputs[place_of(action)] = self._receive(action)

    def _receive_gradient(self, action: Action) -> None:
        self._incoming_gradients[place_of(action)] = self._receive(action)

    def _reduce(self, action: Action) -> None:
        with self._waiting():
            self._gradients.finish(action.reduction)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        before = time.perf_counter()
        yield
        self._compute.waited(time.perf_counter() - before)

    def _edge(self, action: Action) -> torch.distributed.ProcessGroup:
        return self._communicator.edge(self._rank, action.peer)

    def _tag(self, action: Action) -> int:
        """Return a number that only this message has: boundary, pipeline, micro-batch and direction."""
        forward = action.kind in (ActionKind.SEND_ACTIVATION, ActionKind.RECEIVE_ACTIVATION)
        downstream = action.stage + 1 if forward != (action.kind in RECEIVES) else action.stage
        longest = max(len(pipeline.stages) for pipeline in self._plan.pipelines)
        number = (action.microbatch * len(self._plan.pipelines) + action.pipeline) * (longest + 1) + downstream
        return number * 2 + int(forward)
