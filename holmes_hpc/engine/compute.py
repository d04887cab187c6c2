"""The seam between the interpreter of actions and what stands for the device: torch itself, or timed waits.

Behind one executor, with the same action lists, process groups, transfers and buckets, `real.py` computes on torch and
`timed/` waits for as long as the GPU of the cluster file would compute (the wind tunnel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from holmes_hpc.engine.batch import MicroBatch
from holmes_hpc.engine.receives import Place
from holmes_hpc.values import Action

Batches = Mapping[tuple[int, int], MicroBatch]


class Compute(Protocol):
    """Does what a rank's device does in a step, and drives what hangs on it.

    Before a part of the model (a layer, the embedding, the head) runs, it has the parameters waited for
    (`Gatherer.before`); as soon as a parameter has its last gradient of the step, it says so (`Gradients.arrived`).
    `loss` is this rank's share of the mean loss. Backwards start from the loss times `loss_scale`.
    """

    loss_scale: float

    @property
    def loss(self) -> Tensor:
        """A float32 number, complete when the step's actions are done."""

    def begin(self, actions: Sequence[Action], batches: Batches, *, training: bool) -> None:
        """Begin a step of these actions over the micro-batches of this rank's pipelines."""

    def forward(self, place: Place, incoming: Tensor | None) -> Tensor | None:
        """Run a stage on what came from the one before, None at the first; return what the next one gets, if any."""

    def backward(self, action: Action, incoming: Tensor | None) -> Tensor | None:
        """Run a backward, or its input part, from the gradient that came, None at the last stage.

        Returns the gradient of the stage's input, None at the first stage.
        """

    def backward_weight(self, action: Action) -> None:
        """Run the weight part of a backward whose input part has run."""

    def message(self, action: Action) -> tuple[tuple[int, ...], torch.dtype]:
        """Return shape and type of what a receive brings."""

    def arrived(self, action: Action, tensor: Tensor, waited_seconds: float) -> None:
        """Take note of a message that the host has now, after waiting for so long."""

    def waited(self, seconds: float) -> None:
        """Take note that the host waited so long for others, so that the device may have been idle."""
