"""Every layout of a small problem, priced by the planner's cost function and nothing else of the search.

What is enumerated, for each set of whole nodes that may be used and each micro-batch size that divides the batch:

* every division of each node's ranks into tensor-parallel groups of the degrees that the model allows;
* every way to put those groups into pipelines and into the order of stages, each rank in one stage, pipelines of any
  length beside one another, every cut of the layers and every division of the micro-batches;
* every way to divide the groups into stages that all pipelines share (each rank may then serve several pipelines);
* the schedules that the cost model compares for a layout, each with up to `most_warmup` extra warm-up forwards.

Equal ranks of a node are not told apart. A layout is left out unpriced when a bound that no simulation can beat, its
compute alone, is already above the limit that is asked for.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.groups import GroupRules, find_groups
from holmes_hpc.planner.kinds import on_nodes
from holmes_hpc.planner.layouts import Layout
from holmes_hpc.planner.memory import USABLE_FRACTION
from holmes_hpc.planner.predict import predict
from holmes_hpc.planner.schedule_choice import candidate_schedules
from holmes_hpc.planner.settings import Task
from holmes_hpc.planner.step_prices import compute_cost, stage_seconds
from holmes_hpc.values import Pipeline, ScheduleChoice, Stage

Ranks = tuple[int, ...]
Names = dict[Ranks, tuple[str, int]]
"""Node and size of a tensor-parallel group: groups of one name are not told apart."""


class BruteForce:
    """All layouts of one task."""

    def __init__(self, task: Task, *, may_idle: bool = True, most_warmup: int = 4, unlike: bool = True) -> None:
        self.whole, self.may_idle, self.most_warmup, self.unlike = task, may_idle, most_warmup, unlike
        self.task = task
        self.priced = self.looked_at = 0
        self.limit = math.inf
        self.best: tuple[ScheduleChoice, int, tuple[Pipeline, ...]] | None = None
        """Schedule, micro-batch size and pipelines of the fastest layout below the limit."""
        self._times: dict[tuple[object, ...], float] = {}

    def faster_than(self, limit_seconds: float) -> float:
        """Return the least step time of all layouts, or the limit when none is below."""
        self.limit = limit_seconds
        for task in self._tasks():
            self.task, self._times = task, {}
            for size in [n for n in range(1, task.settings.global_batch_size + 1)
                         if task.settings.global_batch_size % n == 0]:
                for pipelines in self._layouts(size):
                    self.looked_at += 1
                    if self._bound(pipelines, size) < self.limit:
                        self.limit = min(self.limit, self._price(pipelines, size))
        return self.limit

    def _tasks(self) -> Iterator[Task]:
        slots = [node.slot for node in self.whole.cluster.nodes]
        for count in range(len(slots), 0, -1):
            for chosen in itertools.combinations(slots, count):
                yield on_nodes(self.whole, chosen)
            if not self.may_idle:
                return

    def _price(self, pipelines: tuple[Pipeline, ...], size: int) -> float:
        task = self.task
        try:
            groups, reductions = find_groups(task.architecture, task.cluster, pipelines, GroupRules())
        except PlanRefusedError:
            return math.inf
        best = math.inf
        layout = Layout(pipelines, groups, reductions, size, task.synchronization("auto"))
        compared = candidate_schedules(task, layout)
        choices = [*compared, *(dataclasses.replace(choice, warmup_extra=extra, hop_warmups=())
                                for choice in compared for extra in range(self.most_warmup + 1))]
        for choice in dict.fromkeys(choices):
            self.priced += 1
            predicted = predict(task, layout, choice)
            fits = all(need <= task.machine.memory_gib(task.cluster.node_of(rank)) * USABLE_FRACTION
                       for rank, need in enumerate(predicted.memory_gib_per_rank))
            if not fits:
                continue
            if predicted.step_seconds < min(best, self.limit):
                self.best = choice, size, pipelines
            best = min(best, predicted.step_seconds)
            if len({len(pipeline.stages) for pipeline in pipelines} - {1}) == 0:
                break
        return best

    def _bound(self, pipelines: Sequence[Pipeline], size: int) -> float:
        """Return what no simulation beats: a rank's own work, and all that comes before its first micro-batch."""
        busy: dict[int, float] = {}
        bound = 0.0
        for pipeline in pipelines:
            last = len(pipeline.stages) - 1
            before = 0.0
            for s, stage in enumerate(pipeline.stages):
                seconds = self._seconds(stage.ranks, stage.num_layers, s == 0, s == last, size)
                for rank in stage.ranks:
                    busy[rank] = busy.get(rank, 0.0) + pipeline.microbatches * seconds
                bound = max(bound, before + pipeline.microbatches * seconds)
                before += seconds
            bound = max(bound, before)
        return max(bound, *busy.values())

    def _seconds(self, ranks: Ranks, layers: int, first: bool, last: bool, size: int) -> float:
        node = self.task.cluster.node_of(ranks[0])
        key = node.slot, len(ranks), layers, first, last, size
        if key not in self._times:
            units = self.task.architecture.stage_units(0, layers, first=first, last=last)
            self._times[key] = sum(stage_seconds(self.task, compute_cost(self.task), ranks, units, size))
        return self._times[key]

    def _layouts(self, size: int) -> Iterator[tuple[Pipeline, ...]]:
        microbatches = self.task.settings.global_batch_size // size
        for groups in self._groups():
            names = {group: (self.task.cluster.node_of(group[0]).slot, len(group)) for group in groups}
            for lists in _lists_of(groups, names) if self.unlike else ():
                yield from self._cut(lists, microbatches, size)
            for stages in _ordered_partitions(groups, names):
                if any(len(stage) > 1 for stage in stages):
                    yield from self._meshes(stages, microbatches)

    def _groups(self) -> Iterator[tuple[Ranks, ...]]:
        """Yield every division of the ranks into tensor-parallel groups."""
        architecture = self.task.architecture
        numbers = (architecture.num_heads, architecture.num_kv_heads, architecture.ffn_hidden_size,
                   architecture.vocab_size)
        choices = []
        for node in self.task.cluster.nodes:
            ranks = self.task.cluster.ranks_of(node)
            degrees = [t for t in range(1, len(ranks) + 1)
                       if len(ranks) % t == 0 and all(n % t == 0 for n in numbers)]
            choices.append([_cut_up(ranks, parts) for parts in _partitions(len(ranks), degrees)])
        for chosen in itertools.product(*choices):
            yield tuple(group for node in chosen for group in node)

    def _cut(self, lists: Sequence[Sequence[Ranks]], microbatches: int, size: int) -> Iterator[tuple[Pipeline, ...]]:
        """Yield the pipelines with every cut and every division of the micro-batches that the limit allows."""
        layers = self.task.architecture.num_layers
        if microbatches < len(lists) or max(map(len, lists)) > layers:
            return
        options = []
        for stages in lists:
            cuts = [(cut, self._most(stages, cut, size)) for cut in _compositions(layers, len(stages))]
            options.append([(cut, most) for cut, most in cuts if most >= 1])
        if all(options):
            for chosen in _divide(options, microbatches):
                yield tuple(_pipeline(stages, cut, count) for stages, (cut, count) in zip(lists, chosen, strict=True))

    def _most(self, stages: Sequence[Ranks], cut: Sequence[int], size: int) -> int:
        """Return the most micro-batches that a pipeline can pass within the limit, by its compute alone."""
        before, most, last = 0.0, 10**9, len(cut) - 1
        for s, (ranks, layers) in enumerate(zip(stages, cut, strict=True)):
            seconds = self._seconds(ranks, layers, s == 0, s == last, size)
            most = min(most, int((self.limit - before) / seconds))
            before += seconds
        return most if before < self.limit else 0

    def _meshes(self, stages: Sequence[Sequence[Ranks]], microbatches: int) -> Iterator[tuple[Pipeline, ...]]:
        """Yield pipelines through shared stages: the common refinement of each stage's equal division of the batch."""
        layers = self.task.architecture.num_layers
        points = sorted({i * microbatches / len(stage) for stage in stages for i in range(len(stage) + 1)})
        ends = [round(point) for point in points]
        if len(stages) > layers or any(a == b for a, b in itertools.pairwise(ends)):
            return
        middles = [(a + b) / 2 / microbatches for a, b in itertools.pairwise(points)]
        ways = [[stage[int(middle * len(stage))] for stage in stages] for middle in middles]
        counts = [b - a for a, b in itertools.pairwise(ends)]
        for cut in _compositions(layers, len(stages)):
            yield tuple(_pipeline(way, cut, count) for way, count in zip(ways, counts, strict=True))


