"""Stages that all pipelines share, with a width and a tensor-parallel degree of each stage's own, as shapes of ranks.

A stage of few wide tensor-parallel groups may serve the pipelines of many narrow ones: two GPUs as one group of two
before two single ones make two pipelines. They are enumerated in counts of kinds of nodes, then placed.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.layout.node_kinds import Kind, on_nodes, renamed
from holmes_hpc.planner.strategies.fleets.placement import StagePlacer
from holmes_hpc.planner.strategies.fleets.templates import FEW_KINDS, balanced, kind_orders
from holmes_hpc.planner.strategies.shapes import Shape
from holmes_hpc.planner.task import Task

StageOfKind = tuple[int, int, int]
"""(index of the kind, tensor-parallel degree, width: the number of tensor-parallel groups)."""

_WORDS = "stages shared by all pipelines"
_MOST_SHAPES = 1500
_MOST_TORN = 250
_MOST_TORN_STAGES = 4
"""Shapes and stages up to which every order of stages is tried."""
_MOST_DIVIDED_GPUS = 8
"""GPUs of a kind up to which they are divided into stages of unequal size."""
_COUNTS = ((1, 2, 3, 4, 5, 6, 8, 10, 12, 16), (1, 2, 3, 4, 6, 8), (1, 2, 4), (1, 2), (1,))


def shared_shapes(task: Task, kinds: Sequence[Kind], found: Sequence[tuple[StageOfKind, ...]],
                  strategy: str) -> list[tuple[Task, list[Shape]]]:
    """Return the shapes of ranks of stages in counts, each on all nodes of its kinds, by the nodes that they use."""
    by_kinds: dict[frozenset[int], list[Shape]] = {}
    tasks: dict[frozenset[int], Task] = {}
    placers: dict[frozenset[int], StagePlacer] = {}
    for stages in found:
        used = frozenset(kind for kind, _, _ in stages)
        if used not in tasks:
            tasks[used] = on_nodes(task, [node.slot for k in sorted(used) for node in kinds[k].nodes])
            placers[used] = StagePlacer(kinds, tasks[used].cluster)
        parts = placers[used].place(stages)
        if parts is not None:
            by_kinds.setdefault(used, []).append(
                Shape(strategy, _WORDS, parts, GroupRules(two_level=task.settings.two_level),
                      shared=tuple((kinds[k].name, tensor, width) for k, tensor, width in stages)))
    return [(tasks[used], shapes) for used, shapes in by_kinds.items()]


def enumerate_stages(kinds: Sequence[Kind], degrees: Sequence[Sequence[int]], num_layers: int, *,
                     may_idle: bool, wrap: bool = False,
                     like: Sequence[int] | None = None) -> list[tuple[StageOfKind, ...]]:
    """Return the stages to look at, before anything is priced.

    With `wrap`, which is for tied tables, those too that begin and end on one kind, the others between. `like` says
    of each kind which one it is like (`node_kinds.alike_kinds`): of stages that differ in like kinds alone one is
    returned.
    """
    like = like or range(len(kinds))
    orders = [order for order in kind_orders(len(kinds), like) if may_idle or len(order) == len(kinds)]
    found, total = _combined(orders, kinds, degrees, like)
    if total <= _MOST_TORN:
        found += [torn for stages in list(found) for torn in _torn(stages)]
    elif wrap:
        found += [wrapped for stages in list(found) for wrapped in _wrapped(stages)]
    names = functools.cache(lambda order: renamed(order, like))
    unlike: dict[tuple[StageOfKind, ...], tuple[StageOfKind, ...]] = {}
    for stages in found:
        if len(stages) <= num_layers:
            new = names(tuple(k for k, _, _ in stages))
            unlike.setdefault(tuple((new[k], tensor, width) for k, tensor, width in stages), stages)
    return list(unlike.values())


def _combined(orders: Sequence[Sequence[int]], kinds: Sequence[Kind], degrees: Sequence[Sequence[int]],
              like: Sequence[int]) -> tuple[list[tuple[StageOfKind, ...]], int]:
    """Return the stages of every order, and how many combinations there were: of many kinds like ones have like stages.

    Where even those are too many, all kinds are divided into about equally wide stages.
    """
    many = len(kinds) > FEW_KINDS
    for counts in _COUNTS:
        options = [list(_options(k, kind, degrees[k], counts)) for k, kind in enumerate(kinds)]
        total = sum(math.prod(len(options[k]) for k in (dict.fromkeys(like[k] for k in order) if many else order))
                    for order in orders)
        if total <= _MOST_SHAPES:
            break
    else:
        if many:
            found = [stages for order in orders for stages in _balanced(order, kinds, degrees)]
            return found[:_MOST_SHAPES], total
    found = []
    for order in orders:
        models = list(dict.fromkeys(like[k] for k in order)) if many else list(order)
        for parts in itertools.product(*(options[k] for k in models)):
            of_model = dict(zip(models, parts, strict=True))
            found.append(tuple((k, tensor, width) for k in order
                               for _, tensor, width in of_model[like[k] if many else k]))
    return found, total


def _balanced(order: Sequence[int], kinds: Sequence[Kind],
              degrees: Sequence[Sequence[int]]) -> Iterator[tuple[StageOfKind, ...]]:
    """Yield stages of about equal width: those of templates for equally many pipelines, all GPUs of each kind."""
    for segments in balanced(order, kinds, degrees):
        stages: list[StageOfKind] = []
        for k, tensor, count in segments:
            groups = kinds[k].total_gpus // tensor
            own = next(n for n in range(min(count, groups), 0, -1) if groups % n == 0)
            stages += [(k, tensor, groups // own)] * own
        yield tuple(stages)


def _torn(stages: tuple[StageOfKind, ...]) -> Iterator[tuple[StageOfKind, ...]]:
    """Yield the other orders of few stages, in which stages of a kind do not follow one another."""
    if len(stages) <= _MOST_TORN_STAGES:
        yield from dict.fromkeys(itertools.permutations(stages))


def _wrapped(stages: tuple[StageOfKind, ...]) -> Iterator[tuple[StageOfKind, ...]]:
    """Yield the orders in which the last stage of the first kind, or all but its first, stand behind all others."""
    own = len(list(itertools.takewhile(lambda stage: stage[0] == stages[0][0], stages)))
    if 1 < own < len(stages):
        for kept in dict.fromkeys((1, own - 1)):
            yield stages[:kept] + stages[own:] + stages[kept:own]


def _options(k: int, kind: Kind, degrees: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[StageOfKind, ...]]:
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
