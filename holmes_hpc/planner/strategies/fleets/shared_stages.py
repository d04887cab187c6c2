"""Meshes: stages that all pipelines share, with a width and a tensor-parallel degree of each stage's own.

A stage of few wide tensor-parallel groups may serve the pipelines of many narrow ones: two GPUs as one group of two
before two single ones make two pipelines. Over a step a group of a stage of width w is busy for its share, 1 / w, of
all micro-batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy

from holmes_hpc.planner.layout.node_kinds import Kind
from holmes_hpc.planner.layout.pipelines import count_overlaps
from holmes_hpc.planner.strategies.fleets.stage_table import StagePricing
from holmes_hpc.planner.strategies.fleets.templates import BACKWARD_SHARE, StageTable, cut_layers, kind_orders, room

MeshStage = tuple[int, int, int]
"""(index of the kind, tensor-parallel degree, width: the number of tensor-parallel groups)."""

_MOST_MESHES = 1500
_MOST_TORN = 250
_MOST_TORN_STAGES = 4
"""Meshes and stages up to which every order of stages is tried."""
_MOST_DIVIDED_GPUS = 8
"""GPUs of a kind up to which they are divided into stages of unequal size."""
_COUNTS = ((1, 2, 3, 4, 5, 6, 8, 10, 12, 16), (1, 2, 3, 4, 6, 8), (1, 2, 4), (1, 2), (1,))


@dataclass(frozen=True)
class Mesh:
    """A priced mesh."""

    stages: tuple[MeshStage, ...]
    layers: tuple[int, ...]
    seconds: float


def price_meshes(pricing: StagePricing, kinds: Sequence[Kind], degrees: Sequence[Sequence[int]], num_layers: int,
                 depth: int | None, size: int, microbatches: int, *, may_idle: bool,
                 known: Sequence[tuple[MeshStage, ...]] | None = None) -> list[Mesh]:
    """Return the meshes that fit into memory, each on all nodes of its kinds, fastest first.

    `known` are those of `enumerate_meshes`, which are the same for every micro-batch size.
    """
    meshes = enumerate_meshes(kinds, degrees, num_layers, may_idle=may_idle,
                              wrap=pricing.tied_gradient_bytes() > 0) if known is None else known
    meshes = [mesh for mesh in meshes if depth in (None, len(mesh)) and max(w for _, _, w in mesh) <= microbatches]
    found: list[Mesh] = []
    for _, group in itertools.groupby(sorted(meshes, key=len), key=len):
        found += _price(pricing, kinds, list(group), num_layers, size, microbatches)
    return sorted(found, key=lambda mesh: (mesh.seconds, mesh.stages))


def _price(pricing: StagePricing, kinds: Sequence[Kind], meshes: Sequence[tuple[MeshStage, ...]], num_layers: int,
           size: int, microbatches: int) -> Iterator[Mesh]:
    table = StageTable(pricing, kinds, size)
    rows = numpy.array([_rows(table, mesh) for mesh in meshes])
    widths = numpy.array([[width for _, _, width in mesh] for mesh in meshes], dtype=float)
    # Of its stage's micro-batches the busiest group has as many whole ones as come out.
    share = numpy.ceil(microbatches / widths) / microbatches
    layer, end = rows[:, :, 0] * share, rows[:, :, 1] * share
    in_flight = numpy.array([_in_flight(mesh, microbatches) for mesh in meshes], dtype=float)
    caps = numpy.clip(room(rows, widths, in_flight), 0, num_layers)
    layers, good = cut_layers(layer, end, caps, num_layers)
    busy = (layers * layer + end).tolist()
    cuts = layers.astype(int).tolist()
    for i in numpy.flatnonzero(good).tolist():
        yield Mesh(meshes[i], tuple(cuts[i]),
                   _seconds(pricing, kinds, meshes[i], cuts[i], busy[i], size, microbatches))


def _rows(table: StageTable, mesh: tuple[MeshStage, ...]) -> list[tuple[float, ...]]:
    last = len(mesh) - 1
    return [table.row(k, tensor, s == 0, s == last) for s, (k, tensor, _) in enumerate(mesh)]


def _in_flight(mesh: tuple[MeshStage, ...], microbatches: int) -> list[int]:
    """Return how many micro-batches a rank of each stage keeps, of all pipelines that it serves."""
    ways = count_overlaps(frozenset([width for _, _, width in mesh]))
    return [min(microbatches, (len(mesh) - s) * -(-ways // width)) for s, (_, _, width) in enumerate(mesh)]


def _seconds(pricing: StagePricing, kinds: Sequence[Kind], mesh: tuple[MeshStage, ...],
             layers: Sequence[int], busy: Sequence[float], size: int, microbatches: int) -> float:
    period_alone = max(busy)
    period, hops, sync = period_alone, 0.0, 0.0
    for (k, t, w), (other, u, v) in itertools.pairwise(mesh):
        if k != other:
            hop = pricing.hop(kinds[k], kinds[other], size)
            lanes = min(_nodes(kinds[k], t, w), _nodes(kinds[other], u, v))
            hops += 2 * max(hop.seconds, max(t, u) * hop.node_seconds)
            period = max(period, max(t, u) * hop.node_seconds / lanes)
    alone = [seconds * microbatches / -(-microbatches // width) for seconds, (_, _, width) in
             zip(busy, mesh, strict=True)]
    layer_bytes = pricing.layer_gradient_bytes()
    # Gradients of later stages are summed while the first ones are still in their last backward.
    hidden = 0.0
    for (k, t, w), held, own in zip(mesh, layers, alone, strict=True):
        if w > 1:
            whole = held * layer_bytes
            sync = max(sync, whole * pricing.sync_seconds_a_byte((kinds[k],), (_nodes(kinds[k], t, w),)) - hidden)
        hidden += BACKWARD_SHARE * own
    sync += _table_seconds(pricing, kinds, mesh)
    return microbatches * period + sum(alone) - alone[busy.index(period_alone)] + hops + sync


def _table_seconds(pricing: StagePricing, kinds: Sequence[Kind], mesh: tuple[MeshStage, ...]) -> float:
    """Return how long the token table's gradient is summed: last of all, and where it is tied between both ends."""
    (k, t, w), (other, u, v) = mesh[0], mesh[-1]
    tied = pricing.tied_gradient_bytes()
    if tied and len(mesh) > 1:
        if k == other:
            return tied * pricing.sync_seconds_a_byte((kinds[k],), (_nodes(kinds[k], 1, t * w + u * v),))
        return tied * pricing.sync_seconds_a_byte((kinds[k], kinds[other]), (
            _nodes(kinds[k], t, w), _nodes(kinds[other], u, v)))
    if w == 1:
        return 0.0
    return pricing.table_gradient_bytes() * pricing.sync_seconds_a_byte((kinds[k],), (_nodes(kinds[k], t, w),))


