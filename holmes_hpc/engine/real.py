"""Computes a rank's stages on torch."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from holmes_hpc.architecture import Architecture
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.engine.batch import MicroBatch
from holmes_hpc.engine.compute import Batches
from holmes_hpc.engine.gradients import Gradients
from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.engine.parameters import TIED_TABLE, Gatherer
from holmes_hpc.engine.receives import Place, place_of
from holmes_hpc.model import StageModule, token_loss
from holmes_hpc.model.weight_gradients import WeightWork, putting_off
from holmes_hpc.values import Action, ActionKind, Plan


class RealCompute:
    """The `Compute` that trains: modules forwards, autograd backwards, whose hooks tell of parameters.

    Losses are float32 sums of `loss * weight` over the micro-batches whose last stage this rank holds; of
    tensor-parallel ranks, which all compute the same loss, the first one counts it. Activations travel in `dtype`.
    """

    def __init__(self, plan: Plan, rank: int, model: LocalModel, gradients: Gradients, gatherer: Gatherer,
                 communicator: Communicator, architecture: Architecture, dtype: torch.dtype = torch.float32) -> None:
        self._plan, self._rank, self._model = plan, rank, model
        self._gradients, self._gatherer, self._own = gradients, gatherer, gradients.own
        self._architecture, self._dtype, self._device = architecture, dtype, communicator.device
        self.loss_scale = 1.0
        self._loss = torch.zeros((), device=self._device)
        self._training = True
        self._batches: Mapping[tuple[int, int], MicroBatch] = {}
        self._sources: dict[Place, Tensor] = {}
        self._outputs: dict[Place, Tensor] = {}
        self._weight_work: dict[Place, WeightWork] = {}
        for name, parameter in model.parameters.items():
            parameter.register_post_accumulate_grad_hook(functools.partial(gradients.arrived, name))
        if gatherer.overlaps:
            for stage in dict.fromkeys(model.stage(p, s) for p, s in plan.stages_of(rank)):
                self._watch(stage)

    @property
    def loss(self) -> Tensor:
        """This rank's share of the mean loss."""
        return self._loss

    def begin(self, actions: Sequence[Action], batches: Batches, *, training: bool) -> None:
        """Begin a step, whose losses add up from zero."""
        self._batches, self._training = batches, training
        self._loss = torch.zeros((), device=self._device)
        split = any(a.kind is ActionKind.BACKWARD_INPUT for a in actions)
        self._weight_work = {place_of(a): WeightWork() for a in actions if split and a.kind is ActionKind.FORWARD}

    def forward(self, place: Place, incoming: Tensor | None) -> Tensor | None:
        """Run a stage's module; at the last stage the loss follows, and nothing is passed on."""
        pipeline, stage, microbatch = place
        stages = self._plan.pipelines[pipeline].stages
        module = self._model.stage(pipeline, stage)
        batch = self._batches[pipeline, microbatch]
        source = batch.tokens if incoming is None else incoming.requires_grad_(self._training)
        with self._putting_off(place):
            output = module(source, batch.documents)
        self._gatherer.check(module)
        self._gatherer.poll()
        last = stage == len(stages) - 1
        if last:
            output = self._noted_loss(output, batch, module, first=self._rank == stages[stage].ranks[0])
        else:
            self._own.note_output(output)
        if self._training:
            self._sources[place], self._outputs[place] = source, output
        return None if last else output.detach()

    def backward(self, action: Action, incoming: Tensor | None) -> Tensor | None:
        """Run autograd back to the stage's input."""
        place = place_of(action)
        source, output = self._sources.pop(place), self._outputs.pop(place)
        # What follows uses the same groups as the gathers, so those end first; they did where this stage ran forward.
        self._gatherer.finish()
        self._gradients.begin_backward(action)
        torch.autograd.backward([output], None if incoming is None else [incoming])
        self._gradients.end_backward()
        if action.stage == 0:
            return None
        gradient = source.grad
        if gradient is None:
            raise RuntimeError(f"stage {action.stage} of pipeline {action.pipeline} gave no gradient to its input")
        return gradient

    def backward_weight(self, action: Action) -> None:
        """Multiply out the weights' gradients that the input part has left."""
        self._gradients.begin_backward(action)
        self._weight_work.pop(place_of(action)).accumulate()
        self._gradients.end_backward()

    def message(self, action: Action) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the hidden states of a micro-batch, or of a shard of its sequence."""
        before = action.stage - 1 if action.kind is ActionKind.RECEIVE_ACTIVATION else action.stage
        tokens = self._architecture.sequence_length // self._plan.boundary_shards(action.pipeline, before)
        batch = self._batches.get((action.pipeline, action.microbatch))
        samples = self._plan.micro_batch_size if batch is None else batch.tokens.shape[0]
        return (samples, tokens, self._architecture.hidden_size), self._dtype

    def arrived(self, action: Action, tensor: Tensor, waited_seconds: float) -> None:
        """Do nothing: the device waits for its own inputs."""

    def waited(self, seconds: float) -> None:
        """Do nothing: the device knows itself when it is idle."""

    def _noted_loss(self, logits: Tensor, batch: MicroBatch, module: StageModule, *, first: bool) -> Tensor:
        """Add a micro-batch's loss up, and return what its backward starts from."""
        vocab_size, share = module.architecture.vocab_size, module.options.share
        loss = token_loss(logits, batch.targets, vocab_size, share, batch.counted) * batch.weight
        if first:
            self._loss += loss.detach()
        self._own.note_output(loss)
        return loss if self.loss_scale == 1.0 else loss * self.loss_scale

    def _putting_off(self, place: Place) -> AbstractContextManager[object]:
        """Return the context in which matrix products leave their weight gradients to BACKWARD_WEIGHT."""
        work = self._weight_work.get(place)
        if work is None:
            return nullcontext()
        module = self._model.stage(place[0], place[1])
        looked_up = module.embedding.token.weight if module.first and module.embedding is not None else None
        return putting_off(work, looked_up)

    def _watch(self, stage: nn.Module) -> None:
        """Have each part of a stage wait for its parameters before it runs."""
        for prefix, part in _parts(stage):
            names = [f"{prefix}.{name}" for name, _ in part.named_parameters()]
            if prefix == "head" and TIED_TABLE in dict(stage.named_parameters()):
                names.append(TIED_TABLE)
            part.register_forward_pre_hook(functools.partial(self._before, names))

    def _before(self, names: Sequence[str], module: nn.Module, arguments: Any) -> None:
        self._gatherer.before(names)


def _parts(stage: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the parts of a stage that run one after the other: the embedding, every layer, the head."""
    parts: list[tuple[str, nn.Module]] = []
    for name, child in stage.named_children():
        if isinstance(child, nn.ModuleDict | nn.ModuleList):
            parts += [(f"{name}.{key}", each) for key, each in child.named_children()]
        else:
            parts.append((name, child))
    return parts