def _pipeline(stages: Sequence[Ranks], cut: Sequence[int], microbatches: int) -> Pipeline:
    firsts = [sum(cut[:s]) for s in range(len(cut))]
    return Pipeline(microbatches, tuple(Stage(tuple(ranks), first, count)
                                        for ranks, first, count in zip(stages, firsts, cut, strict=True)))


def _divide(options: Sequence[Sequence[tuple[tuple[int, ...], int]]],
            microbatches: int) -> Iterator[tuple[tuple[tuple[int, ...], int], ...]]:
    """Yield a cut and a count for each pipeline, the counts within their limits and of the right sum."""
    if not options:
        if microbatches == 0:
            yield ()
        return
    rest = options[1:]
    later = sum(max(most for _, most in each) for each in rest)
    for cut, most in options[0]:
        for count in range(max(1, microbatches - later), min(most, microbatches - len(rest)) + 1):
            for others in _divide(rest, microbatches - count):
                yield ((cut, count), *others)


def _partitions(number: int, parts: Sequence[int], most: int | None = None) -> Iterator[tuple[int, ...]]:
    if number == 0:
        yield ()
    for part in parts:
        if part <= min(number, most or number):
            for rest in _partitions(number - part, parts, part):
                yield (part, *rest)


def _cut_up(ranks: Ranks, sizes: Sequence[int]) -> tuple[Ranks, ...]:
    ends = list(itertools.accumulate(sizes, initial=0))
    return tuple(ranks[a:b] for a, b in itertools.pairwise(ends))


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    for cuts in itertools.combinations(range(1, total), parts - 1):
        ends = (0, *cuts, total)
        yield tuple(b - a for a, b in itertools.pairwise(ends))


