"""Collectives between the tensor-parallel ranks of a stage, in the middle of its forward and backward."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from holmes_hpc.comm.backends import abilities_of
from holmes_hpc.comm.groups import Communicator

# torch 2.13 renamed both and warns at the old names.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter_sum = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class TensorExchange:
    """The exchange over one tensor group, whose ranks stand in shard order; it waits for every result.

    All ranks of the group call the same methods in the same order with equal shapes. Every method raises NetworkError
    that names the group when a rank is gone.
    """

    def __init__(self, communicator: Communicator, index: int) -> None:
        self._communicator = communicator
        self._group = communicator.group(index)
        self._size = len(communicator.plan.groups[index].ranks)
        self._divides = abilities_of(self._group).divides

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over the ranks, the same bits on all of them."""
        return self._all_reduce(tensor, dist.ReduceOp.SUM)

    def maximum(self, tensor: Tensor) -> Tensor:
        """Return the elementwise maximum over the ranks."""
        return self._all_reduce(tensor, dist.ReduceOp.MAX)

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        """Return the ranks' tensors behind one another along `dim`."""
        parts = tensor.new_empty((self._size * tensor.shape[0], *tensor.shape[1:]))
        with self._communicator.naming(self._group, "gathering activations"):
            _gather(parts, tensor.contiguous(), group=self._group)
        return parts.unflatten(0, (self._size, -1)).movedim(0, dim).flatten(dim, dim + 1)

    def scatter_sum(self, tensor: Tensor, dim: int) -> Tensor:
        """Return this rank's part, along `dim`, of the sum over the ranks.

        A reduce-scatter that is an all-reduce (gloo's) moves twice as much and adds up in the tensor's type; there the
        parts are exchanged and summed here, in float32 and in rank order.
        """
        parts = tensor.unflatten(dim, (self._size, -1)).movedim(dim, 0).contiguous()
        with self._communicator.naming(self._group, "summing activations"):
            if not self._divides:
                received = torch.empty_like(parts)
                dist.all_to_all_single(received, parts, group=self._group)
                wide = torch.promote_types(tensor.dtype, torch.float32)
                return torch.sum(received, dim=0, dtype=wide).to(tensor.dtype)
            result = torch.empty_like(parts[0])
            _scatter_sum(result, parts, group=self._group)
            return result

    def _all_reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        with self._communicator.naming(self._group, "summing activations"):
            dist.all_reduce(result, op=operation, group=self._group)
        return result
