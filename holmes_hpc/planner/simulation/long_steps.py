"""Long steps repeat themselves: two shortened ones tell how long all further micro-batches take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holmes_hpc.values import Pipeline, ScheduleChoice

PERIOD = 16
"""Micro-batches by which two shortened steps of alike pipelines differ."""
MOST_ACTIONS = 150_000
"""Actions of a step of pipelines with unlike counts of micro-batches, above which it is shortened as well."""
ACTIONS_A_MICROBATCH = 6
_ACTIONS_BETWEEN = 25_000
"""Actions by which two shortened steps of such pipelines differ."""
_LEAST_BETWEEN = 16
"""Micro-batches, at least, by which such steps differ in every pipeline."""


@dataclass(frozen=True)
class Shortened:
    """Two steps that are simulated for a longer one: micro-batches of a pipeline by those that it has in the long one.

    The long one takes as long as the second, and `periods` times what the second takes longer than the first.
    """

    first: Mapping[int, int]
    second: Mapping[int, int]

    @property
    def periods(self) -> float:
        """How often the difference of both is missing in the second, by the pipelines of most micro-batches."""
        return self.periods_of(max(self.first))

    def periods_of(self, count: int) -> float:
        """Return the same by the pipelines of so many micro-batches: the shares of pipelines are rounded."""
        return (count - self.second[count]) / (self.second[count] - self.first[count])


def shortened(pipelines: Sequence[Pipeline], choice: ScheduleChoice) -> Shortened | None:
    """Return what to simulate for a step of these pipelines; None where that is the step itself."""
    counts = sorted({pipeline.microbatches for pipeline in pipelines})
    depth = max(len(pipeline.stages) for pipeline in pipelines)
    # Interleaved pipelines repeat themselves after as many micro-batches as they have ranks.
    ranks = depth // choice.chunks if choice.chunks > 1 else 1
    filled = 2 * (depth + choice.warmup_extra * depth)
    if choice.kind.keeps:
        return None
    if len(counts) > 1:
        return _in_proportion(counts, actions_of(pipelines), filled, ranks)
    count = counts[0]
    period = PERIOD + -PERIOD % ranks
    short = filled + period
    short += (count - short) % ranks
    if count < 2 * (short + period):
        return None
    return Shortened({count: short}, {count: short + period})


def actions_of(pipelines: Sequence[Pipeline]) -> int:
    """Return about how many actions a step of these pipelines has."""
    return sum(ACTIONS_A_MICROBATCH * pipeline.microbatches * sum(len(stage.ranks) for stage in pipeline.stages)
               for pipeline in pipelines)


def _in_proportion(counts: Sequence[int], actions: int, filled: int, ranks: int) -> Shortened | None:
    """Return steps of which all pipelines have the same share of their micro-batches, and enough to be filled.

    Where the share of the least ones would be rounded too much, or be large, the step is not shortened.
    """
    share = max(_ACTIONS_BETWEEN / actions, max(filled, _LEAST_BETWEEN * ranks) / counts[0])
    if actions <= MOST_ACTIONS or share > _ACTIONS_BETWEEN / MOST_ACTIONS:
        return None
    first, second = {}, {}
    for count in counts:
        more = ranks * round(share * count / ranks)
        first[count] = more + (count - more) % ranks
        second[count] = first[count] + more
    return Shortened(first, second)
