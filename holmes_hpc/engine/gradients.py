"""Gradients of one rank: flat buffers by reduction, their sum over all owners, the global norm, clipping."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from holmes_hpc.engine.local_model import LocalModel, Piece
from holmes_hpc.values import Plan, Reduction

NORM_GUARD = 1e-6
"""Added to the norm before dividing by it, so that gradients of zero stay zero."""


class Gradients:
    """The gradients of one rank, one flat float32 buffer for each of the plan's reductions that it takes part in.

    A parameter's `.grad` is a view of its buffer; where several reductions own slices of it, it is a tensor of its
    own, whose slices pass through their buffers. A buffer's order is the architecture's, so it is the same on every
    owner. Losses are weighted by their share of the global batch before the backward, so the sum over owners
    is the gradient of the mean over all samples, however unlike the pipelines are.
    """

    def __init__(self, plan: Plan, rank: int, model: LocalModel) -> None:
        self._reductions = plan.reductions
        self._rank = rank
        self._parameters = model.parameters
        self._slots: dict[int, list[_Slot]] = {}
        self.buffers: dict[int, torch.Tensor] = {}
        for index, reduction in enumerate(plan.reductions):
            pieces = model.pieces(reduction) if rank in reduction.owners else []
            if pieces:
                self.buffers[index], self._slots[index] = _lay_out(pieces, model)
        missing = [name for name, parameter in model.parameters.items() if parameter.grad is None]
        if missing:
            raise ValueError(f"the plan reduces no gradient of {', '.join(missing)} on rank {rank}")

    def zero(self) -> None:
        """Set every gradient to zero."""
        for parameter in self._parameters.values():
            _gradient(parameter).zero_()

    def reduce(self, index: int, sum_gradients: Callable[[torch.Tensor, Reduction], None]) -> None:
        """Sum the gradients of reduction `index` over all owners, in place."""
        for slot in self._slots[index]:
            if not slot.is_view:
                slot.part.copy_(slot.piece.of(_gradient(slot.parameter)))
            if slot.scale != 1.0:
                slot.part.mul_(slot.scale)
        sum_gradients(self.buffers[index], self._reductions[index])
        for slot in self._slots[index]:
            if not slot.is_view:
                slot.piece.of(_gradient(slot.parameter)).copy_(slot.part)

    def local_square_sum(self) -> float:
        """Return this rank's share of the squared global norm: each reduced buffer counts at its first owner."""
        total = 0.0
        for index, buffer in self.buffers.items():
            if self._reductions[index].owners[0] == self._rank:
                total += float(torch.linalg.vector_norm(buffer, dtype=torch.float64)) ** 2
        return total

    def clip(self, norm: float, largest: float | None) -> None:
        """Scale every gradient so that the global norm is at most `largest`; None leaves them."""
        if largest is None:
            return
        scale = largest / (norm + NORM_GUARD)
        if scale < 1.0:
            for parameter in self._parameters.values():
                _gradient(parameter).mul_(scale)


@dataclass(frozen=True)
class _Slot:
    """Where a piece of a parameter's gradient lies in a buffer."""

    parameter: nn.Parameter
    piece: Piece
    part: torch.Tensor
    scale: float
    is_view: bool


def _lay_out(pieces: list[Piece], model: LocalModel) -> tuple[torch.Tensor, list[_Slot]]:
    """Return a buffer for the pieces, and where each of them lies in it."""
    parameters = [model.parameters[piece.name] for piece in pieces]
    shapes = [piece.of(parameter).shape for piece, parameter in zip(pieces, parameters, strict=True)]
    buffer = torch.zeros(sum(map(math.prod, shapes)), dtype=torch.float32, device=parameters[0].device)
    slots, offset = [], 0
    for piece, parameter, shape in zip(pieces, parameters, shapes, strict=True):
        part = buffer[offset:offset + shape.numel()].view(shape)
        offset += shape.numel()
        if piece.dim is None:
            parameter.grad = part
        elif parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter, dtype=torch.float32)
        slots.append(_Slot(parameter, piece, part, model.gradient_scale(piece.name), piece.dim is None))
    return buffer, slots


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        raise RuntimeError("a parameter lost its gradient buffer: something set its gradients to None")
    return parameter.grad
