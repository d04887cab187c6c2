"""Flat buffers that have the buckets of the real ones, and no contents: all lie over each other in the same zeros."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.scratch import Scratch
from holmes_hpc.engine.flat import Bucket, FlatReduction, Segment
from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.engine.timed.route import TimedRoute, Zeros
from holmes_hpc.values import Reduction
from holmes_hpc.values.timed import TimedPrices


class ScaledFlat(FlatReduction):
    """The buffers of a reduction on a timed rank: cut into buckets as on a real one, then divided by the scale.

    What is sent is whatever lies there; only its length counts.
    """

    def __init__(self, index: int, reduction: Reduction, model: LocalModel, route: TimedRoute, bucket_mib: float,
                 dtype: torch.dtype, scale: float, zeros: Zeros) -> None:
        self._scale, self._zeros, self._dtype = scale, zeros, dtype
        super().__init__(index, reduction, model, route, bucket_mib, dtype)
        self.segments = tuple(dataclasses.replace(segment, whole=True) for segment in self.segments)
        route.total = sum(bucket.gradients.numel() for bucket in self.buckets)

    def scale_gradient(self, segment: Segment, factor: float) -> None:
        """Do nothing: there is no gradient."""

    def _filled(self, total: int, parameters: Mapping[str, nn.Parameter], dtype: torch.dtype
                ) -> tuple[Tensor, Tensor, Tensor]:
        none = torch.zeros(0)
        return none, none, none

    def _bucket(self, number: int, begin: int, end: int, initial: Tensor) -> Bucket:
        size = max(1, round((end - begin) / self._scale / self.route.shards))
        length, place = size * self.route.shards, self.route.position
        shard = (0, 0) if place is None else (place * size, (place + 1) * size)
        segments = tuple(dataclasses.replace(segment, whole=True) for segment in self.segments_in(begin, end))
        return Bucket(self.index, number, 0, length, shard, segments, self._zeros.take(length, torch.float32),
                      self._zeros.take(length, self._dtype), self._zeros.take(shard[1] - shard[0], torch.float32))


class ScaledFlats:
    """Makes the buffers of all reductions of a timed rank."""

    def __init__(self, prices: TimedPrices) -> None:
        self._prices, self._zeros = prices, Zeros()

    def __call__(self, index: int, reduction: Reduction, model: LocalModel, communicator: Communicator,
                 scratch: Scratch, bucket_mib: float, dtype: torch.dtype) -> ScaledFlat:
        """Return those of one, to be exchanged at the tunnel's lengths and times."""
        route = TimedRoute(index, reduction, communicator, scratch, self._prices, self._zeros)
        return ScaledFlat(index, reduction, model, route, bucket_mib, dtype, self._prices.scale, self._zeros)
