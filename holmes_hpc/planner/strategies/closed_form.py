"""The closed form of a step: how long pipelines pass their micro-batches, and what of the exchange shows.

Everything here is of many pipelines of one depth at once: arrays of pipelines times stages, or hops between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from holmes_hpc.planner.task import PlanSettings

Floats = NDArray[numpy.float64]

BACKWARD_SHARE = 2 / 3
"""Of a stage's forward and backward together."""
_MIB = 2.0**20
_MOST_BUCKETS = 34
_WINDOWS = frozenset((1, 2, 3, 5, 8, 12, 18, 27, 40))
"""Numbers of hops over which a round trip of micro-batches is looked at."""


@dataclass(frozen=True)
class Passing:
    """A step's compute takes `fill` and a `period` for every micro-batch of a pipeline."""

    period: Floats
    fill: Floats


@dataclass(frozen=True)
class Hops:
    """Seconds of a message between neighbouring stages, behind the others of its node: forth and back; and alone."""

    forward: Floats
    backward: Floats
    alone: Floats

    def both(self, extra_warmup: int | None) -> Floats:
        """There and back: without warm-up behind others; where warm-up and turns may help, alone."""
        return 2 * self.alone if extra_warmup is None else self.forward + self.backward


def passing(times: Floats, hops: Hops, microbatches: Floats, served: Floats | float = 1.0,
            extra: int | None = 0, nic: Floats | None = None) -> Passing:
    """Return how pipelines of 1F1B pass micro-batches.

    `times` are a stage's forward and backward of one micro-batch, `served` how many pipelines one rank of it serves,
    and `microbatches` about how many a pipeline takes. A stage that is always busy waits only for its first and last
    micro-batch. Neighbours wait for each other's messages: k + 1 stages pass k + 1 micro-batches in one round trip,
    and as many more as `extra` warm-up lets start; None: enough of them that no stage waits. `nic` is how long the
    busiest NIC is occupied for one micro-batch of every pipeline.
    """
    depth, both = times.shape[1], hops.both(extra)
    before = numpy.zeros_like(times)
    numpy.cumsum(times[:, :-1] + both, axis=1, out=before[:, 1:])
    after = (before[:, -1] + times[:, -1])[:, None] - before - times
    count = microbatches[:, None]
    may_start = numpy.arange(depth, 0, -1)[None, :] + (extra or 0)
    ahead = numpy.maximum(numpy.minimum(may_start, count) * served - 1, 0) * times
    first = numpy.maximum(0.0, after - (1 - BACKWARD_SHARE) * ahead)
    # A stage that may start all micro-batches at once waits a single time.
    idle = first + numpy.where(count > may_start, numpy.maximum(0.0, after - BACKWARD_SHARE * ahead), 0.0)
    periods, fills = [times * served], [before + idle]
    if nic is not None:
        periods.append(nic[:, None])
        fills.append(numpy.where(nic > 0, times.sum(axis=1), 0.0)[:, None])  # one that sends nothing bounds nothing
    if extra is not None and depth > 1 and both.any():
        for period, fill in _round_trips(times, both, before, idle, count, extra):
            periods.append(period)
            fills.append(fill)
    period, fill = numpy.concatenate(periods, axis=1), numpy.concatenate(fills, axis=1)
    longest = numpy.arange(len(times)), (count * period + fill).argmax(axis=1)
    return Passing(period[longest], fill[longest])


def _round_trips(times: Floats, both: Floats, before: Floats, idle: Floats, count: Floats,
                 extra: int) -> Iterator[tuple[Floats, Floats]]:
    """Yield period and fill of the round trips over one hop, two, and so on."""
    depth, longest = times.shape[1], times
    for hops in range(1, depth):
        longest = numpy.maximum(longest[:, :-1], times[:, hops:])
        if hops not in _WINDOWS and hops < depth - 1:
            continue
        round_trip = before[:, hops:] - before[:, :-hops] + times[:, hops:]
        started = hops + 1 + extra
        period, fill = round_trip / started, (started - 1) * longest
        few = count < started
        if few.any():
            # Fewer micro-batches than may start take one round trip, and the longest stage's time each.
            period, fill = numpy.where(few, longest, period), numpy.where(few, round_trip - longest, fill)
        yield period, fill + before[:, :-hops] + idle[:, hops:]


def exposed_sums(times: Floats, hops: Hops, sums: Floats, parts: Floats, shared: NDArray[numpy.bool_] | None = None,
                 *, overlapped: bool = True) -> Floats:
    """Return how long the gradients of stages are still summed when the first stage has ended its last backward.

    `sums` are the seconds of each stage's sum, of which the first of `parts` buckets starts under its last backward
    if that is `overlapped`. Later stages end theirs before the first one. `shared[:, i, j]` says that stages i and j
    share NICs: then their sums follow one another.
    """
    backward = BACKWARD_SHARE * times
    hidden = numpy.zeros_like(times)
    numpy.cumsum(backward[:, :-1] + hops.backward, axis=1, out=hidden[:, 1:])
    own = numpy.maximum(sums / parts, sums - backward * (1 - 1 / parts)) if overlapped else sums
    queued = 0.0 if shared is None else (numpy.triu(shared, 1) * sums[:, :, None]).sum(axis=1)
    ends = numpy.where(sums > 0, own + queued - hidden, 0.0)
    return numpy.maximum(0.0, ends.max(axis=1))


def exposed_gathers(times: Floats, hops: Hops, gathers: Floats, parts: Floats,
                    shared: NDArray[numpy.bool_] | None = None, *, overlapped: bool = True) -> Floats:
    """Return how long first forwards wait for parameters that are gathered from the start of the step on.

    Without overlap, they are gathered at its end. The arguments are as in `exposed_sums`.
    """
    whole = gathers if shared is None else (shared * gathers[:, :, None]).sum(axis=1)
    whole = numpy.where(gathers > 0, whole, 0.0)
    if not overlapped:
        return whole.max(axis=1)
    forward = (1 - BACKWARD_SHARE) * times
    hidden = numpy.zeros_like(times)
    numpy.cumsum(forward[:, :-1] + hops.forward, axis=1, out=hidden[:, 1:])
    waits = numpy.maximum(whole / parts, whole - forward * (1 - 1 / parts)) - hidden
    return numpy.maximum(0.0, numpy.where(gathers > 0, waits, 0.0).max(axis=1))


def extra_warmup(settings: PlanSettings) -> int | None:
    """Return the extra warm-up of the schedule; None where no stage waits for messages, or the search may see to that.

    A layout is first simulated without extra warm-up, which then takes away what its slow hops cost at first.
    """
    return settings.warmup_extra if settings.first_schedule().alternates else None


def bucket_counts(sizes: Floats, bucket_mib: float) -> Floats:
    """Return into how many buckets a rank's bytes of gradients are cut."""
    return numpy.clip(numpy.ceil(sizes / (bucket_mib * _MIB)), 1, _MOST_BUCKETS)
