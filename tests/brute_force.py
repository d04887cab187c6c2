"""Every layout of a small problem, priced by the planner's cost function and nothing else of the search.

What is enumerated, for each set of whole nodes that may be used and each micro-batch size that divides the batch:

* every division of each node's ranks into tensor-parallel groups of the degrees that the model allows;
* every way to put those groups into pipelines and into the order of stages, each rank in one stage, pipelines of any
  length beside one another, every cut of the layers and every division of the micro-batches;
* every way to divide the groups into stages that all pipelines share (each rank may then serve several pipelines),
  every cut of the layers, and every division of the micro-batches between the pipelines;
* the schedules that the cost model compares for a layout, and where messages cross Ethernet each of them with one extra
  warm-up forward more until two in a row have not paid.

Equal ranks of a node are not told apart, nor equal nodes. A layout is left out unpriced when a bound that no
simulation can beat is already above the limit that is asked for: compute, messages alone on their links, and the
optimizer's step. Backwards may be split in it, so that it holds for zero bubble too.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from holmes_hpc.cluster import Node
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.cost.network import NetworkCost
from holmes_hpc.planner.cost.rank_memory import USABLE_FRACTION
from holmes_hpc.planner.layout.groups import GroupRules, find_groups
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.layout.node_kinds import on_nodes
from holmes_hpc.planner.search.schedules import candidate_schedules
from holmes_hpc.planner.simulation.predict import predict
from holmes_hpc.planner.simulation.prices import compute_cost, stage_seconds, weight_seconds
from holmes_hpc.planner.task import Task
from holmes_hpc.schedule.building import slow_hops
from holmes_hpc.values import Pipeline, ScheduleChoice, Stage

Ranks = tuple[int, ...]
Names = dict[Ranks, tuple[str, int]]
"""Node and size of a tensor-parallel group: groups of one name are not told apart."""


class Times(NamedTuple):
    """Seconds of a stage for one micro-batch."""

    forward: float
    backward_input: float
    backward_weight: float

    @property
    def whole(self) -> float:
        return sum(self)


class BruteForce:
    """All layouts of one task."""

    def __init__(self, task: Task, *, may_idle: bool = True, unlike: bool = True) -> None:
        self.whole, self.may_idle, self.unlike = task, may_idle, unlike
        self.task = task
        self.priced = self.looked_at = 0
        self.limit = math.inf
        self.best: tuple[ScheduleChoice, int, tuple[Pipeline, ...]] | None = None
        """Schedule, micro-batch size and pipelines of the fastest layout below the limit."""
        self._times: dict[tuple[object, ...], Times] = {}
        self._hops: dict[tuple[str, str, int], float] = {}

    def faster_than(self, limit_seconds: float) -> float:
        """Return the least step time of all layouts, or the limit when none is below."""
        self.limit = limit_seconds
        for task in self._tasks():
            self.task, self._times, self._hops = task, {}, {}
            for size in [n for n in range(1, task.settings.global_batch_size + 1)
                         if task.settings.global_batch_size % n == 0]:
                for pipelines in self._layouts(size):
                    self.looked_at += 1
                    if self._bound(pipelines, size) < self.limit:
                        self.limit = min(self.limit, self._price(pipelines, size))
        return self.limit

    def _tasks(self) -> Iterator[Task]:
        nodes = self.whole.cluster.nodes
        seen = set()
        for count in range(len(nodes), 0, -1):
            for chosen in itertools.combinations(nodes, count):
                kinds = tuple(sorted(map(_kind, chosen)))
                if kinds not in seen:
                    seen.add(kinds)
                    yield on_nodes(self.whole, [node.slot for node in chosen])
            if not self.may_idle:
                return

    def _price(self, pipelines: tuple[Pipeline, ...], size: int) -> float:
        task = self.task
        try:
            groups, reductions = find_groups(task.architecture, task.cluster, pipelines, GroupRules(),
                                             sharded=task.settings.sharded, in_nodes=task.machine.uses_gloo)
        except PlanRefusedError:
            return math.inf
        layout = Layout(pipelines, groups, reductions, size, task.synchronization("unlike"))
        best = math.inf
        for choice in candidate_schedules(task, layout):
            best = min(best, self._simulate(layout, choice))
            if max(len(pipeline.stages) for pipeline in pipelines) == 1:
                return best
        if slow_hops(pipelines, groups):
            for name in ("1f1b", "zero_bubble"):
                best = min(best, self._warmer(layout, name, best))
        return best

    def _warmer(self, layout: Layout, name: str, best: float) -> float:
        """Return the least step with more and more extra warm-up of all slow hops, with and without turns."""
        for turn in dict.fromkeys(choice.turns for choice in candidate_schedules(self.task, layout)):
            like = next(choice for choice in candidate_schedules(self.task, layout) if choice.name == name)
            useless = 0
            for extra in range(max(pipeline.microbatches for pipeline in layout.pipelines) + 1):
                choice = dataclasses.replace(like, warmup_extra=extra, hop_warmups=(), turns=turn)
                seconds = self._simulate(layout, choice)
                useless = 0 if seconds < best * (1 - 1e-9) else useless + 1
                best = min(best, seconds)
                if useless > 2:
                    break
        return best

    def _simulate(self, layout: Layout, choice: ScheduleChoice) -> float:
        """Return the step with a schedule; infinite where it does not fit into memory."""
        task = self.task
        self.priced += 1
        predicted = predict(task, layout, choice)
        if any(need > task.machine.memory_gib(task.cluster.node_of(rank)) * USABLE_FRACTION
               for rank, need in enumerate(predicted.memory_gib_per_rank)):
            return math.inf
        if predicted.step_seconds < self.limit:
            self.limit = predicted.step_seconds
            self.best = choice, layout.micro_batch_size, layout.pipelines
        return predicted.step_seconds

    def _bound(self, pipelines: Sequence[Pipeline], size: int) -> float:
        """Return what no simulation beats.

        Before its first forward a rank waits for the stages before it, and after its last backward come theirs; what
        makes the weights' gradients may be done beside those. The optimizer comes when all is done.
        """
        busy: dict[int, float] = {}
        inputs: dict[int, float] = {}
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        for pipeline in pipelines:
            before = after = 0.0
            for s, stage in enumerate(pipeline.stages):
                if s:
                    hop = self._hop(pipeline.stages[s - 1].ranks, stage.ranks, size)
                    before, after = before + hop, after + hop
                times = self._seconds(stage.ranks, stage.num_layers, s == 0, s == len(pipeline.stages) - 1, size)
                for rank in stage.ranks:
                    count = pipeline.microbatches
                    busy[rank] = busy.get(rank, 0.0) + count * times.whole
                    inputs[rank] = inputs.get(rank, 0.0) + count * (times.forward + times.backward_input)
                    first[rank] = min(first.get(rank, math.inf), before)
                    last[rank] = min(last.get(rank, math.inf), after)
                before, after = before + times.forward, after + times.backward_input
        compute = max(max(first[rank] + busy[rank], first[rank] + inputs[rank] + last[rank]) for rank in busy)
        return compute + self._optimizer(pipelines)

    def _optimizer(self, pipelines: Sequence[Pipeline]) -> float:
        """Return the longest optimizer step if every slice's state is shared by all groups that hold its layer."""
        task, cost = self.task, compute_cost(self.task)
        stages = {(stage.ranks, stage.first_layer, stage.num_layers) for pipeline in pipelines
                  for stage in pipeline.stages}
        groups = [0] * task.architecture.num_layers
        for _, first, count in stages:
            for layer in range(first, first + count):
                groups[layer] += 1
        # What tensor-parallel ranks split; the little that each of them holds whole is left out.
        split = 2 * (cost.parameter_count(("layers.0",)) - cost.parameter_count(("layers.0",), 2))
        return max(cost.optimizer_seconds(task.cluster.node_of(ranks[0]), split / len(ranks) * sum(
            1 / groups[layer] for layer in range(first, first + count))) for ranks, first, count in stages)

    def _hop(self, before: Ranks, after: Ranks, size: int) -> float:
        """Return the seconds of one micro-batch's activations between two stages, with the link for itself."""
        if set(before) & set(after):
            return 0.0
        task = self.task
        key = task.cluster.node_of(before[0]).slot, task.cluster.node_of(after[0]).slot, size
        if key not in self._hops:
            pair = before[0], after[0]
            whole = task.architecture.boundary_bytes(size, compute_cost(task).element_bytes)
            self._hops[key] = NetworkCost(task.machine).message(task.cluster.shared_network(pair), *pair, whole).seconds
        return self._hops[key]

    def _seconds(self, ranks: Ranks, layers: int, first: bool, last: bool, size: int) -> Times:
        node = self.task.cluster.node_of(ranks[0])
        key = node.slot, len(ranks), layers, first, last, size
        if key not in self._times:
            units = self.task.architecture.stage_units(0, layers, first=first, last=last)
            cost = compute_cost(self.task)
            forward, backward = stage_seconds(self.task, cost, ranks, units, size)
            weight = weight_seconds(self.task, cost, ranks, units, size)
            self._times[key] = Times(forward, backward - weight, weight)
        return self._times[key]

    def _layouts(self, size: int) -> Iterator[tuple[Pipeline, ...]]:
        microbatches = self.task.settings.global_batch_size // size
        for groups in self._groups():
            names = {group: (self.task.cluster.node_of(group[0]).slot, len(group)) for group in groups}
            alike = _exchanges(self.task.cluster.nodes)
            for lists in _lists_of(groups, names, alike) if self.unlike else ():
                yield from self._cut(lists, microbatches, size)
            for stages in _ordered_partitions(groups, names, alike):
                if any(len(stage) > 1 for stage in stages):
                    yield from self._meshes(stages, microbatches, size)

    def _groups(self) -> Iterator[tuple[Ranks, ...]]:
        """Yield every division of the ranks into tensor-parallel groups."""
        architecture = self.task.architecture
        numbers = (architecture.num_heads, architecture.num_kv_heads, architecture.ffn_hidden_size)
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
        before, after, most, last = 0.0, 0.0, 10**9, len(cut) - 1
        for s, (ranks, layers) in enumerate(zip(stages, cut, strict=True)):
            if s:
                hop = self._hop(stages[s - 1], ranks, size)
                before, after = before + hop, after + hop
            times = self._seconds(ranks, layers, s == 0, s == last, size)
            most = min(most, int((self.limit - before) / times.whole),
                       int((self.limit - before - after) / (times.forward + times.backward_input)))
            before, after = before + times.forward, after + times.backward_input
        return most

    def _meshes(self, stages: Sequence[Sequence[Ranks]], microbatches: int,
                size: int) -> Iterator[tuple[Pipeline, ...]]:
        """Yield pipelines through shared stages: the common refinement of the equal divisions of all stages."""
        layers = self.task.architecture.num_layers
        points = sorted({Fraction(i, len(stage)) for stage in stages for i in range(len(stage) + 1)})
        if len(stages) > layers or microbatches < len(points) - 1:
            return
        middles = [(a + b) / 2 for a, b in itertools.pairwise(points)]
        ways = [[stage[int(middle * len(stage))] for stage in stages] for middle in middles]
        for cut in _compositions(layers, len(stages)):
            if microbatches > sum(self._most(way, cut, size) for way in ways):
                continue
            for counts in self._shares(ways, cut, microbatches, size):
                yield tuple(_pipeline(way, cut, count) for way, count in zip(ways, counts, strict=True))

    def _shares(self, ways: Sequence[Sequence[Ranks]], cut: Sequence[int], microbatches: int,
                size: int) -> Iterator[tuple[int, ...]]:
        """Yield the divisions of the micro-batches that leave no rank busy for longer than the limit."""
        last = len(cut) - 1
        rates = [{rank: self._seconds(ranks, count, s == 0, s == last, size).whole
                  for s, (ranks, count) in enumerate(zip(way, cut, strict=True)) for rank in ranks} for way in ways]

        def divide(p: int, left: int, busy: dict[int, float]) -> Iterator[tuple[int, ...]]:
            if p == len(ways):
                if left == 0:
                    yield ()
                return
            fewest = left if p == len(ways) - 1 else 1
            for count in range(fewest, left - (len(ways) - p - 1) + 1):
                now = {**busy, **{rank: busy.get(rank, 0.0) + count * each for rank, each in rates[p].items()}}
                if max(now.values()) >= self.limit:
                    return
                for others in divide(p + 1, left - count, now):
                    yield (count, *others)

        yield from divide(0, microbatches, {})


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


