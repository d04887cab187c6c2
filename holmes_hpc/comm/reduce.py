"""Sum gradients over all ranks that own them, in the levels of the plan's reductions."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from holmes_hpc.comm.backends import abilities_of
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.stepwise import Collective, Step
from holmes_hpc.values import Operation, Reduction


class GradientSum(Collective):
    """A sum under way: the first level runs while the rank computes, `wait` does the rest.

    All owners must begin their sums in the same order and wait for them in the same order.
    """

    def __init__(self, flat: Tensor, reduction: Reduction, communicator: Communicator) -> None:
        if flat.dim() != 1 or not flat.is_contiguous():
            raise ValueError(f"gradients must be one flat contiguous tensor, found shape {tuple(flat.shape)}")
        super().__init__(whole_sum_steps(flat, reduction, communicator), communicator)
        if self.length:
            self.begin()

    def wait(self) -> None:
        """Finish the sum, so that `flat` holds it on every owner. Raises NetworkError when a rank is gone."""
        while self.length and not self.done:
            self.end()
            if not self.done:
                self.begin()


def whole_sum_steps(flat: Tensor, reduction: Reduction, communicator: Communicator) -> list[Step | None]:
    """Return the steps that sum `flat` in place over all owners, those of the reduction's levels.

    Where the levels leave a rank without the sum, the step in which it would get it raises ValueError.
    """
    steps: list[Step | None] = []
    parts: tuple[Tensor, ...] = (flat,)
    for number, level in enumerate(reduction.levels):
        doing = "summing gradients between fabrics" if number else "summing gradients"
        own = _own_group(level.groups, communicator)
        group = communicator.group(own) if own >= 0 and communicator.has_group(own) else None
        if level.operation is Operation.BROADCAST:
            ranks = communicator.plan.groups[own].ranks
            steps.append(_ShareStep(group, parts, ranks) if group is not None else None)
        elif level.parts > 1:
            parts = split(flat, level.parts)
            steps += [AllReduceStep(communicator.group(each), part, doing)
                      if part.numel() > 0 and communicator.has_group(each) else None
                      for part, each in zip(parts, level.groups, strict=True)]
        elif own < 0 and number and number == len(reduction.levels) - 1:
            steps.append(_MissingStep(communicator, reduction))
        else:
            steps.append(AllReduceStep(group, flat, doing) if group is not None else None)
    return steps


class AllReduceStep:
    """Sums a tensor in place over a group."""

    def __init__(self, group: ProcessGroup, tensor: Tensor, doing: str) -> None:
        self.group, self.doing, self._tensor = group, doing, tensor

    def begin(self) -> list[Work]:
        """Start the sum."""
        work = dist.all_reduce(self._tensor, group=self.group, async_op=True)
        return [] if work is None else [work]

    def end(self) -> None:
        """Nothing is left to do: the sum is in place."""


class _MissingStep:
    """Stands where the plan has no group for this rank; the ranks that it summed with before do not wait for it."""

    doing = "summing gradients"

    def __init__(self, communicator: Communicator, reduction: Reduction) -> None:
        self.group, self._rank, self._reduction = communicator.world, communicator.rank, reduction

    def begin(self) -> list[Work]:
        raise ValueError(f"rank {self._rank} is in no outer group of {self._reduction}")

    def end(self) -> None:
        return


class _ShareStep:
    """The j-th rank of the group sends the j-th part to the others."""

    doing = "sharing summed gradients"

    def __init__(self, group: ProcessGroup, parts: Sequence[Tensor], ranks: Sequence[int]) -> None:
        self.group, self._parts, self._ranks = group, parts, ranks

    def begin(self) -> list[Work]:
        works = [dist.broadcast(part, src=source, group=self.group, async_op=True)
                 for part, source in zip(self._parts, self._ranks, strict=False) if part.numel() > 0]
        return [work for work in works if work is not None]

    def end(self) -> None:
        return


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
    through_cpu = values.device.type != abilities_of(group).device
    carried = values.cpu() if through_cpu else values
    with communicator.naming(group, "combining numbers") if communicator else contextlib.nullcontext():
        dist.all_reduce(carried, op=operation, group=group)
    if through_cpu:
        values.copy_(carried)


def _own_group(indices: tuple[int, ...], communicator: Communicator) -> int:
    """Return the one of `indices` whose group holds this rank, or -1."""
    groups = communicator.plan.groups
    return next((index for index in indices if communicator.rank in groups[index].ranks), -1)
