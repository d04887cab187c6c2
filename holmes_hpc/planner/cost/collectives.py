"""Seconds of collectives and transfers, by latency and bandwidth.

A ring all-reduce of S bytes over R ranks passes 2 (R - 1) / R of them through every rank in 2 (R - 1) steps; a
scatter or a gather half of both.
"""

from __future__ import annotations

from dataclasses import dataclass

from holmes_hpc.planner.cost.gpu_constants import COLLECTIVE_LAUNCH_SECONDS, OVERLAPPED_COST, RING_STEP_SECONDS
from holmes_hpc.planner.cost.micro_batch import MicroBatch, Seconds

_HALF = 0.5
"""A gather, or a scatter of a sum, is half a sum."""


@dataclass(frozen=True)
class Ring:
    """What a ring runs over: byte/s of its slowest link for this ring alone, and seconds of a step and a start."""

    bytes_per_second: float
    step_seconds: float = RING_STEP_SECONDS
    start_seconds: float = COLLECTIVE_LAUNCH_SECONDS


def all_reduce_seconds(ring: Ring, ranks: int, size_bytes: float) -> float:
    """Return the time of summing `size_bytes` over a ring of ranks; nothing for one rank."""
    if ranks < 2:
        return 0.0
    return (2 * (ranks - 1) / ranks * size_bytes / ring.bytes_per_second
            + ring.start_seconds + 2 * (ranks - 1) * ring.step_seconds)


def gather_seconds(ring: Ring, ranks: int, size_bytes: float) -> float:
    """Return the time of gathering (or scattering the sum of) `size_bytes` in all over a ring of ranks."""
    if ranks < 2:
        return 0.0
    return ((ranks - 1) / ranks * size_bytes / ring.bytes_per_second
            + ring.start_seconds + (ranks - 1) * ring.step_seconds)


@dataclass(frozen=True)
class Directions:
    """Time of a unit's forward, and of the two parts of its backward, as a rank sees it."""

    forward: float
    backward_input: float
    backward_weight: float

    @property
    def backward(self) -> float:
        """Both parts of the backward."""
        return self.backward_input + self.backward_weight


def unit_directions(batch: MicroBatch, unit: Seconds, ring: Ring | None = None) -> Directions:
    """Return the time of a unit with its sums over the tensor ranks, recomputation and launches.

    Under sequence parallelism a scatter and a gather take the place of each sum, and the backward gathers the
    inputs of column-split products once more for their weights' gradients. Software that overlaps runs the
    backward's sums beside the weights' gradients (of sequence parallelism: all but the gather of the incoming
    gradient), where a share of their time remains. A direction takes at least as long as its launches.
    """
    one = all_reduce_seconds(ring, batch.tensor, batch.boundary_bytes) if ring else 0.0
    remaining = OVERLAPPED_COST if batch.software.overlapped_collectives else 1.0
    exposed = _HALF + 2 * _HALF * remaining if batch.sequence_parallel else remaining
    forward = max(unit.forward + unit.forward_sums * one, unit.forward_launch)
    # Recomputing all of a layer repeats its sums and launches; its attention core has no sums.
    again = forward if batch.recompute == "full" and unit.again else unit.again
    backward_input = unit.backward_input + unit.backward_sums * exposed * one
    stretch = max(1.0, unit.backward_launch / (backward_input + unit.backward_weight))
    return Directions(forward, again + backward_input * stretch, unit.backward_weight * stretch)
