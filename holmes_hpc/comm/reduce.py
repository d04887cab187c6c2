"""Sum gradients over all ranks that own them, in one or two levels, as the plan's reductions say."""

from __future__ import annotations

import contextlib

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from holmes_hpc.comm.gloo import BACKEND_NAME
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.values import Reduction


class GradientSum:
    """A sum under way: the first level runs while the rank computes, `wait` does the rest.

    All owners must begin their sums in the same order and wait for them in the same order.
    """

    def __init__(self, flat: Tensor, reduction: Reduction, communicator: Communicator) -> None:
        if flat.dim() != 1 or not flat.is_contiguous():
            raise ValueError(f"gradients must be one flat contiguous tensor, found shape {tuple(flat.shape)}")
        self._flat = flat
        self._reduction = reduction
        self._communicator = communicator
        self._inner = _own_group(reduction.inner, communicator)
        self._work: Work | None = None
        if self._has_inner():
            group = communicator.group(self._inner)
            with communicator.naming(group, "summing gradients"):
                self._work = dist.all_reduce(flat, group=group, async_op=True)

    def wait(self) -> None:
        """Finish the sum, so that `flat` holds it on every owner. Raises NetworkError when a rank is gone."""
        if self._work is not None:
            self._communicator.wait(self._work, self._communicator.group(self._inner), "summing gradients")
            self._work = None
        if self._reduction.outer and self._reduction.sharded:
            self._sum_part_and_share()
        elif self._reduction.outer:
            self._sum_whole()

    def _has_inner(self) -> bool:
        return self._inner >= 0 and self._communicator.has_group(self._inner)

    def _sum_whole(self) -> None:
        own = _own_group(self._reduction.outer, self._communicator)
        if own < 0:
            raise ValueError(f"rank {self._communicator.rank} is in no outer group of {self._reduction}")
        if self._communicator.has_group(own):
            self._all_reduce(self._flat, own)

    def _sum_part_and_share(self) -> None:
        """Outer group j sums part j between the j-th ranks of the inner groups; they broadcast it inside."""
        parts = split(self._flat, len(self._reduction.outer))
        for part, outer in zip(parts, self._reduction.outer, strict=True):
            if part.numel() > 0 and self._communicator.has_group(outer):
                self._all_reduce(part, outer)
        if not self._has_inner():
            return
        group = self._communicator.group(self._inner)
        ranks = self._communicator.plan.groups[self._inner].ranks
        with self._communicator.naming(group, "sharing summed gradients"):
            works = [
                dist.broadcast(part, src=source, group=group, async_op=True)
                for part, source in zip(parts, ranks, strict=False)
                if part.numel() > 0
            ]
        for work in works:
            self._communicator.wait(work, group, "sharing summed gradients")

    def _all_reduce(self, tensor: Tensor, index: int) -> None:
        group = self._communicator.group(index)
        with self._communicator.naming(group, "summing gradients between fabrics"):
            dist.all_reduce(tensor, group=group)


def sum_gradients(flat: Tensor, reduction: Reduction, communicator: Communicator) -> None:
    """Sum `flat` in place over all owners of the reduction; every owner calls it with the same length.

    flat: one-dimensional, contiguous. Repeating it on the same values gives the same bits, equal on all
    owners. Raises NetworkError that names the group when a rank is gone.
    """
    GradientSum(flat, reduction, communicator).wait()


def split(flat: Tensor, count: int) -> tuple[Tensor, ...]:
    """Return `count` consecutive views of `flat`, equal but for the last one, which takes the remainder."""
    size = flat.numel() // count
    bounds = [part * size for part in range(count)] + [flat.numel()]
    return tuple(flat[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False))


def all_reduce_scalars(
    values: Tensor,
    group: ProcessGroup,
    communicator: Communicator | None = None,
    operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
) -> None:
    """Combine a few numbers in place over a group; over a gloo group they pass through the CPU.

    With `communicator` given, raises NetworkError that names the group when a rank is gone, else torch's
    RuntimeError.
    """
    through_cpu = values.device.type != "cpu" and dist.get_backend(group) == BACKEND_NAME
    carried = values.cpu() if through_cpu else values
    with communicator.naming(group, "combining numbers") if communicator else contextlib.nullcontext():
        dist.all_reduce(carried, op=operation, group=group)
    if through_cpu:
        values.copy_(carried)


def _own_group(indices: tuple[int, ...], communicator: Communicator) -> int:
    """Return the one of `indices` whose group holds this rank, or -1."""
    groups = communicator.plan.groups
    return next((index for index in indices if communicator.rank in groups[index].ranks), -1)
