"""Seconds of what fully sharded trainers move beside their compute (ZeRO-3, FSDP)."""

from __future__ import annotations

from holmes_hpc.planner.cost.collectives import Ring, gather_seconds
from holmes_hpc.planner.cost.gpu_constants import OVERLAPPED_COST


def with_exchange(compute: float, exchange: float) -> float:
    """Return how long compute takes beside an exchange: a share of the shorter one remains, of the exchange at least.

    The next layer's parameters are gathered while one computes, so whichever is longer sets the pace.
    """
    return max(exchange, compute + OVERLAPPED_COST * min(compute, exchange))


def gathered_seconds(ring: Ring, ranks: int, parameters: float, element_bytes: int, units: int) -> float:
    """Return the time of gathering parameters unit by unit, which a scatter of their gradients takes too."""
    return units * gather_seconds(ring, ranks, parameters * element_bytes / units)
