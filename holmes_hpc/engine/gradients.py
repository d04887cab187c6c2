"""Gradients of one rank: flat buffers by reduction, their sum over all owners, the global norm, clipping."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.values import Plan, Reduction

NORM_GUARD = 1e-6
"""Added to the norm before dividing by it, so that gradients of zero stay zero."""


class Gradients:
    """The gradients of one rank, one flat float32 buffer for each of the plan's reductions that it takes part in.

    Every parameter's `.grad` is a view of its buffer. A buffer's order is the architecture's, so it is the same on
    every owner. Losses are weighted by their share of the global batch before the backward, so the sum over owners
    is the gradient of the mean over all samples, however unlike the pipelines are.
    """

    def __init__(self, plan: Plan, rank: int, model: LocalModel) -> None:
        self._reductions = plan.reductions
        self._rank = rank
        self.buffers: dict[int, torch.Tensor] = {}
        for index, reduction in enumerate(plan.reductions):
            pieces = model.pieces(reduction) if rank in reduction.owners else []
            if pieces:
                self.buffers[index] = _flat_gradients([model.parameters[piece.name] for piece in pieces])
        missing = [name for name, parameter in model.parameters.items() if parameter.grad is None]
        if missing:
            raise ValueError(f"the plan reduces no gradient of {', '.join(missing)} on rank {rank}")

    def zero(self) -> None:
        """Set every gradient to zero."""
        for buffer in self.buffers.values():
            buffer.zero_()

    def reduce(self, index: int, sum_gradients: Callable[[torch.Tensor, Reduction], None]) -> None:
        """Sum the buffer of reduction `index` over all owners, in place."""
        sum_gradients(self.buffers[index], self._reductions[index])

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
            for buffer in self.buffers.values():
                buffer.mul_(scale)


def _flat_gradients(parameters: list[nn.Parameter]) -> torch.Tensor:
    buffer = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float32, device=parameters[0].device)
    offset = 0
    for parameter in parameters:
        parameter.grad = buffer[offset:offset + parameter.numel()].view(parameter.shape)
        offset += parameter.numel()
    return buffer
