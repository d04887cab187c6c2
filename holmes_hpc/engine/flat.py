"""Flat buffers of what a reduction owns on one rank: gradients, parameters, and the buckets that cut them."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn

from holmes_hpc.comm.sharding import Route
from holmes_hpc.engine.local_model import LocalModel, Piece
from holmes_hpc.values import Reduction
from holmes_hpc.values.buckets import bucket_cuts

_ALIGNMENT = 16
"""Shards are a multiple of so many elements long, so that each begins at a cache line."""


@dataclass(frozen=True)
class Segment:
    """Where one piece of a parameter lies in the flat buffers.

    `whole`: the piece is the local parameter, so that the parameter can be a view of the buffer.
    """

    piece: Piece
    shape: tuple[int, ...]
    begin: int
    end: int
    whole: bool
    decays: bool

    def of(self, buffer: Tensor) -> Tensor:
        """Return the segment of a flat buffer, in the piece's shape."""
        return buffer[self.begin:self.end].view(self.shape)


@dataclass
class Bucket:
    """A part of a reduction's buffers that is summed and gathered at once.

    `shard` is what this rank updates, in elements of the whole flat buffer. `master` is that shard in float32: a view
    of the parameters where they are float32 themselves. `missing` counts the segments without their last gradient.
    """

    reduction: int
    number: int
    begin: int
    end: int
    shard: tuple[int, int]
    segments: tuple[Segment, ...]
    gradients: Tensor
    values: Tensor
    master: Tensor
    missing: int = field(default=0)

    @property
    def shard_gradient(self) -> Tensor:
        """The gradient of the shard, a view; the sum over all owners once the bucket is reduced."""
        return self.gradients[self.shard[0] - self.begin:self.shard[1] - self.begin]

    @property
    def shard_values(self) -> Tensor:
        """The shard of the parameters in the type of the computation, a view."""
        return self.values[self.shard[0] - self.begin:self.shard[1] - self.begin]


class FlatReduction:
    """The buffers of one reduction on one rank.

    Pieces lie in the reverse of the architecture's order, on all owners alike: about the order in which a backward
    finishes them. `gradients` is float32, `values` of the type of the computation. Making it moves the parameters
    into `values`, and their gradients, where they are float32 and whole, into `gradients`.
    """

    def __init__(self, index: int, reduction: Reduction, model: LocalModel, route: Route, bucket_mib: float,
                 dtype: torch.dtype) -> None:
        self.index, self.reduction, self.route = index, reduction, route
        self.segments = tuple(_segments(list(reversed(model.pieces(reduction))), model.parameters))
        length = self.segments[-1].end if self.segments else 0
        step = _ALIGNMENT * route.shards
        size = max(1, round(bucket_mib * 2**20 / 4 / step)) * step
        total = -(-length // step) * step
        self.gradients, self.values, initial = self._filled(total, model.parameters, dtype)
        self.buckets = tuple(self._bucket(number, begin, end, initial)
                             for number, (begin, end) in enumerate(pairwise(bucket_cuts(total, size, step))))

    def _filled(self, total: int, parameters: Mapping[str, nn.Parameter], dtype: torch.dtype
                ) -> tuple[Tensor, Tensor, Tensor]:
        """Return buffers of gradients and values, which the parameters become views of, and float32 values."""
        device = parameters[self.segments[0].piece.name].device if self.segments else torch.device("cpu")
        gradients = torch.zeros(total, dtype=torch.float32, device=device)
        initial = torch.zeros(total, dtype=torch.float32, device=device)
        for segment in self.segments:
            segment.of(initial).copy_(segment.piece.of(parameters[segment.piece.name].detach()))
        values = initial if dtype == torch.float32 else initial.to(dtype)
        for segment in self.segments:
            _adopt(segment, parameters[segment.piece.name], values, gradients)
        return gradients, values, initial

    def scale_gradient(self, segment: Segment, factor: float) -> None:
        """Multiply the gradient of a segment by `factor`."""
        segment.of(self.gradients).mul_(factor)

    def copy_out(self, segment: Segment, parameters: Mapping[str, nn.Parameter]) -> None:
        """Write a gathered segment into its parameter, where that is no view of the buffer."""
        if not segment.whole:
            segment.piece.of(parameters[segment.piece.name].detach()).copy_(segment.of(self.values))

    def copy_in(self, segment: Segment, parameters: Mapping[str, nn.Parameter]) -> None:
        """Read a segment from its parameter, which something else has filled, where that is no view of the buffer."""
        if not segment.whole:
            segment.of(self.values).copy_(segment.piece.of(parameters[segment.piece.name].detach()))

    def segments_in(self, begin: int, end: int) -> Iterator[Segment]:
        """Return the segments that overlap a range of the flat buffer."""
        first = bisect.bisect_right(self.segments, begin, key=lambda segment: segment.end)
        for segment in self.segments[first:]:
            if segment.begin >= end:
                return
            yield segment

    def _bucket(self, number: int, begin: int, end: int, initial: Tensor) -> Bucket:
        size = (end - begin) // self.route.shards
        place = self.route.position
        shard = (begin, begin) if place is None else (begin + place * size, begin + (place + 1) * size)
        master = initial[shard[0]:shard[1]]
        return Bucket(self.index, number, begin, end, shard, tuple(self.segments_in(begin, end)),
                      self.gradients[begin:end], self.values[begin:end],
                      master if self.values is initial else master.clone())


def _segments(pieces: list[Piece], parameters: Mapping[str, nn.Parameter]) -> Iterator[Segment]:
    begin = 0
    for piece in pieces:
        parameter = parameters[piece.name].detach()
        part = piece.of(parameter)
        yield Segment(piece, tuple(part.shape), begin, begin + part.numel(), part.numel() == parameter.numel(),
                      parameter.ndim >= 2)
        begin += part.numel()


def _adopt(segment: Segment, parameter: nn.Parameter, values: Tensor, gradients: Tensor) -> None:
    """Make a parameter, and its gradient where the types allow it, a view of the buffers."""
    if not segment.whole:
        if parameter.dtype != values.dtype:
            parameter.data = parameter.data.to(values.dtype)
        return
    parameter.data = segment.of(values)
    if values.dtype == torch.float32:
        parameter.grad = segment.of(gradients)