def _set_partitions(items: Sequence[Ranks]) -> Iterator[list[list[Ranks]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for partition in _set_partitions(rest):
        for i in range(len(partition)):
            yield [*partition[:i], [first, *partition[i]], *partition[i + 1:]]
        yield [[first], *partition]


def _lists_of(groups: Sequence[Ranks], names: Names) -> Iterator[tuple[tuple[Ranks, ...], ...]]:
    """Yield every set of ordered lists of the groups, groups of one node and size not told apart."""
    seen: set[tuple[tuple[object, ...], ...]] = set()
    for partition in _set_partitions(groups):
        for orders in itertools.product(*(itertools.permutations(block) for block in partition)):
            key = tuple(sorted(tuple(names[group] for group in order) for order in orders))
            if key not in seen:
                seen.add(key)
                yield orders


def _ordered_partitions(groups: Sequence[Ranks], names: Names) -> Iterator[tuple[tuple[Ranks, ...], ...]]:
    seen: set[tuple[tuple[object, ...], ...]] = set()
    for partition in _set_partitions(groups):
        for order in itertools.permutations(partition):
            key = tuple(tuple(sorted(names[group] for group in stage)) for stage in order)
            if key not in seen:
                seen.add(key)
                yield tuple(tuple(sorted(stage)) for stage in order)
