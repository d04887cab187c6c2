"""Fleets: which pipelines together make a step shortest, by bisection on the step time and an unbounded knapsack.

In a step of T seconds a pipeline of period P and fill F passes floor((T - F) / P) micro-batches; so the question is
whether GPUs of each kind, cut into templates, pass all micro-batches of a batch in T. Gradient sync is counted into
the fill, as if all other pipelines were alike; the exact price comes later from the simulation.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from holmes_hpc.planner.layout.node_kinds import Kind
from holmes_hpc.planner.strategies.fleets.templates import Template

_MOST_STATES = 1500
_BISECTIONS = 11
_NEVER = -(2**40)


@dataclass(frozen=True)
class Fleet:
    """Pipelines with their micro-batches, like ones together, and the closed form's word on the step."""

    pipelines: tuple[tuple[Template, int], ...]
    seconds: float

    def gpus(self, kinds: int) -> tuple[int, ...]:
        """Return how many GPUs of each kind the fleet takes."""
        taken = [template.gpus(kinds) for template, _ in self.pipelines]
        return tuple(map(sum, zip(*taken, strict=True)))


def share_microbatches(templates: Sequence[Template], syncs: Sequence[float], microbatches: int) -> Fleet | None:
    """Return the fleet of these pipelines with the micro-batches shared so that the last one ends earliest.

    None when there are fewer micro-batches than pipelines.
    """
    if microbatches < len(templates):
        return None
    most = _level(templates, syncs, microbatches)
    counts = [max(1, most_of) for most_of in most]
    ends = [(template.fill + sync + (count + 1) * template.period, i)
            for i, (template, sync, count) in enumerate(zip(templates, syncs, counts, strict=True))]
    heapq.heapify(ends)
    for _ in range(microbatches - sum(counts)):
        _, i = heapq.heappop(ends)
        counts[i] += 1
        heapq.heappush(ends, (templates[i].fill + syncs[i] + (counts[i] + 1) * templates[i].period, i))
    while sum(counts) > microbatches:
        i = max((i for i in range(len(counts)) if counts[i] > 1),
                key=lambda i: (templates[i].fill + syncs[i] + counts[i] * templates[i].period, i))
        counts[i] -= 1
    seconds = max(template.fill + sync + count * template.period
                  for template, sync, count in zip(templates, syncs, counts, strict=True))
    return Fleet(tuple(zip(templates, counts, strict=True)), seconds)


def _level(templates: Sequence[Template], syncs: Sequence[float], microbatches: int) -> list[int]:
    """Return counts that are reached by a common end time, a little too early for all micro-batches."""
    rate = sum(1 / template.period for template in templates)
    offset = sum((template.fill + sync) / template.period for template, sync in zip(templates, syncs, strict=True))
    end = (microbatches - len(templates) + offset) / rate
    return [max(0, math.floor((end - template.fill - sync) / template.period))
            for template, sync in zip(templates, syncs, strict=True)]


