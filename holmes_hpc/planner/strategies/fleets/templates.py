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

from holmes_hpc.planner.layout.node_kinds import Kind
from holmes_hpc.planner.strategies.closed_form import Floats, Hops, passing
from holmes_hpc.planner.strategies.layer_split import cut_layers
from holmes_hpc.planner.strategies.memory import room
from holmes_hpc.planner.strategies.stage_table import StageCosts, StageTable

Segment = tuple[int, int, int]
"""Stages that follow one another: (index of the kind, tensor-parallel degree, number of stages)."""

_MOST_TEMPLATES = 3_000
_COUNTS = ((1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
           (1, 2, 3, 4, 6, 8, 16), (1, 2, 4, 8), (1, 2, 4), (1, 2), (1,))
"""Numbers of stages of a segment that are tried, fewer where there are many kinds."""
FEW_KINDS = 4
"""Kinds up to which every combination of their numbers of stages is looked at."""
_FEW_PAIRED = 6
"""Unlike kinds up to which each pair of them is looked at; of more, neighbours."""
_FEWEST_OF_ORDER = 36
"""Templates of an order of kinds, at least, however many orders there are."""
_PIPELINES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of like pipelines for which kinds are divided into stages."""


_KIND_SHIFT = 24
"""Bits for a tensor-parallel degree and for both ends in a stage's number."""


@dataclass(frozen=True)
class Template:
    """A priced template: a step takes `fill` and one `period` for every micro-batch, before sums.

    `work` is all stages' forward and backward of one micro-batch; a tied table between the ends of the pipeline is in
    the fill; `layers` is the cut.
    """

    segments: tuple[Segment, ...]
    layers: tuple[int, ...]
    period: float
    fill: float
    work: float

    def __hash__(self) -> int:
        return hash(self.segments)  # which alone tell templates of one search apart; the rest takes long

    @property
    def depth(self) -> int:
        """The number of stages."""
        return len(self.layers)

    def gpus(self, kinds: int) -> tuple[int, ...]:
        """Return how many GPUs of each kind one pipeline takes."""
        taken = [0] * kinds
        for kind, tensor, count in self.segments:
            taken[kind] += tensor * count
        return tuple(taken)


def enumerate_segments(kinds: Sequence[Kind], degrees: Sequence[Sequence[int]], num_layers: int,
                       depth: int | None, like: Sequence[int] | None = None) -> list[tuple[Segment, ...]]:
    """Return the segments of every template, shallow pipelines first, at most a few thousand.

    `degrees` are the tensor-parallel degrees of each kind, `like` says of each which one it is like
    (`node_kinds.alike_kinds`). Where there are too many templates, numbers of stages are thinned out evenly, never
    whole kinds; of more than a few kinds like ones get like stages, and unlike ones stages for about as many pipelines.
    """
    like = like or range(len(kinds))
    orders = kind_orders(len(kinds), like)
    if len(kinds) <= FEW_KINDS:
        for counts in _COUNTS:
            options = [_options(k, kind, degrees[k], num_layers, counts) for k, kind in enumerate(kinds)]
            total = sum(_product(len(options[k]) for k in order) for order in orders)
            if total <= _MOST_TEMPLATES:
                break
        found = [segments for order in orders for segments in itertools.product(*(options[k] for k in order))]
    else:
        most = max(_FEWEST_OF_ORDER, _MOST_TEMPLATES // len(orders))
        found = [segments for order in orders
                 for segments in _of_many(order, kinds, degrees, num_layers, like, most)]
    found += [segments for k, kind in enumerate(kinds)
              for segments in _mixed_degrees(k, kind, degrees[k], num_layers)]
    ordered = sorted((_depth(segments), segments) for segments in dict.fromkeys(found))
    return [segments for own, segments in ordered if own <= num_layers and depth in (None, own)][:2 * _MOST_TEMPLATES]


def _of_many(order: Sequence[int], kinds: Sequence[Kind], degrees: Sequence[Sequence[int]], num_layers: int,
             like: Sequence[int], most: int) -> Iterator[tuple[Segment, ...]]:
    """Yield segments through some of many kinds, at most about `most`: like kinds have like ones."""
    models = list(dict.fromkeys(like[k] for k in order))
    for counts in _COUNTS:
        options = {k: _options(k, kinds[k], degrees[k], num_layers, counts) for k in models}
        if _product(len(each) for each in options.values()) <= most:
            for chosen in itertools.product(*options.values()):
                of_model = dict(zip(models, chosen, strict=True))
                yield tuple((k, *of_model[like[k]][1:]) for k in order)
            return
    yield from itertools.islice(balanced(order, kinds, degrees), most)


def balanced(order: Sequence[int], kinds: Sequence[Kind], degrees: Sequence[Sequence[int]]
             ) -> Iterator[tuple[Segment, ...]]:
    """Yield segments through kinds that serve about equally many pipelines, with one tensor degree wherever it fits."""
    for tensor in sorted({degree for k in order for degree in degrees[k]}):
        widths = {k: max(degree for degree in degrees[k] if degree <= tensor or degree == degrees[k][0]) for k in order}
        for copies in _PIPELINES:
            if copies <= min(kinds[k].total_gpus // widths[k] for k in order):
                yield tuple((k, widths[k], max(1, round(kinds[k].total_gpus / (widths[k] * copies)))) for k in order)


@dataclass(frozen=True)
class Batch:
    """What templates are priced for: micro-batches of `samples`, how many in a step, and the schedule's warm-up.

    `sharers` says of a template by how many ranks the optimizer's state of its stages is shared, which is how many
    pipelines are like it.
    """

    samples: int
    microbatches: int
    extra_warmup: int | None = 0
    sharers: Callable[[tuple[Segment, ...]], Sequence[int]] | None = None


def price_templates(stage_costs: StageCosts, kinds: Sequence[Kind], segments: Sequence[tuple[Segment, ...]],
                    num_layers: int, batch: Batch) -> list[Template]:
    """Return the priced templates that fit into memory, in the order given."""
    priced: dict[tuple[Segment, ...], Template] = {}
    by_depth: dict[int, list[tuple[Segment, ...]]] = {}
    for each in segments:
        by_depth.setdefault(_depth(each), []).append(each)
    table = TemplateTable(stage_costs, kinds, batch.samples)
    for depth, group in by_depth.items():
        for template in _price_depth(table, group, depth, num_layers, batch):
            priced[template.segments] = template
    return [priced[each] for each in segments if each in priced]


class TemplateTable(StageTable):
    """Prices by stage, and of the hops and ends of templates, each once."""

    def __init__(self, stage_costs: StageCosts, kinds: Sequence[Kind], samples: int) -> None:
        super().__init__(stage_costs, kinds, samples)
        self.borders: dict[tuple[Segment, Segment], tuple[float, float, float, float]] = {}
        self.ties: dict[tuple[int, int], float] = {}

    def hops(self, group: Sequence[tuple[Segment, ...]], depth: int) -> tuple[Hops, Floats]:
        """Return the seconds of a message over each hop of templates of one depth, and how long a NIC is busy.

        Every receiving rank gets the whole activation, so wide tensor groups fill a NIC more. All stages at a border
        that are in a node share its NIC: as many as its GPUs form, spread over the segment's stages.
        """
        found = numpy.zeros((4, len(group), depth - 1))
        places: list[tuple[int, int]] = []
        values: list[tuple[float, float, float, float]] = []
        for i, segments in enumerate(group):
            at = -1
            for border in itertools.pairwise(segments):
                at += border[0][2]
                known = self.borders.get(border)
                if known is None:
                    known = self.borders[border] = self._border(*border)
                places.append((i, at))
                values.append(known)
        if places:
            which, where = numpy.array(places).T
            found[:, which, where] = numpy.array(values).T
        return Hops(found[0], found[1], found[2]), found[3].max(axis=1, initial=0.0)

    def tied(self, segments: tuple[Segment, ...]) -> float:
        """Return how long the tied table is summed between a first and a last stage in unlike fabrics."""
        ends = segments[0][0], segments[-1][0]
        if ends not in self.ties:
            first, last = (self.kinds[k] for k in ends)
            size = self.stage_costs.tied_gradient_bytes() if first.fabric != last.fabric else 0.0
            self.ties[ends] = size * self.stage_costs.sync_seconds_a_byte((first, last), (
                len(first.nodes), len(last.nodes))) if size else 0.0
        return self.ties[ends]

    def _border(self, before: Segment, after: Segment) -> tuple[float, float, float, float]:
        a, b = self.kinds[before[0]], self.kinds[after[0]]
        hop = self.stage_costs.hop(a, b, self.samples)
        crowd = max(1.0, a.gpus / (before[1] * before[2]), b.gpus / (after[1] * after[2])) * hop.node_seconds
        return (max(hop.seconds, after[1] * crowd), max(hop.seconds, before[1] * crowd),
                max(hop.seconds, max(after[1], before[1]) * hop.node_seconds), max(after[1], before[1]) * crowd)


def _price_depth(table: TemplateTable, group: list[tuple[Segment, ...]], depth: int, num_layers: int,
                 batch: Batch) -> Iterator[Template]:
    codes = numpy.array([_stage_codes(segments) for segments in group])
    unlike, at = numpy.unique(codes, return_inverse=True)
    rows = numpy.array([table.row(*_stage_of(code)) for code in unlike.tolist()])[at.reshape(codes.shape)]
    count = numpy.array([batch.sharers(segments) for segments in group]) if batch.sharers else numpy.ones((1, 1))
    in_flight = numpy.arange(depth, 0, -1, dtype=float)[None, :]
    layer, end = rows[:, :, 0], rows[:, :, 1]
    caps = numpy.clip(room(rows, count, in_flight), 0, num_layers)
    layers, good = cut_layers(layer, end, caps, num_layers)
    times = layers * layer + end
    hops, nic = table.hops(group, depth)
    taken = numpy.maximum(1.0, batch.microbatches / count[:, 0])  # a pipeline that runs takes a whole one
    found = passing(times, hops, numpy.broadcast_to(taken, len(group)), 1.0, batch.extra_warmup, nic)
    cuts, work = layers.astype(int).tolist(), times.sum(axis=1).tolist()
    period, fill = found.period.tolist(), found.fill.tolist()
    for i in numpy.flatnonzero(good).tolist():
        yield Template(group[i], tuple(cuts[i]), period[i], fill[i] + table.tied(group[i]), work[i])


def stage_rows(table: TemplateTable, segments: tuple[Segment, ...]) -> list[tuple[float, ...]]:
    """Return the rows of `StageTable.row` of a template's stages."""
    rows = table.rows
    return [rows.get(key) or table.row(*key) for key in _stage_keys(segments)]


@functools.lru_cache(maxsize=2**16)
def _stage_keys(segments: tuple[Segment, ...]) -> tuple[tuple[int, int, bool, bool], ...]:
    """Return kind, degree, and whether it is the first and the last one of a template's stages."""
    return tuple(map(_stage_of, _stage_codes(segments)))


@functools.lru_cache(maxsize=2**16)
def _stage_codes(segments: tuple[Segment, ...]) -> tuple[int, ...]:
    """Return a number for each stage, of which `_stage_of` makes its key: numpy counts numbers, and not tuples."""
    codes = [(kind << _KIND_SHIFT) + (tensor << 2) for kind, tensor, count in segments for _ in range(count)]
    codes[0] += 2
    codes[-1] += 1
    return tuple(codes)


def _stage_of(code: int) -> tuple[int, int, bool, bool]:
    return code >> _KIND_SHIFT, code % (1 << _KIND_SHIFT) >> 2, bool(code & 2), bool(code & 1)


def kind_orders(kinds: int, like: Sequence[int] | None = None) -> list[tuple[int, ...]]:
    """Return the orders of the kinds that a pipeline may use; of many kinds only large sets and single ones.

    `like` says of each kind which one it is like: sets that differ in like kinds alone are one, but for those beside
    one another that all have an equal part of the kinds.
    """
    like = like or range(kinds)
    if kinds <= 3:
        return [order for size in range(1, kinds + 1) for order in itertools.permutations(range(kinds), size)]
    if kinds == 4 and len(set(like)) == kinds:
        chosen = [subset for size in range(1, kinds + 1) for subset in itertools.combinations(range(kinds), size)]
    else:
        line = sorted(range(kinds), key=lambda k: (like[k], k))
        parts = [size for size in range(1, kinds + 1) if kinds % size == 0 or size == 2]
        sets = [line[first:first + size] for size in parts for first in range(0, kinds - size + 1, size)]
        sets += [[k for k in line if k != left] for left in _last_of_each(like)]
        sets += [[a, b] for a, b in zip(line, line[1:], strict=False) if like[a] != like[b]]
        if kinds <= _FEW_PAIRED:
            sets += [[a, b] for a, b in itertools.combinations(_last_of_each(like), 2)]
        chosen = list(dict.fromkeys(tuple(sorted(each)) for each in sets))
    return [order for subset in chosen for order in dict.fromkeys((subset, subset[::-1]))]


def _last_of_each(like: Sequence[int]) -> list[int]:
    """Return the last of each sort of kinds."""
    return list({model: k for k, model in enumerate(like)}.values())


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
    depth = 0
    for _, _, count in segments:
        depth += count
    return depth


def _product(numbers: Iterator[int]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result
