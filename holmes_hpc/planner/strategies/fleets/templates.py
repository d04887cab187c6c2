"""Templates: what one pipeline may look like in counts of kinds, each with its layers, its period and its fill.

A template says of every stage its kind of node and its tensor-parallel degree. Stages of one kind stand together,
since time does not depend on the order inside a pipeline but for the ends, and every further border costs a hop. All
templates of one depth are priced at once with numpy: the layer cut is a bisection on the longest stage.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from holmes_hpc.planner.layout.node_kinds import Kind
from holmes_hpc.planner.strategies.fleets.stage_table import StagePricing

Segment = tuple[int, int, int]
"""Stages that follow one another: (index of the kind, tensor-parallel degree, number of stages)."""

BACKWARD_SHARE = 2 / 3
"""Of a stage's forward and backward together."""
_MOST_TEMPLATES = 3_000
_COUNTS = ((1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
           (1, 2, 3, 4, 6, 8, 16), (1, 2, 4, 8), (1, 2, 4), (1, 2), (1,))
"""Numbers of stages of a segment that are tried, fewer where there are many kinds."""


@dataclass(frozen=True)
class Template:
    """A priced template. `period` is the longest stage's forward and backward, `work` all stages' together.

    `hops` is what a micro-batch spends between stages, there and back, and a tied table between the ends of the
    pipeline; `layers` is the cut.
    """

    segments: tuple[Segment, ...]
    layers: tuple[int, ...]
    period: float
    work: float
    hops: float

    def __hash__(self) -> int:
        return hash(self.segments)  # which alone tell templates of one search apart; the rest takes long

    @property
    def depth(self) -> int:
        """The number of stages."""
        return len(self.layers)

    @property
    def fill(self) -> float:
        """Seconds of a step beside one period for every micro-batch."""
        return self.work - self.period + self.hops

    def gpus(self, kinds: int) -> tuple[int, ...]:
        """Return how many GPUs of each kind one pipeline takes."""
        taken = [0] * kinds
        for kind, tensor, count in self.segments:
            taken[kind] += tensor * count
        return tuple(taken)


def enumerate_segments(kinds: Sequence[Kind], degrees: Sequence[Sequence[int]], num_layers: int,
                       depth: int | None) -> list[tuple[Segment, ...]]:
    """Return the segments of every template, shallow pipelines first, at most a few thousand.

    `degrees` are the tensor-parallel degrees of each kind. Where there are too many templates, numbers of stages are
    thinned out evenly, never whole kinds.
    """
    orders = kind_orders(len(kinds))
    for counts in _COUNTS:
        options = [_options(k, kind, degrees[k], num_layers, counts) for k, kind in enumerate(kinds)]
        total = sum(_product(len(options[k]) for k in order) for order in orders)
        if total <= _MOST_TEMPLATES:
            break
    found = [segments for order in orders for segments in itertools.product(*(options[k] for k in order))]
    found = [segments for segments in found if _depth(segments) <= num_layers and depth in (None, _depth(segments))]
    found += [segments for k, kind in enumerate(kinds)
              for segments in _mixed_degrees(k, kind, degrees[k], num_layers) if depth in (None, _depth(segments))]
    return sorted(dict.fromkeys(found), key=lambda segments: (_depth(segments), segments))[:2 * _MOST_TEMPLATES]


def price_templates(pricing: StagePricing, kinds: Sequence[Kind], segments: Sequence[tuple[Segment, ...]],
                    num_layers: int, samples: int,
                    shared_by: Callable[[tuple[Segment, ...]], Sequence[int]] | None = None) -> list[Template]:
    """Return the priced templates that fit into memory, in the order given.

    `shared_by` says of each template by how many ranks the optimizer's state of each stage is shared, by default by
    one.
    """
    priced: dict[tuple[Segment, ...], Template] = {}
    by_depth = itertools.groupby(sorted(segments, key=_depth), key=_depth)
    table = StageTable(pricing, kinds, samples)
    for depth, group in by_depth:
        for template in _price_depth(table, list(group), depth, num_layers, shared_by):
            priced[template.segments] = template
    return [priced[each] for each in segments if each in priced]


class StageTable:
    """Prices by (kind, degree), looked up once."""

    def __init__(self, pricing: StagePricing, kinds: Sequence[Kind], samples: int) -> None:
        self.pricing, self.kinds, self.samples = pricing, kinds, samples
        self.rows: dict[tuple[int, int, bool, bool], tuple[float, ...]] = {}
        self.borders: dict[tuple[Segment, Segment], tuple[float, float]] = {}
        self.ties: dict[tuple[int, int], float] = {}

    def row(self, kind: int, tensor: int, first: bool, last: bool) -> tuple[float, ...]:
        """Return the seconds of a layer and of the ends, then bytes.

        Of a layer: whole, divided and kept; free for layers and what the ends keep; of the ends: divided and kept.
        """
        key = (kind, tensor, first, last)
        if key not in self.rows:
            pricing, node, samples = self.pricing, self.kinds[kind], self.samples
            layer = pricing.layer_bytes(node, tensor, samples)
            end = pricing.end_bytes(node, tensor, samples, first=first, last=last)
            self.rows[key] = (pricing.layer_seconds(node, tensor, samples),
                              pricing.end_seconds(node, tensor, samples, first=first, last=last),
                              layer.whole, layer.divided, layer.kept, pricing.free_bytes(node) - end.whole,
                              end.divided, end.kept)
        return self.rows[key]

    def hops(self, segments: tuple[Segment, ...]) -> tuple[float, float]:
        """Return what a micro-batch spends between stages, both ways, and how long it occupies the busiest NIC.

        Every receiving rank gets the whole activation, so wide tensor groups fill a NIC more. All stages at a border
        that are in a node share its NIC: as many as its GPUs form, spread over the segment's stages.
        """
        total = busiest = 0.0
        for border in itertools.pairwise(segments):
            if border not in self.borders:
                self.borders[border] = self._border(*border)
            both_ways, busy = self.borders[border]
            total += both_ways
            busiest = max(busiest, busy)
        return total, busiest

    def tied(self, segments: tuple[Segment, ...]) -> float:
        """Return how long the tied table is summed between a first and a last stage in unlike fabrics."""
        ends = segments[0][0], segments[-1][0]
        if ends not in self.ties:
            first, last = (self.kinds[k] for k in ends)
            size = self.pricing.tied_gradient_bytes() if first.fabric != last.fabric else 0.0
            self.ties[ends] = size * self.pricing.sync_seconds_a_byte((first, last), (
                len(first.nodes), len(last.nodes))) if size else 0.0
        return self.ties[ends]

    def _border(self, before: Segment, after: Segment) -> tuple[float, float]:
        a, b = self.kinds[before[0]], self.kinds[after[0]]
        hop = self.pricing.hop(a, b, self.samples)
        copies = max(before[1], after[1])
        crowd = max(1.0, a.gpus / (before[1] * before[2]), b.gpus / (after[1] * after[2]))
        return 2 * max(hop.seconds, copies * hop.node_seconds), crowd * copies * hop.node_seconds


def _price_depth(table: StageTable, group: list[tuple[Segment, ...]], depth: int, num_layers: int,
                 shared_by: Callable[[tuple[Segment, ...]], Sequence[int]] | None) -> Iterator[Template]:
    rows = numpy.array([stage_rows(table, segments) for segments in group])
    count = numpy.array([shared_by(segments) for segments in group]) if shared_by else numpy.ones((1, 1))
    in_flight = numpy.arange(depth, 0, -1, dtype=float)[None, :]
    layer, end = rows[:, :, 0], rows[:, :, 1]
    caps = numpy.clip(room(rows, count, in_flight), 0, num_layers)
    layers, good = cut_layers(layer, end, caps, num_layers)
    times = layers * layer + end
    cuts, longest, work = layers.astype(int).tolist(), times.max(axis=1).tolist(), times.sum(axis=1).tolist()
    for i in numpy.flatnonzero(good).tolist():
        hops, busiest = table.hops(group[i])
        yield Template(group[i], tuple(cuts[i]), max(longest[i], busiest), work[i],
                       hops + table.tied(group[i]))


def room(rows: NDArray[numpy.float64], shared_by: NDArray[numpy.float64],
         in_flight: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """Return how many layers fit into stages, negative where not even the ends do.

    `rows` are those of `StageTable.row` along the last axis; `shared_by` is how many ranks share the optimizer's
    state, and `in_flight` how many micro-batches are kept.
    """
    whole, divided, kept, free, end_divided, end_kept = (rows[..., i] for i in range(2, 8))
    return numpy.floor((free - end_divided / shared_by - in_flight * end_kept)
                       / (whole + divided / shared_by + in_flight * kept))


def stage_rows(table: StageTable, segments: tuple[Segment, ...]) -> list[tuple[float, ...]]:
    """Return the rows of `StageTable.row` of a template's stages."""
    rows = table.rows
    return [rows.get(key) or table.row(*key) for key in _stage_keys(segments)]


@functools.lru_cache(maxsize=2**16)
def _stage_keys(segments: tuple[Segment, ...]) -> tuple[tuple[int, int, bool, bool], ...]:
    """Return kind, degree, and whether it is the first and the last one of a template's stages."""
    stages = [(kind, tensor) for kind, tensor, count in segments for _ in range(count)]
    return tuple((*stage, s == 0, s == len(stages) - 1) for s, stage in enumerate(stages))


def cut_layers(layer: NDArray[numpy.float64], end: NDArray[numpy.float64], caps: NDArray[numpy.float64],
               num_layers: int) -> tuple[NDArray[numpy.float64], NDArray[numpy.bool_]]:
    """Return the layers of every stage (rows: pipelines) and which rows are possible: the longest stage is least.

    `layer` and `end` are a stage's seconds for each layer and without layers, `caps` the most layers it holds.
    """
    good = (caps.min(axis=1) >= 1) & (caps.sum(axis=1) >= num_layers) & (layer.shape[1] <= num_layers)
    # No cut is shorter than one of fractions of layers; from its floor on, each layer goes where it ends earliest.
    level = (num_layers + (end / layer).sum(axis=1)) / (1 / layer).sum(axis=1)
    most = numpy.maximum(caps, 1)
    layers = numpy.clip(numpy.floor((level[:, None] - end) / layer + 1e-9), 1, most)
    rows = numpy.arange(len(layers))
    missing = numpy.where(good, num_layers - layers.sum(axis=1), 0)
    while (missing > 0).any():
        after = numpy.where(layers < most, (layers + 1) * layer + end, numpy.inf)
        some = missing > 0
        layers[rows[some], after.argmin(axis=1)[some]] += 1
        missing[some] -= 1
    while (missing < 0).any():
        times = numpy.where(layers > 1, layers * layer + end, -1.0)
        some = missing < 0
        layers[rows[some], times.argmax(axis=1)[some]] -= 1
        missing[some] += 1
    return layers, good


def kind_orders(kinds: int) -> list[tuple[int, ...]]:
    """Return the orders of the kinds that a pipeline may use; of many kinds only large sets and single ones."""
    if kinds <= 3:
        return [order for size in range(1, kinds + 1) for order in itertools.permutations(range(kinds), size)]
    sizes = range(1, kinds + 1) if kinds <= 4 else (1, 2, kinds - 1, kinds)
    chosen = [subset for size in sizes for subset in itertools.combinations(range(kinds), size)]
    return [order for subset in chosen for order in dict.fromkeys((subset, subset[::-1]))]


def _options(k: int, kind: Kind, degrees: Sequence[int], num_layers: int, counts: Sequence[int]) -> list[Segment]:
    return [(k, tensor, count) for tensor in degrees for count in counts
            if tensor * count <= kind.total_gpus and count <= num_layers]


def _mixed_degrees(k: int, kind: Kind, degrees: Sequence[int], num_layers: int) -> Iterator[tuple[Segment, ...]]:
    """Yield pipelines on one kind with two degrees, wide stages first or last: four and two and two of eight GPUs."""
    for wide, narrow in itertools.permutations(degrees, 2):
        for a, b in itertools.product((1, 2, 3), (1, 2, 3, 4)):
            if a * wide + b * narrow <= min(kind.total_gpus, 2 * kind.gpus) and a + b <= num_layers:
                yield (k, wide, a), (k, narrow, b)


def _depth(segments: Sequence[Segment]) -> int:
    return sum(count for _, _, count in segments)


def _product(numbers: Iterator[int]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result
