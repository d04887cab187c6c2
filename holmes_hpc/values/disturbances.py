"""What is done to an emulated cluster on purpose, and in which steps: plain values, the same for all who act on them.

The emulated network applies those of its links, ranks those of their own compute, and the simulator prices both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

RATE, TRAFFIC, DELAY, LOSS, SLOWDOWN = "rate", "traffic", "delay", "loss", "slowdown"
ON_LINKS = (RATE, TRAFFIC, DELAY, LOSS)
"""Kinds that only an emulated network can have; a rank slows its own compute down."""

MOST_TRAFFIC = 0.95
"""The largest share of a link that other traffic may take, all of it together: without any a run never ends."""


@dataclass(frozen=True)
class Disturbance:
    """One of them, from `first_step` to `last_step` (None: to the end), both disturbed.

    `amount` is what is left of a rate, the share of a rate that other traffic takes, milliseconds of delay, the share
    of packets that is lost, or how many times as long compute takes. `nodes` are the slots whose NICs of the family
    `network` have another rate; `pairs` (sender, receiver) those between which traffic flows, or packets are late or
    lost; `ranks` those that compute slowly, as (slot, rank within the node). `words` say it without the steps.
    """

    kind: str
    amount: float
    first_step: int
    last_step: int | None
    words: str
    network: str = ""
    nodes: frozenset[str] = frozenset()
    pairs: tuple[tuple[str, str], ...] = ()
    ranks: frozenset[tuple[str, int]] = frozenset()
    jitter_ms: float = 0.0

    def acts_at(self, step: int) -> bool:
        """Return whether it acts in a step."""
        return self.first_step <= step and (self.last_step is None or step <= self.last_step)

    @property
    def touched(self) -> frozenset[str]:
        """The slots of the nodes that it changes, in themselves or in their links."""
        return self.nodes | {slot for pair in self.pairs for slot in pair} | {slot for slot, _ in self.ranks}


@dataclass(frozen=True)
class Phase:
    """Steps in a row in which the same disturbances act, maybe none; `last_step` is one of them."""

    first_step: int
    last_step: int
    acting: tuple[Disturbance, ...]

    @property
    def words(self) -> str:
        """What acts, for people."""
        return "; ".join(each.words for each in self.acting) or "undisturbed"

    @property
    def steps(self) -> str:
        """The steps, for people: `steps 6 to 10`."""
        return (f"step {self.first_step}" if self.first_step == self.last_step
                else f"steps {self.first_step} to {self.last_step}")


def acting_at(disturbances: Iterable[Disturbance], step: int) -> tuple[Disturbance, ...]:
    """Return those that act in a step."""
    return tuple(each for each in disturbances if each.acts_at(step))


def slowdown_of(acting: Iterable[Disturbance], slot: str, local_rank: int) -> float:
    """Return how many times as long the compute of a node's rank takes, where these act; 1: as ever."""
    factor = 1.0
    for each in acting:
        if each.kind == SLOWDOWN and (slot, local_rank) in each.ranks:
            factor *= each.amount
    return factor


def changes(disturbances: Iterable[Disturbance]) -> tuple[int, ...]:
    """Return the steps at whose start what acts becomes another."""
    found: set[int] = set()
    for each in disturbances:
        found |= {each.first_step} if each.last_step is None else {each.first_step, each.last_step + 1}
    return tuple(sorted(found))


def phases(disturbances: tuple[Disturbance, ...], steps: int) -> Iterator[Phase]:
    """Yield the phases of a run of so many steps, in order."""
    starts = sorted({1, *(step for step in changes(disturbances) if step <= steps)})
    for start, following in zip(starts, [*starts[1:], steps + 1], strict=True):
        yield Phase(start, following - 1, acting_at(disturbances, start))
