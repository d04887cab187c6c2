"""Runs one rank's action list on torch: the interpreter that trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from holmes_hpc.architecture import Architecture
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.point_to_point import Transfers
from holmes_hpc.engine.batch import MicroBatch
from holmes_hpc.engine.gradients import Gradients
from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.engine.pace import Pace
from holmes_hpc.engine.parameters import Gatherer
from holmes_hpc.engine.receives import Place, ReceiveQueue, place_of
from holmes_hpc.engine.timeline import Timeline
from holmes_hpc.model import token_loss
from holmes_hpc.model.weight_gradients import WeightWork, putting_off
from holmes_hpc.values import Action, ActionKind, Plan
from holmes_hpc.values.schedule import RECEIVES, SENDS


class Executor:
    """Interprets actions. A send leaves at once and never blocks; a receive was posted ahead and waits.

    Losses are float32 sums of `loss * weight` over the micro-batches whose last stage this rank holds; of
    tensor-parallel ranks, which all compute the same loss, the first one counts it. Backwards start from the loss times
    `loss_scale`. Activations travel in `dtype`.
    """

    def __init__(self, plan: Plan, rank: int, model: LocalModel, gradients: Gradients, gatherer: Gatherer,
                 communicator: Communicator, architecture: Architecture, dtype: torch.dtype = torch.float32,
                 pace: Pace | None = None) -> None:
        pace = pace or Pace()
        self._plan, self._rank, self._model, self._gradients = plan, rank, model, gradients
        self._gatherer, self._dtype = gatherer, dtype
        self.loss_scale = 1.0
        self._communicator, self._architecture = communicator, architecture
        self._transfers = Transfers(communicator)
        self._training = True
        self._inputs: dict[Place, torch.Tensor] = {}
        self._outputs: dict[Place, torch.Tensor] = {}
        self._incoming_gradients: dict[Place, torch.Tensor] = {}
        self._outgoing: dict[tuple[ActionKind, Place], torch.Tensor] = {}
        self._sends: Counter[tuple[ActionKind, Place]] = Counter()
        self._received: set[tuple[ActionKind, Place]] = set()
        self._weight_work: dict[Place, WeightWork] = {}
        self._batches: Mapping[tuple[int, int], MicroBatch] = {}
        self._own = gradients.own
        self._loss = torch.zeros((), device=communicator.device)
        self._handlers: dict[ActionKind, Callable[[Action], None]] = {
            ActionKind.FORWARD: pace.computing()(self._forward),
            ActionKind.BACKWARD: pace.computing()(self._backward),
            ActionKind.BACKWARD_INPUT: pace.computing()(self._backward),
            ActionKind.BACKWARD_WEIGHT: pace.computing()(self._backward_weight),
            ActionKind.TAKE_TURN: self._take_turn,
            ActionKind.PASS_TURN: self._pass_turn,
            ActionKind.SEND_ACTIVATION: self._send,
            ActionKind.SEND_GRADIENT: self._send,
            ActionKind.RECEIVE_ACTIVATION: self._receive_activation,
            ActionKind.RECEIVE_GRADIENT: self._receive_gradient,
            ActionKind.REDUCE: self._reduce,
        }

    def run(self, actions: Sequence[Action], arriving: Mapping[int, Sequence[Action]],
            batches: Mapping[tuple[int, int], MicroBatch], timeline: Timeline, *, training: bool = True
            ) -> torch.Tensor:
        """Run `actions` (without OPTIMIZER) over `batches` and return this rank's share of the mean loss, a number.

        The host waits for nothing that a GPU computes, so that it can run ahead.

        `arriving` has the receives among them by neighbour, in the order in which it sends.
        """
        self._batches, self._training = batches, training
        self._loss = torch.zeros((), device=self._communicator.device)
        self._received = {(a.kind, place_of(a)) for a in actions if a.kind in RECEIVES}
        self._sends = Counter((a.kind, place_of(a)) for a in actions
                              if a.kind in SENDS)
        turns = [a for a in actions if a.kind is ActionKind.TAKE_TURN]
        split = any(a.kind is ActionKind.BACKWARD_INPUT for a in actions)
        self._weight_work = {place_of(a): WeightWork() for a in actions if split and a.kind is ActionKind.FORWARD}
        queue = ReceiveQueue(arriving, turns, self._post, self._communicator.backend.abilities.receives_ahead)
        with torch.set_grad_enabled(training):
            for action in actions:
                queue.before(action)
                with timeline.record(action):
                    self._handlers[action.kind](action)
                queue.after(action)
        self._transfers.finish()
        return self._loss

    def _forward(self, action: Action) -> None:
        pipeline, stage, microbatch = place = place_of(action)
        stages = self._plan.pipelines[pipeline].stages
        module = self._model.stage(pipeline, stage)
        batch = self._batches[pipeline, microbatch]
        source = batch.tokens if stage == 0 else self._inputs.pop(place).requires_grad_(self._training)
        with self._putting_off(place):
            output = module(source, batch.documents)
        self._gatherer.check(module)
        self._gatherer.poll()
        if stage == len(stages) - 1:
            vocab_size = module.architecture.vocab_size
            loss = token_loss(output, batch.targets, vocab_size, module.options.share, batch.counted) * batch.weight
            if self._rank == stages[stage].ranks[0]:
                self._loss += loss.detach()
            self._own.note_output(loss)
            output = loss if self.loss_scale == 1.0 else loss * self.loss_scale
        else:
            self._own.note_output(output)
            self._pass_on(ActionKind.SEND_ACTIVATION, place, output.detach())
            following = (pipeline, stage + 1, microbatch)
            if self._is_here(ActionKind.RECEIVE_ACTIVATION, following):
                self._inputs[following] = output.detach()
        if self._training:
            self._inputs[place], self._outputs[place] = source, output

    def _backward(self, action: Action) -> None:
        pipeline, stage, microbatch = place = place_of(action)
        source, output = self._inputs.pop(place), self._outputs.pop(place)
        last = stage == len(self._plan.pipelines[pipeline].stages) - 1
        # What follows uses the same groups as the gathers, so those end first; they did where this stage ran forward.
        self._gatherer.finish()
        self._gradients.begin_backward(action)
        torch.autograd.backward([output], None if last else [self._incoming_gradients.pop(place)])
        self._gradients.end_backward()
        if stage == 0:
            return
        gradient = source.grad
        if gradient is None:
            raise RuntimeError(f"stage {stage} of pipeline {pipeline} gave no gradient to its input")
        self._pass_on(ActionKind.SEND_GRADIENT, place, gradient)
        preceding = (pipeline, stage - 1, microbatch)
        if self._is_here(ActionKind.RECEIVE_GRADIENT, preceding):
            self._incoming_gradients[preceding] = gradient

    def _backward_weight(self, action: Action) -> None:
        self._gradients.begin_backward(action)
        self._weight_work.pop(place_of(action)).accumulate()
        self._gradients.end_backward()

    def _putting_off(self, place: Place) -> AbstractContextManager[object]:
        """Return the context in which matrix products leave their weight gradients to BACKWARD_WEIGHT."""
        work = self._weight_work.get(place)
        if work is None:
            return nullcontext()
        module = self._model.stage(place[0], place[1])
        looked_up = module.embedding.token.weight if module.first and module.embedding is not None else None
        return putting_off(work, looked_up)

    def _take_turn(self, action: Action) -> None:
        group = self._turn_group(action.peer)
        self._transfers.post_receive(group, action.peer, 0, (1,), torch.float32)
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
        before = action.stage - 1 if action.kind is ActionKind.RECEIVE_ACTIVATION else action.stage
        tokens = self._architecture.sequence_length // self._plan.boundary_shards(action.pipeline, before)
        shape = (self._samples(action), tokens, self._architecture.hidden_size)
        self._transfers.post_receive(self._edge(action), action.peer, self._tag(action), shape, self._dtype)

    def _receive(self, action: Action) -> torch.Tensor:
        return self._transfers.receive(self._edge(action), action.peer, self._tag(action))

    def _receive_activation(self, action: Action) -> None:
        self._inputs[place_of(action)] = self._receive(action)

    def _receive_gradient(self, action: Action) -> None:
        self._incoming_gradients[place_of(action)] = self._receive(action)

    def _reduce(self, action: Action) -> None:
        self._gradients.finish(action.reduction)

    def _edge(self, action: Action) -> torch.distributed.ProcessGroup:
        return self._communicator.edge(self._rank, action.peer)

    def _samples(self, action: Action) -> int:
        batch = self._batches.get((action.pipeline, action.microbatch))
        return self._plan.micro_batch_size if batch is None else batch.tokens.shape[0]

    def _tag(self, action: Action) -> int:
        """Return a number that only this message has: boundary, pipeline, micro-batch and direction."""
        forward = action.kind in (ActionKind.SEND_ACTIVATION, ActionKind.RECEIVE_ACTIVATION)
        downstream = action.stage + 1 if forward != (action.kind in RECEIVES) else action.stage
        longest = max(len(pipeline.stages) for pipeline in self._plan.pipelines)
        number = (action.microbatch * len(self._plan.pipelines) + action.pipeline) * (longest + 1) + downstream
        return number * 2 + int(forward)
