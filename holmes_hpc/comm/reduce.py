"""Sum gradients over all ranks that own them, in one or two levels, as the plan's reductions say."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from holmes_hpc.comm.backends import abilities_of
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.stepwise import Collective, Step
from holmes_hpc.values import Reduction


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
    """Return the steps that sum `flat` in place over all owners: inside, across, and inside what was summed in parts.

    On a rank that the plan leaves out of the outer groups, the second raises ValueError.
    """
    inner = _own_group(reduction.inner, communicator)
    inside = communicator.group(inner) if inner >= 0 and communicator.has_group(inner) else None
    steps: list[Step | None] = [AllReduceStep(inside, flat, "summing gradients") if inside is not None else None]
    if not reduction.outer:
        return steps
    between = "summing gradients between fabrics"
    if not reduction.sharded:
        own = _own_group(reduction.outer, communicator)
        if own < 0:
            steps.append(_MissingStep(communicator, reduction))
        elif communicator.has_group(own):
            steps.append(AllReduceStep(communicator.group(own), flat, between))
        return steps
    parts = split(flat, len(reduction.outer))
    steps += [AllReduceStep(communicator.group(outer), part, between)
              if part.numel() > 0 and communicator.has_group(outer) else None
              for part, outer in zip(parts, reduction.outer, strict=True)]
    steps.append(_ShareStep(inside, parts, communicator.plan.groups[inner].ranks) if inside is not None else None)
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
