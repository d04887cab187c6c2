"""One rank's share of a stage under tensor parallelism, and the exchanges that join the shares.

Column-parallel products split the rows of their weight: every rank needs the whole input (`enter`) and has its own
columns of the output. Row-parallel products split the columns: every rank has a partial sum of the whole output,
and `leave` adds them up (Shoeybi et al. 2019). With sequence parallelism, what lies between is held in shards of the
sequence: `enter` gathers them and `leave` scatters the sum (Korthikanti et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from holmes_hpc.values.owned import cut_of

SEQUENCE_DIM = 1


class Exchange(Protocol):
    """Collectives between the tensor-parallel ranks of a stage. Every method returns a new tensor."""

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over the ranks."""

    def maximum(self, tensor: Tensor) -> Tensor:
        """Return the elementwise maximum over the ranks."""

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        """Return the ranks' tensors behind one another along `dim`."""

    def scatter_sum(self, tensor: Tensor, dim: int) -> Tensor:
        """Return this rank's part, along `dim`, of the sum over the ranks."""


@dataclass(frozen=True)
class TensorShare:
    """Share `index` of `degree`. Without an `exchange` it only says shapes, unless the degree is one."""

    degree: int = 1
    index: int = 0
    sequence_parallel: bool = False
    exchange: Exchange | None = None

    @property
    def shards(self) -> int:
        """The number of shards of the sequence between the matrix products."""
        return self.degree if self.sequence_parallel else 1

    def size(self, whole: int) -> int:
        """Return this rank's part of a dim that is split. Raises ValueError where it does not divide."""
        if whole % self.degree:
            raise ValueError(f"a dim of {whole} cannot be split between {self.degree} ranks")
        return whole // self.degree

    def bounds(self, whole: int) -> tuple[int, int]:
        """Return begin and end of this rank's part of a dim of a parameter, which need not divide evenly.

        Nothing is padded: parts differ by one where it does not divide.
        """
        return cut_of(whole, self.index, self.degree), cut_of(whole, self.index + 1, self.degree)

    def part(self, tensor: Tensor, dim: int | None) -> Tensor:
        """Return this rank's part of a whole parameter along `dim`, as a view; all of it for None."""
        if dim is None or self.degree == 1:
            return tensor
        begin, end = self.bounds(tensor.shape[dim])
        return tensor.narrow(dim, begin, end - begin)

    def shard(self, tensor: Tensor, dim: int) -> Tensor:
        """Return this rank's shard of what lies along the sequence, as a view. Raises ValueError as `size`."""
        size = self.size(tensor.shape[dim])
        return tensor.narrow(dim, self.index * size, size)

    def enter(self, x: Tensor) -> Tensor:
        """Return the whole input of column-parallel products; backward, the sum of what they send back."""
        if self.degree == 1:
            return x
        return _apply(_GatherSequence if self.sequence_parallel else _Copy, x, self)

    def leave(self, partial: Tensor) -> Tensor:
        """Return the sum of the ranks' partial outputs: whole, or with sequence parallelism this rank's shard."""
        if self.degree == 1:
            return partial
        return _apply(_ScatterSum if self.sequence_parallel else _Sum, partial, self)

    def total(self, partial: Tensor) -> Tensor:
        """Return the sum of what the ranks have, of which each goes on with all; backward, the sum of their gradients.

        Unlike `leave`, whose result every rank uses alike, so that each already has the whole gradient.
        """
        return partial if self.degree == 1 else _apply(_Total, partial, self)

    def cut(self, whole: Tensor) -> Tensor:
        """Return this rank's shard of an activation that every rank has whole."""
        return whole if self.shards == 1 else _apply(_Cut, whole, self)

    def join(self, shard: Tensor) -> Tensor:
        """Return the whole activation on every rank, whose gradient every rank will have whole too."""
        return shard if self.shards == 1 else _apply(_Join, shard, self)

    def row_parallel(self, linear: nn.Linear, x: Tensor) -> Tensor:
        """Return the output of a row-parallel layer; its bias, which every rank holds, is added once."""
        if self.degree == 1:
            return cast(Tensor, linear(x))
        output = self.leave(functional.linear(x, linear.weight))
        return output if linear.bias is None else output + linear.bias

    def required_exchange(self) -> Exchange:
        """Return the exchange. Raises ValueError when there is none."""
        if self.exchange is None:
            raise ValueError(f"share {self.index} of {self.degree} cannot compute: it was built without an exchange")
        return self.exchange


WHOLE = TensorShare()
"""The only share of a stage on one rank."""


def _apply(function: type[torch.autograd.Function], x: Tensor, share: TensorShare) -> Tensor:
    return cast(Tensor, function.apply(x, share))  # type: ignore[no-untyped-call]


class _Copy(torch.autograd.Function):
    """Forward: the same; backward: the sum over the ranks."""

    @staticmethod
    def forward(context: Any, x: Tensor, share: TensorShare) -> Tensor:
        context.share = share
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return context.share.required_exchange().sum(gradients[0]), None


class _Sum(torch.autograd.Function):
    """Forward: the sum over the ranks; backward: the same, since every rank has the whole gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor, share: TensorShare) -> Tensor:
        return share.required_exchange().sum(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Total(torch.autograd.Function):
    """Forward: the sum over the ranks; backward: the sum too, since every rank uses the result in its own way."""

    @staticmethod
    def forward(context: Any, x: Tensor, share: TensorShare) -> Tensor:
        context.share = share
        return share.required_exchange().sum(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return context.share.required_exchange().sum(gradients[0]), None


class _GatherSequence(torch.autograd.Function):
    """Forward: the whole sequence; backward: this rank's shard of the sum."""

    @staticmethod
    def forward(context: Any, x: Tensor, share: TensorShare) -> Tensor:
        context.share = share
        return share.required_exchange().gather(x, SEQUENCE_DIM)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return context.share.required_exchange().scatter_sum(gradients[0], SEQUENCE_DIM), None


class _ScatterSum(torch.autograd.Function):
    """Forward: this rank's shard of the sum; backward: the whole sequence."""

    @staticmethod
    def forward(context: Any, x: Tensor, share: TensorShare) -> Tensor:
        context.share = share
        return share.required_exchange().scatter_sum(x, SEQUENCE_DIM)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return context.share.required_exchange().gather(gradients[0], SEQUENCE_DIM), None


class _Cut(torch.autograd.Function):
    """Forward: this rank's shard; backward: the whole sequence, on every rank."""

    @staticmethod
    def forward(context: Any, x: Tensor, share: TensorShare) -> Tensor:
        context.share = share
        return share.shard(x, SEQUENCE_DIM).contiguous()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return context.share.required_exchange().gather(gradients[0], SEQUENCE_DIM), None


class _Join(torch.autograd.Function):
    """Forward: the whole sequence, on every rank; backward: this rank's shard of the gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor, share: TensorShare) -> Tensor:
        context.share = share
        return share.required_exchange().gather(x, SEQUENCE_DIM)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return context.share.shard(gradients[0], SEQUENCE_DIM).contiguous(), None
