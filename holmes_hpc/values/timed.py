"""What the waits of a wind tunnel take: the simulator's own prices, carried to the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holmes_hpc.values.plan import Plan
from holmes_hpc.values.schedule import ActionKind

Span = tuple[str, float, float]
"""A unit of the model (a layer, the embedding, the head), and which fractions of its stage's forward it takes."""


@dataclass(frozen=True)
class TimedPrices:
    """A plan's prices for ranks that wait instead of computing; seconds and bytes are those of the cluster described.

    Bytes and bit rates are divided by `scale`; seconds are stretched by `dilation`, and rates divided by it once more,
    so that this machine's cores keep up. `compute[kind, pipeline, stage]` and `optimizer[rank]` are the simulator's;
    `spans[pipeline, stage]` say when in a forward each unit has its turn (a backward goes the other way);
    `inside_sums[reduction]` and `inside_gathers[reduction]` is what the links inside nodes take for it at least;
    `local_messages[sender, receiver]` what a message between two ranks of a node takes. `rates[slot, network]`
    is what a node's NICs reach together, 10^9 bit/s.
    """

    scale: float
    dilation: float
    compute: Mapping[tuple[ActionKind, int, int], float]
    spans: Mapping[tuple[int, int], tuple[Span, ...]]
    optimizer: Mapping[int, float]
    inside_sums: Mapping[int, float] = field(default_factory=dict)
    inside_gathers: Mapping[int, float] = field(default_factory=dict)
    local_messages: Mapping[tuple[int, int], float] = field(default_factory=dict)
    rates: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def goodput_gbps(self, slot: str, network: str) -> float:
        """Return what a node's NICs of a network are to reach in the tunnel, 10^9 bit/s of contents."""
        return self.rates[slot, network] / self.scale / self.dilation

    def dilated(self, seconds: float) -> float:
        """Return how long the tunnel takes for what takes so many seconds on the cluster."""
        return seconds * self.dilation


def step_seconds_here(plan: Plan, prices: TimedPrices | None) -> float | None:
    """Return how long a step of a plan is expected to take here: in a wind tunnel longer than on the cluster."""
    seconds = plan.predicted.step_seconds
    return seconds if seconds is None or prices is None else prices.dilated(seconds)
