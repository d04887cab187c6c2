"""The FlashFlex strategy: unlike GPUs are divided into pipelines, each of those into stages, hierarchically.

After arXiv 2409.01143: the number of pipelines and the direction of the first cut are iterated over; a partition into
pipelines of about equal speed is refined by moving GPUs between them; then each pipeline alone gets the order of its
stages, a tensor-parallel degree for each, layers by speed within memory; and micro-batches go to pipelines by their
speed. Nodes are counted by kind, so that the graph to partition has as many vertices as there are kinds of nodes, and
no general partitioner is needed. NIC kinds, latency and the samples that each pipeline really takes are priced.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from holmes_hpc.planner.strategies.fleets.knapsack import Fleet, share_microbatches
from holmes_hpc.planner.strategies.fleets.space import Space, space_with_degrees
from holmes_hpc.planner.strategies.fleets.templates import FEW_KINDS, Segment, Template
from holmes_hpc.planner.strategies.proposals import Proposal
from holmes_hpc.planner.strategies.refusals import no_pipelines
from holmes_hpc.planner.strategies.unlike import Found, micro_batch_sizes_of, propose
from holmes_hpc.planner.task import Task
from holmes_hpc.values.strategy_kinds import FLASHFLEX

_MOST_PIPELINES = 64
_ROUNDS = 6
_MOST_REFINED = 10
_MOST_PROPOSED = 12
_MOST_OF_ONE = 24
"""Partitions that are refined, and of these proposed; and of a single kind of nodes, where each costs little."""
_MOST_REFINED_OF_MANY = 4
_MOST_MOVES_OF_MANY = 48
"""Partitions that are refined, and moves that are looked at in each round, of more than a few kinds of nodes."""
_MOST_OF_MANY = 8
"""Ways to put exactly the GPUs of many kinds into stages; of more, one for each tensor degree."""
Vector = tuple[int, ...]
"""GPUs of each kind."""


def proposals(task: Task) -> list[Proposal]:
    """Return the layouts of the hierarchical partition, best estimates first.

    Raises PlanRefusedError when no partition fits into memory, or the asked tensor-parallel degree no node.
    """
    space = space_with_degrees(task)
    starts: list[tuple[float, int, tuple[Vector, ...]]] = []
    exact = functools.cache(lambda vector: tuple(_exact(space, vector)))
    partitions = {size: _Partition(space, size, task.settings.global_batch_size // size, exact)
                  for size in micro_batch_sizes_of(task)}
    cuts = functools.cache(lambda count: tuple(dict.fromkeys((_even(space, count), _near(space, count)))))
    for size, partition in partitions.items():
        first = [vectors for count in _pipeline_counts(task, space, partition.microbatches) for vectors in cuts(count)]
        partition.prepare(first)
        for vectors in first:
            fleet = partition.fleet(vectors)
            starts.append((float("inf") if fleet is None else fleet.seconds, size, vectors))
    found: list[Found] = []
    many = len(space.kinds) > FEW_KINDS
    alone = len(space.kinds) == 1
    most = _MOST_OF_ONE if alone else _MOST_REFINED_OF_MANY if many else _MOST_REFINED
    for _, size, vectors in sorted(starts)[:most]:
        fleet = partitions[size].refine(vectors)
        if fleet is not None:
            found.append(Found(fleet, size))
    if not found:
        raise no_pipelines(task, max(map(max, space.degrees)), tuple(partitions),
                           short_of_memory=space.short_of_memory)
    found.sort(key=lambda each: each.fleet.seconds)
    return propose(space, found[:_MOST_OF_ONE if alone else _MOST_PROPOSED], FLASHFLEX.name)


class _Partition:
    """Partitions into pipelines at one micro-batch size."""

    def __init__(self, space: Space, size: int, microbatches: int,
                 exact: Callable[[Vector], Sequence[tuple[Segment, ...]]]) -> None:
        self.space, self.size, self.microbatches, self.exact = space, size, microbatches, exact
        self.across = len({kind.fabric for kind in space.kinds}) > 1
        self.best_template = functools.cache(self._best_template)

    def refine(self, vectors: tuple[Vector, ...]) -> Fleet | None:
        """Return the fleet of a partition after moving GPUs between the pipelines that end last and first."""
        best = self.fleet(vectors)
        for _ in range(_ROUNDS if len(vectors) > 1 else 0):
            moves = list(self._moves(vectors))
            if len(self.space.kinds) > FEW_KINDS:
                moves = moves[::max(1, len(moves) // _MOST_MOVES_OF_MANY)]
            self.prepare(moves)
            moved = [(fleet, other) for other in moves
                     if (fleet := self.fleet(other)) is not None]
            if not moved:
                break
            fleet, other = min(moved, key=lambda each: each[0].seconds)
            if best is not None and fleet.seconds >= best.seconds * (1 - 1e-9):
                break
            best, vectors = fleet, other
        return best

    def prepare(self, partitions: Sequence[tuple[Vector, ...]]) -> None:
        """Price all templates of these partitions together, which is much faster than one vector's at a time."""
        vectors = dict.fromkeys(vector for vectors in partitions for vector in vectors)
        self.space.templates(self.size, [each for vector in vectors for each in self.exact(vector)])

    def fleet(self, vectors: tuple[Vector, ...]) -> Fleet | None:
        """Return the fleet of a partition, every pipeline with its best template; None where one has none."""
        templates = [self.best_template(vector, len(vectors)) for vector in vectors]
        known = [template for template in templates if template is not None]
        if len(known) < len(templates):
            return None
        like = len({self.space.spans(template) for template in known}) == 1
        syncs = {template: self.space.sync_seconds(template, across=self.across and not like)
                 for template in dict.fromkeys(known)}
        return share_microbatches(known, [syncs[template] * (len(known) > 1) for template in known],
                                  self.microbatches)

    def _moves(self, vectors: tuple[Vector, ...]) -> Iterator[tuple[Vector, ...]]:
        """Yield partitions in which one kind's GPUs, one or as many as a node has halves, change pipelines."""
        different = {vector: p for p, vector in enumerate(vectors)}
        for (a, p), (b, q) in itertools.permutations(different.items(), 2):
            for k, kind in enumerate(self.space.kinds):
                for amount in dict.fromkeys((1, max(1, kind.gpus // 2), kind.gpus)):
                    if a[k] >= amount and sum(a) > amount:
                        changed = list(vectors)
                        changed[p] = tuple(n - amount * (i == k) for i, n in enumerate(a))
                        changed[q] = tuple(n + amount * (i == k) for i, n in enumerate(b))
                        yield tuple(sorted(changed))

    def _best_template(self, vector: Vector, pipelines: int) -> Template | None:
        """Return the template of exactly these GPUs that passes its share of the batch soonest, sync included."""
        share = max(1, self.microbatches // pipelines)
        templates = self.space.templates(self.size, self.exact(vector))
        several = pipelines > 1
        return min(templates, default=None, key=lambda each: each.fill + share * each.period + (
            self.space.sync_seconds(each, across=False) if several else 0.0))


def _pipeline_counts(task: Task, space: Space, microbatches: int) -> list[int]:
    asked = task.settings.data
    most = min(microbatches, sum(kind.total_gpus for kind in space.kinds), _MOST_PIPELINES * 16)
    if asked is not None:
        return [asked] if asked <= most else []
    ladder = [*range(1, 9)] + [m * 2**i for i in range(1, 10) for m in (5, 6, 8)]
    return [n for n in dict.fromkeys(ladder) if n <= most]


def _even(space: Space, count: int) -> tuple[Vector, ...]:
    """Return the cut across the fast networks: every pipeline gets its part of every kind, the rest by turns."""
    parts = [[0] * len(space.kinds) for _ in range(count)]
    at = 0
    for k, kind in enumerate(space.kinds):
        share, rest = divmod(kind.total_gpus, count)
        for part in parts:
            part[k] = share
        for _ in range(rest):
            parts[at % count][k] += 1
            at += 1
    return tuple(sorted(tuple(part) for part in parts))


def _near(space: Space, count: int) -> tuple[Vector, ...]:
    """Return the cut along the slow networks: GPUs in order of their fabrics, cut into parts of equal speed."""
    speeds = [1 / space.stage_costs.layer_seconds(kind, degrees[0], 1) / degrees[0]
              for kind, degrees in zip(space.kinds, space.degrees, strict=True)]
    line = [k for k, kind in enumerate(space.kinds) for _ in range(kind.total_gpus)]
    total, passed, p = sum(speeds[k] for k in line), 0.0, 0
    parts = [[0] * len(space.kinds) for _ in range(count)]
    for i, k in enumerate(line):
        parts[p][k] += 1
        passed += speeds[k]
        left = len(line) - i - 1
        if p + 1 < count and (passed >= total * (p + 1) / count - 1e-12 or left <= count - p - 1):
            p += 1
    return tuple(sorted(tuple(part) for part in parts))


def _exact(space: Space, vector: Vector) -> Iterator[tuple[Segment, ...]]:
    """Yield the segments of pipelines that take exactly these GPUs; of many kinds like ones have like stages."""
    used = [k for k, gpus in enumerate(vector) if gpus]
    if not used or len(used) > FEW_KINDS:
        orders: Sequence[Sequence[int]] = [tuple(used)]
    else:
        orders = list(itertools.permutations(used))
    for order in orders:
        for chosen in _stages_of(space, vector, order):
            segments = tuple(segment for each in chosen for segment in each)
            depth = sum(count for _, _, count in segments)
            if segments and depth <= space.num_layers and space.task.settings.pipeline in (None, depth):
                yield segments


def _stages_of(space: Space, vector: Vector, order: Sequence[int]) -> Iterator[tuple[tuple[Segment, ...], ...]]:
    """Yield the stages of each kind in turn: every combination of few kinds, of many the like ones in like ways."""
    if len(order) <= FEW_KINDS:
        yield from itertools.product(*(list(_exact_of_kind(k, vector[k], space.degrees[k])) for k in order))
        return
    sort = {k: (space.like[k], vector[k]) for k in order}
    models = {each: k for k, each in reversed(sort.items())}
    options = {each: list(_exact_of_kind(k, vector[k], space.degrees[k])) for each, k in models.items()}
    if math.prod(map(len, options.values())) <= _MOST_OF_MANY:
        combinations = [dict(zip(options, chosen, strict=True)) for chosen in itertools.product(*options.values())]
    else:
        widest = sorted({each[0][1] for own in options.values() for each in own}, reverse=True)
        combinations = [{each: next((one for one in own if one[0][1] <= degree), own[-1])
                         for each, own in ((each, sorted(own, key=lambda one: -one[0][1]))
                                           for each, own in options.items())} for degree in widest]
    for of_sort in combinations:
        yield tuple(tuple((k, *segment[1:]) for segment in of_sort[sort[k]]) for k in order)


def _exact_of_kind(k: int, gpus: int, degrees: Sequence[int]) -> Iterator[tuple[Segment, ...]]:
    """Yield stages of one kind on exactly `gpus` GPUs: of one degree, or a wide one and the rest narrow."""
    for degree in degrees:
        count, rest = divmod(gpus, degree)
        if count and not rest:
            yield ((k, degree, count),)
        elif count:
            narrow = next((other for other in reversed(degrees) if other < degree and rest % other == 0), None)
            if narrow is not None:
                yield (k, degree, count), (k, narrow, rest // narrow)