def _nodes(kind: Kind, tensor: int, width: int) -> int:
    return max(1, min(len(kind.nodes), -(-tensor * width // kind.gpus)))


def enumerate_meshes(kinds: Sequence[Kind], degrees: Sequence[Sequence[int]], num_layers: int, *,
                     may_idle: bool, wrap: bool = False) -> list[tuple[MeshStage, ...]]:
    """Return the meshes to look at, before anything is priced.

    With `wrap`, which is for tied tables, those too that begin and end on one kind, the others between.
    """
    orders = [order for order in kind_orders(len(kinds)) if may_idle or len(order) == len(kinds)]
    for counts in _COUNTS:
        options = [list(_options(k, kind, degrees[k], counts)) for k, kind in enumerate(kinds)]
        total = 0
        for order in orders:
            product = 1
            for k in order:
                product *= len(options[k])
            total += product
        if total <= _MOST_MESHES:
            break
    found = [tuple(stage for part in parts for stage in part)
             for order in orders for parts in itertools.product(*(options[k] for k in order))]
    if total <= _MOST_TORN:
        found += [torn for mesh in list(found) for torn in _torn(mesh)]
    elif wrap:
        found += [wrapped for mesh in list(found) for wrapped in _wrapped(mesh)]
    return [mesh for mesh in dict.fromkeys(found) if len(mesh) <= num_layers]


def _torn(mesh: tuple[MeshStage, ...]) -> Iterator[tuple[MeshStage, ...]]:
    """Yield the other orders of a short mesh, in which stages of a kind do not follow one another."""
    if len(mesh) <= _MOST_TORN_STAGES:
        yield from dict.fromkeys(itertools.permutations(mesh))


def _wrapped(mesh: tuple[MeshStage, ...]) -> Iterator[tuple[MeshStage, ...]]:
    """Yield the meshes in which the last stage of the first kind, or all but its first, stand behind all others."""
    own = len(list(itertools.takewhile(lambda stage: stage[0] == mesh[0][0], mesh)))
    if 1 < own < len(mesh):
        for kept in dict.fromkeys((1, own - 1)):
            yield mesh[:kept] + mesh[own:] + mesh[kept:own]


def _options(k: int, kind: Kind, degrees: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[MeshStage, ...]]:
    """Yield the ways to divide all GPUs of a kind into stages: equal ones, or for few GPUs two unlike ones."""
    for tensor in degrees:
        groups = kind.total_gpus // tensor
        for count in counts:
            if groups % count == 0:
                yield ((k, tensor, groups // count),) * count
    if kind.total_gpus <= _MOST_DIVIDED_GPUS and len(counts) > 3:
        for a, b in itertools.product(degrees, degrees):
            for first in range(a, kind.total_gpus, a):
                rest = kind.total_gpus - first
                if rest % b == 0 and (a, first // a) != (b, rest // b):
                    yield (k, a, first // a), (k, b, rest // b)
