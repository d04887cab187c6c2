"""Buckets of gradients under the backward, and of parameters under the next forward: their traffic and when they start.

Buckets cut what a reduction owns in the order in which a backward finishes it, head first.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import pairwise

from holmes_hpc.architecture import Architecture
from holmes_hpc.planner.cost.network import NetworkCost, Traffic
from holmes_hpc.planner.layout.layout import Overlap
from holmes_hpc.planner.layout.ownership import element_count, stage_units
from holmes_hpc.planner.simulation.collectives import Bucket
from holmes_hpc.schedule.policies import Place
from holmes_hpc.values import Group, Pipeline, Reduction
from holmes_hpc.values.buckets import bucket_cuts
from holmes_hpc.values.owned import Owned

_BUCKET_ELEMENT_BYTES = 4
"""A bucket is as large as its setting says in float32, whatever its gradients are summed in."""
_MOST_BUCKETS = 34
"""Buckets of a reduction that are simulated; of more, those of one size are taken together (the last three are not)."""


class Buckets:
    """Makes the buckets of the reductions of one layout."""

    def __init__(self, architecture: Architecture, pipelines: Sequence[Pipeline], groups: Sequence[Group],
                 network: NetworkCost, overlap: Overlap, element_bytes: int, gradient_bytes: float) -> None:
        self.architecture, self.groups, self.network = architecture, groups, network
        self.overlap, self.element_bytes, self.gradient_bytes = overlap, element_bytes, gradient_bytes
        self.ranks = {(p, s): stage.ranks for p, pipeline in enumerate(pipelines)
                      for s, stage in enumerate(pipeline.stages)}
        self.places: dict[tuple[int, ...], list[Place]] = {}
        self.spans = {(p, s): unit_spans(architecture, stage_units(architecture, pipeline, s))
                      for p, pipeline in enumerate(pipelines) for s in range(len(pipeline.stages))}

    def reduced(self, reduction: Reduction) -> tuple[Bucket, ...]:
        """Return the buckets of gradients, in the order in which a backward finishes them."""
        size = self.gradient_bytes * element_count(self.architecture, reduction.owns)
        whole = self.network.summed(reduction, self.groups, size)
        return tuple(Bucket(traffic, self._ready(reduction, units))
                     for traffic, units in self._cut(reduction, whole))

    def gathered(self, reduction: Reduction) -> tuple[Bucket, ...]:
        """Return the buckets of parameters, in the order in which a forward uses them."""
        count = element_count(self.architecture, reduction.owns)
        whole = self.network.gathered(reduction, self.groups, self.element_bytes * count)
        cut = self._cut(reduction, whole)
        return tuple(Bucket(traffic, self._needed(reduction, units)) for traffic, units in reversed(cut))

    def _cut(self, reduction: Reduction, whole: Traffic) -> list[tuple[Traffic, set[str]]]:
        """Return the traffic of every bucket and the units of which it has something."""
        ends, total = [], 0
        for entry in reversed(reduction.owns):
            total += element_count(self.architecture, (entry,))
            ends.append((Owned.parse(entry).unit, total))
        size = max(round(self.overlap.bucket_mib * 2**20 / _BUCKET_ELEMENT_BYTES), -(-total // (_MOST_BUCKETS - 2)), 1)
        starts = [0, *(each for _, each in ends)]
        cut = []
        part = functools.cache(lambda share: Traffic(whole.seconds * share, whole.latency_seconds,
                                                     {key: seconds * share for key, seconds in whole.busy.items()}))
        for begin, end in pairwise(bucket_cuts(total, size)):
            units = {unit for (unit, stop), start in zip(ends, starts, strict=False) if start < end and stop > begin}
            cut.append((part((end - begin) / total), units))
        return cut

    def _places(self, reduction: Reduction) -> list[Place]:
        if reduction.owners not in self.places:
            owners = set(reduction.owners)
            self.places[reduction.owners] = [place for place, ranks in self.ranks.items()
                                             if not owners.isdisjoint(ranks)]
        return self.places[reduction.owners]

    def _ready(self, reduction: Reduction, units: set[str]) -> dict[Place, float]:
        """Return, by stage, after which fraction of its backward the gradients of some units are there."""
        return {place: max(1 - self.spans[place][unit][0] for unit in here)
                for place in self._places(reduction) if (here := units & self.spans[place].keys())}

    def _needed(self, reduction: Reduction, units: set[str]) -> dict[Place, float]:
        return {place: min(self.spans[place][unit][0] for unit in here)
                for place in self._places(reduction) if (here := units & self.spans[place].keys())}


def unit_spans(architecture: Architecture, units: Sequence[str]) -> Mapping[str, tuple[float, float]]:
    """Return which fractions of a stage's forward every unit takes, by its products; a tied table is used at both ends.

    The backward takes them the other way round.
    """
    tokens = architecture.sequence_length
    flops = [architecture.forward_flops(unit, tokens) for unit in units]
    total, done, spans = max(1, sum(flops)), 0, {}
    for unit, each in zip(units, flops, strict=True):
        spans[unit] = (done / total, (done + each) / total)
        done += each
    return spans
