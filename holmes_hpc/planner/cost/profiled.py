"""Seconds of units that were timed on the GPU itself, in the place of modelled ones.

Between and beyond the two timed sizes a micro-batch takes a straight line. What was not timed (a tensor degree, the
split of a backward into its two parts) is modelled, and stretched as the nearest timed case is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from holmes_hpc.cluster.profiled import units_of
from holmes_hpc.cluster.timed_units import LAYER, OPTIMIZER, ProfiledUnit
from holmes_hpc.planner.cost.micro_batch import MicroBatch, Seconds

Modelled = Callable[[MicroBatch], Seconds]


@functools.lru_cache(maxsize=65536)
def timed_seconds(batch: MicroBatch, unit: str, modelled: Modelled) -> Seconds | None:
    """Return the seconds of a unit as it was timed; None where it was not."""
    own = [each for each in units_of(batch.gpu, batch.architecture, batch.precision) if each.unit == unit]
    if not own:
        return None
    at = min({each.tensor for each in own}, key=lambda tensor: (abs(tensor - batch.tensor), tensor))
    timed = sorted((each for each in own if each.tensor == at), key=lambda each: each.samples)
    plain = replace(batch, tensor=at, recompute="none", sequence_parallel=False)
    forward, backward = (_at(timed, batch.samples, seconds) for seconds in (_forward, _backward))
    there, here = modelled(plain), modelled(batch)
    faster, slower = forward / there.forward, backward / (there.backward_input + there.backward_weight)
    again = here.again * (faster if batch.recompute == "full" or unit != LAYER else slower)
    return replace(here, forward=here.forward * faster, backward_input=here.backward_input * slower,
                   backward_weight=here.backward_weight * slower, again=again, forward_launch=0.0, backward_launch=0.0)


def timed_optimizer_seconds(batch: MicroBatch) -> float | None:
    """Return the seconds of an optimizer's step for each parameter as it was timed; None where it was not."""
    return next((each.forward_seconds for each in units_of(batch.gpu, batch.architecture, batch.precision)
                 if each.unit == OPTIMIZER), None)


def _forward(unit: ProfiledUnit) -> float:
    return unit.forward_seconds


def _backward(unit: ProfiledUnit) -> float:
    return unit.backward_seconds


def _at(timed: Sequence[ProfiledUnit], samples: int, seconds: Callable[[ProfiledUnit], float]) -> float:
    """Return the seconds of a micro-batch of `samples`: on the line through the smallest and the largest timed one."""
    small, large = timed[0], timed[-1]
    if small.samples == large.samples:
        return seconds(small) * samples / small.samples
    slope = max(0.0, (seconds(large) - seconds(small)) / (large.samples - small.samples))
    least = seconds(small) * min(1.0, samples / small.samples)
    return max(least, seconds(small) + slope * (samples - small.samples))