def _kind(node: Node) -> tuple[object, ...]:
    return node.fabric, node.gpu, node.gpus, node.nic, node.nics, node.ethernet_gbps


def _exchanges(nodes: Sequence[Node]) -> list[dict[str, str]]:
    """Return every way to name equal nodes anew."""
    kinds: dict[object, list[str]] = {}
    for node in nodes:
        kinds.setdefault(_kind(node), []).append(node.slot)
    orders = itertools.product(*(itertools.permutations(slots) for slots in kinds.values()))
    return [{old: new for slots, order in zip(kinds.values(), chosen, strict=True)
             for old, new in zip(slots, order, strict=True)} for chosen in orders]


def _lists_of(groups: Sequence[Ranks], names: Names,
              alike: Sequence[dict[str, str]]) -> Iterator[tuple[tuple[Ranks, ...], ...]]:
    """Yield every set of ordered lists of the groups, groups of one node and size not told apart."""
    seen = set()
    for partition in _set_partitions(groups):
        for orders in itertools.product(*(itertools.permutations(block) for block in partition)):
            named = [[names[group] for group in order] for order in orders]
            key = min(tuple(sorted(tuple((new[slot], size) for slot, size in order) for order in named))
                      for new in alike)
            if key not in seen:
                seen.add(key)
                yield orders


def _ordered_partitions(groups: Sequence[Ranks], names: Names,
                        alike: Sequence[dict[str, str]]) -> Iterator[tuple[tuple[Ranks, ...], ...]]:
    seen = set()
    for partition in _set_partitions(groups):
        for order in itertools.permutations(partition):
            named = [[names[group] for group in stage] for stage in order]
            key = min(tuple(tuple(sorted((new[slot], size) for slot, size in stage)) for stage in named)
                      for new in alike)
            if key not in seen:
                seen.add(key)
                yield tuple(tuple(sorted(stage)) for stage in order)