class Knapsack:
    """The best fleets out of some templates on some kinds of nodes."""

    def __init__(self, kinds: Sequence[Kind], templates: Sequence[Template], syncs: Sequence[float],
                 microbatches: int) -> None:
        self.kinds, self.microbatches = kinds, microbatches
        self.granules = _granules(kinds)
        self.limits = tuple(kind.total_gpus // granule for kind, granule in zip(kinds, self.granules, strict=True))
        bundle = functools.cache(self._bundle)
        bundles = [bundle(template.gpus(len(kinds))) for template in templates]
        kept = [i for i, bundle in enumerate(bundles) if bundle is not None]
        self.templates = [templates[i] for i in kept]
        self.syncs = [syncs[i] for i in kept]
        chosen = [bundle for bundle in bundles if bundle is not None]
        self.copies = numpy.array([copies for copies, _ in chosen], dtype=numpy.int64)
        self.weights = list(dict.fromkeys(weight for _, weight in chosen))
        places = {weight: i for i, weight in enumerate(self.weights)}
        self.group = numpy.array([places[weight] for _, weight in chosen], dtype=numpy.int64)
        self.fill = numpy.array([t.fill + s for t, s in zip(self.templates, self.syncs, strict=True)])
        self.period = numpy.array([t.period for t in self.templates])
        self.moves = list(self._moves())

    def fleets(self, seconds: float, *, may_idle: bool) -> Iterator[Fleet]:
        """Yield the best fleet on all nodes and, where nodes may be left out, the best on any number of nodes.

        `seconds` is a step time known to be reached by something; fleets slower than twice that are not looked for.
        """
        if not self.templates:
            return
        full = tuple(slice(limit, limit + 1) for limit in self.limits)
        targets = [full]
        if may_idle:
            steps = [max(1, kind.gpus // granule) for kind, granule in zip(self.kinds, self.granules, strict=True)]
            targets.append(tuple(slice(limit % step, None, step) for limit, step in
                                 zip(self.limits, steps, strict=True)))
        for target in targets:
            fleet = self._bisect(target, 2 * seconds)
            if fleet is not None:
                yield fleet

    def _bundle(self, taken: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
        """Return the fewest copies of a template of so many GPUs that take whole granules, and those granules."""
        copies = math.lcm(*(granule // math.gcd(granule, gpus)
                            for granule, gpus in zip(self.granules, taken, strict=True)))
        weight = tuple(copies * gpus // granule for granule, gpus in zip(self.granules, taken, strict=True))
        fits = all(each <= limit for each, limit in zip(weight, self.limits, strict=True))
        return (copies, weight) if fits and copies <= self.microbatches else None

    def _moves(self) -> Iterator[tuple[int, int, tuple[slice, ...], tuple[slice, ...]]]:
        """Yield what the table is filled by: a weight, how many bundles of it, and the parts of the table to and from.

        One, two, four ... bundles at a time make every number of them.
        """
        for i, weight in enumerate(self.weights):
            copies = 1
            while all(each <= limit for each, limit in zip(weight, self.limits, strict=True)):
                yield (i, copies, tuple(slice(each, None) for each in weight),
                       tuple(slice(None, limit + 1 - each) for each, limit in zip(weight, self.limits, strict=True)))
                weight, copies = tuple(2 * each for each in weight), 2 * copies

    def _bisect(self, target: tuple[slice, ...], high: float) -> Fleet | None:
        low = 0.0
        best: tuple[float, NDArray[numpy.int64]] | None = None
        for _ in range(_BISECTIONS):
            middle = high if best is None else (low + high) / 2
            table = self._table(middle)
            if table[target].max() >= self.microbatches:
                high, best = middle, (middle, table)
            elif best is None:
                return None
            else:
                low = middle
        return None if best is None else self._fleet(target, *best)

    def _values(self, seconds: float) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
        each = numpy.floor((seconds - self.fill) / self.period).astype(numpy.int64)
        each = numpy.where(each >= 1, each * self.copies, _NEVER)
        best = numpy.full(len(self.weights), _NEVER, dtype=numpy.int64)
        numpy.maximum.at(best, self.group, each)
        return each, best

    def _table(self, seconds: float) -> NDArray[numpy.int64]:
        """Return the most micro-batches for every number of granules that is taken exactly."""
        _, best = self._values(seconds)
        table = numpy.full([limit + 1 for limit in self.limits], _NEVER, dtype=numpy.int64)
        table[(0,) * len(self.limits)] = 0
        values = best.tolist()
        for i, copies, into, out in self.moves:
            if values[i] > 0:
                target = table[into]
                numpy.maximum(target, table[out] + copies * values[i], out=target)
        return table

    def _fleet(self, target: tuple[slice, ...], seconds: float, table: NDArray[numpy.int64]) -> Fleet | None:
        values, best = self._values(seconds)
        part = table[target]
        place = numpy.unravel_index(int(part.argmax()), part.shape)
        state = tuple(range(limit + 1)[each][int(at)] for limit, each, at in
                      zip(self.limits, target, place, strict=True))
        chosen: Counter[int] = Counter()
        while any(state):
            for i in numpy.flatnonzero(best > 0):
                before = tuple(a - b for a, b in zip(state, self.weights[i], strict=True))
                if min(before) >= 0 and table[before] + best[i] == table[state]:
                    chosen[int(numpy.flatnonzero((self.group == i) & (values == best[i]))[0])] += 1
                    state = before
                    break
            else:
                return None
        indices = [i for i in sorted(chosen) for _ in range(chosen[i] * int(self.copies[i]))]
        return share_microbatches([self.templates[i] for i in indices], [self.syncs[i] for i in indices],
                                  self.microbatches)


def _granules(kinds: Sequence[Kind]) -> tuple[int, ...]:
    """Return in what numbers GPUs of each kind are counted: single ones, or more where there would be many states."""
    granules = [1] * len(kinds)
    choices = [[n for n in range(1, kind.total_gpus + 1) if kind.total_gpus % n == 0
                and (kind.gpus % n == 0 or n % kind.gpus == 0)] for kind in kinds]
    def states() -> int:
        return math.prod(kind.total_gpus // granule + 1 for kind, granule in zip(kinds, granules, strict=True))

    while states() > _MOST_STATES:
        widest = max(range(len(kinds)), key=lambda k: (kinds[k].total_gpus // granules[k], -k))
        larger = [n for n in choices[widest] if n > granules[widest]]
        if not larger:
            break
        granules[widest] = larger[0]
    return tuple(granules)


def alike_fleets(kinds: Sequence[Kind], templates: Sequence[Template], syncs: Sequence[float], microbatches: int, *,
                 may_idle: bool) -> Iterator[Fleet]:
    """Yield fleets of one template each: as many copies as there is room for, or fewer on fewer whole nodes."""
    totals, of_node = [kind.total_gpus for kind in kinds], [kind.gpus for kind in kinds]
    for template, sync in zip(templates, syncs, strict=True):
        taken = template.gpus(len(kinds))
        most = min([microbatches, *[total // gpus for total, gpus in zip(totals, taken, strict=True) if gpus]])
        for copies in _copies(most) if may_idle else (most,):  # fewer would leave nodes idle
            left = [total - copies * gpus for total, gpus in zip(totals, taken, strict=True)]
            if any(left) and not (may_idle and not any(map(operator.mod, left, of_node))):
                continue
            share = -(-microbatches // copies)
            yield Fleet(((template, share),) * copies, template.fill + sync * (copies > 1) + share * template.period)


def _copies(most: int) -> Iterator[int]:
    """Yield the number of copies, then fewer: halves."""
    yield from itertools.takewhile(lambda n: n >= 1, (most >> i for i in range(most.bit_length())))
