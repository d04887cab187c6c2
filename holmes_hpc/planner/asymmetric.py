"""Layouts of unlike pipelines: templates on kinds of nodes, put together by a knapsack on the step time."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.fleet_memory import FleetMemory, sharers_hoped_for
from holmes_hpc.planner.fleets import Fleet, Knapsack, alike_fleets, share_microbatches
from holmes_hpc.planner.groups import GroupRules
from holmes_hpc.planner.kinds import Kind, node_kinds, on_nodes
from holmes_hpc.planner.meshes import Mesh, enumerate_meshes, price_meshes
from holmes_hpc.planner.pipelines import build_pipelines
from holmes_hpc.planner.placement import place, place_mesh, used_slots
from holmes_hpc.planner.pricing import CostPricing, StagePricing
from holmes_hpc.planner.proposals import Proposal
from holmes_hpc.planner.settings import Task
from holmes_hpc.planner.shapes import indivisible, tensor_degrees
from holmes_hpc.planner.templates import BACKWARD_SHARE, Segment, Template, enumerate_segments, price_templates
from holmes_hpc.values import Pipeline
from holmes_hpc.words import counted

_MOST_KEPT = 300
"""Templates that the knapsack looks at for each micro-batch size: the best for their GPUs."""
_MOST_ALIKE = 24
"""Fleets of one template each that are kept for each micro-batch size."""
_MOST_PROPOSED = 60
_MOST_MESHES = 24
_MOST_MICRO_BATCH = 32
_FEW_RANKS = 8
_FAR_BEHIND = 1.25
RECOMPUTATIONS = ("none", "selective", "full")


@dataclass(frozen=True)
class Found:
    """A fleet at a micro-batch size."""

    fleet: Fleet
    size: int


class Space:
    """What may be chosen from: kinds of nodes, tensor-parallel degrees, and prices."""

    def __init__(self, task: Task, pricing: StagePricing | None = None) -> None:
        self.task = task
        self.kinds = node_kinds(task)
        self.pricing = pricing or CostPricing(task)
        self.degrees = [tensor_degrees_of(task, kind) for kind in self.kinds]
        self.num_layers = task.architecture.num_layers
        self._known: dict[int, dict[tuple[Segment, ...], Template | None]] = {}
        self.segments = enumerate_segments(self.kinds, self.degrees, self.num_layers, task.settings.pipeline)

    def templates(self, size: int, segments: Sequence[tuple[Segment, ...]] | None = None) -> list[Template]:
        """Return the templates that fit into memory at a micro-batch size; each is priced once."""
        wanted = self.segments if segments is None else segments
        known = self._known.setdefault(size, {})
        new = [each for each in wanted if each not in known]
        shared_by = sharers_hoped_for(self.kinds, self.task.settings.global_batch_size // size)
        known.update(dict.fromkeys(new))
        known.update({template.segments: template for template in
                      price_templates(self.pricing, self.kinds, new, self.num_layers, size, shared_by)})
        return [template for each in wanted if (template := known[each]) is not None]

    @cached_property
    def memory(self) -> FleetMemory:
        """Whether fleets fit into memory."""
        return FleetMemory(self.pricing, self.kinds, self.num_layers, two_level=self.task.settings.two_level)

    @property
    def short_of_memory(self) -> bool:
        """Whether some template did not fit."""
        return any(template is None for known in self._known.values() for template in known.values())

    @cached_property
    def _layer_sync_seconds(self) -> list[float]:
        """Return, by kind, the seconds that its nodes sum one layer's gradients."""
        layer = self.pricing.layer_gradient_bytes()
        return [layer * self.pricing.sync_seconds_a_byte((kind,), (len(kind.nodes),)) for kind in self.kinds]

    @cached_property
    def _table_by_kind(self) -> list[float]:
        size = self.pricing.table_gradient_bytes()
        return [size * self.pricing.sync_seconds_a_byte((kind,), (len(kind.nodes),)) for kind in self.kinds]

    @cached_property
    def is_tied(self) -> bool:
        """Whether the first and the last stage hold one table."""
        return self.pricing.tied_gradient_bytes() > 0

    def sync_seconds(self, template: Template, *, across: bool) -> float:
        """Return about how long the gradients of a template's stages are summed, if all pipelines are alike.

        With `across`, pipelines hold the same layers in different fabrics, so that the whole model's gradients cross.
        """
        seconds, first, hidden = 0.0, 0, 0.0
        for kind, _, count in template.segments:
            most = max(template.layers[first:first + count])
            seconds = max(seconds, most * self._layer_sync_seconds[kind] - hidden)
            hidden += BACKWARD_SHARE * template.work * count / template.depth
            first += count
        return seconds + (self._across_seconds if across else self._table_seconds(template))

    def _table_seconds(self, template: Template) -> float:
        """Return how long the token table's gradient is summed inside the fabrics of a template's ends, last of all.

        Between fabrics it is counted into the template's hops.
        """
        kinds = {template.segments[0][0], template.segments[-1][0]} if self.is_tied else {template.segments[0][0]}
        return max(self._table_by_kind[kind] for kind in kinds)

    def placed_seconds(self, fleet: Fleet, size: int, *, together: bool) -> float:
        """Return about how long a step takes with the stages placed as `placement.place` does."""
        copies = Counter(template for template, _ in fleet.pipelines)
        longest = sync = 0.0
        counts: dict[Template, int] = {}
        for template, count in fleet.pipelines:
            counts[template] = max(count, counts.get(template, 0))
        for template, count in counts.items():
            crowds = [(kind, tensor, stages, self._stages_in_node(kind, tensor, stages, copies[template], together))
                      for kind, tensor, stages in template.segments]
            period, first = template.period, 0
            for (k, t, n, in_a), (other, u, m, in_b) in itertools.pairwise(crowds):
                hop = self.pricing.hop(self.kinds[k], self.kinds[other], size)
                period = max(period, max(in_a / n, in_b / m) * max(t, u) * hop.node_seconds)
            longest = max(longest, template.fill + count * period)
            hidden = 0.0
            for k, _, n, in_node in crowds:
                most = max(template.layers[first:first + n])
                bytes_in_node = min(1.0 if together else n, in_node) * most * self.pricing.layer_gradient_bytes()
                node = self.kinds[k]
                seconds = self.pricing.sync_seconds_a_byte((node,), (len(node.nodes),))
                sync = max(sync, bytes_in_node * seconds - hidden)
                hidden += BACKWARD_SHARE * template.work * n / template.depth
                first += n
        if len(fleet.pipelines) == 1:
            return longest
        return longest + sync + self._crossing_seconds(copies) + max(map(self._table_seconds, copies))

    def _crossing_seconds(self, templates: Iterable[Template]) -> float:
        """Return how long the gradients of the layers are summed that pipelines hold in unlike fabrics."""
        held: list[set[str]] = [set() for _ in range(self.num_layers)]
        for template in templates:
            stages = [self.kinds[kind].fabric for kind, _, count in template.segments for _ in range(count)]
            first = 0
            for fabric, layers in zip(stages, template.layers, strict=True):
                for layer in held[first:first + layers]:
                    layer.add(fabric)
                first += layers
        crossing = sum(len(fabrics) > 1 for fabrics in held)
        table = self.pricing.table_gradient_bytes() if len(held[0]) > 1 else 0.0
        return (crossing * self.pricing.layer_gradient_bytes() + table) * self._across_seconds_a_byte

    def _stages_in_node(self, k: int, tensor: int, stages: int, copies: int, together: bool) -> float:
        """Return how many stages of a segment are in a node, scaled so that a border has its part of them."""
        most = self.kinds[k].gpus / tensor
        return min(copies, most) * stages if together else max(float(stages), most)

    @cached_property
    def _across_seconds(self) -> float:
        whole = self.num_layers * self.pricing.layer_gradient_bytes() + self.pricing.table_gradient_bytes()
        return whole * self._across_seconds_a_byte

    @cached_property
    def _across_seconds_a_byte(self) -> float:
        return self.pricing.sync_seconds_a_byte(self.kinds, tuple(len(kind.nodes) for kind in self.kinds))

    def spans(self, template: Template) -> frozenset[str]:
        """Return the fabrics that a template lies in."""
        return frozenset(self.kinds[kind].fabric for kind, _, _ in template.segments)

    def work_bound(self, size: int, microbatches: int) -> float:
        """Return a step time that no fleet beats: all GPUs busy with layers and the head all the time."""
        rate = sum(kind.total_gpus / min(tensor * self.pricing.layer_seconds(kind, tensor, size) for tensor in degrees)
                   for kind, degrees in zip(self.kinds, self.degrees, strict=True))
        head = min(self.pricing.end_seconds(kind, tensor, size, first=False, last=True)
                   / self.pricing.layer_seconds(kind, tensor, size)
                   for kind, degrees in zip(self.kinds, self.degrees, strict=True) for tensor in degrees)
        return microbatches * (self.num_layers + head) / rate


def tensor_degrees_of(task: Task, kind: Kind) -> tuple[int, ...]:
    """Return the tensor-parallel degrees that nodes of a kind and the model allow, the asked one alone if any."""
    asked = task.settings.tensor
    return tuple(tensor for tensor in range(1, kind.gpus + 1)
                 if kind.gpus % tensor == 0 and asked in (None, tensor) and not indivisible(task, tensor))


def space_of(task: Task) -> Space:
    """Return what a task may choose from: the same for every strategy that asks."""
    if "space" not in task.derived:
        task.derived["space"] = Space(task)
    space: Space = task.derived["space"]
    return space


def asymmetric_proposals(task: Task, strategy: str = "auto") -> list[Proposal]:
    """Return the most promising layouts of like and unlike pipelines, best estimates first.

    Recomputation is searched where it is left open: it costs time and saves memory. Raises PlanRefusedError when no
    template fits into memory.
    """
    choices = RECOMPUTATIONS if task.settings.search_recompute else (task.settings.recompute,)
    proposals: list[Proposal] = []
    refusals: list[PlanRefusedError] = []
    short = False
    for recompute in choices:
        if proposals and (recompute == "selective" or not short):
            continue  # A fused attention core leaves little to save; and where all fits, there is no need.
        other = dataclasses.replace(task, settings=task.settings.replace(recompute=recompute, search_recompute=False))
        known = {each.words: each.estimate_seconds for each in proposals}
        try:
            found, dropped = _proposals(other, strategy, min([float("inf"), *known.values()]))
            short = short or dropped
            for each in found:
                # Recomputing is only worth proposing where the layout is faster for it, or does not fit without.
                if each.estimate_seconds < known.get(each.words, float("inf")) * (1 - 1e-9):
                    words = each.words + (f", recomputing {recompute}" if recompute != "none" else "")
                    proposals.append(dataclasses.replace(each, words=words))
        except PlanRefusedError as refusal:
            refusals.append(refusal)
            short = True
    if not proposals and refusals:
        raise refusals[-1]
    return sorted(proposals, key=lambda each: each.estimate_seconds)


def space_with_degrees(task: Task) -> Space:
    """Return the space of a task. Raises PlanRefusedError where the asked tensor-parallel degree does not fit."""
    space = space_of(task)
    if not all(space.degrees):
        tensor_degrees(task)  # says which degrees would
        raise PlanRefusedError(f"parallel.tensor={task.settings.tensor} does not divide the GPUs of every node and the "
                               "model's heads. Set it to a smaller number, or to null.")
    return space


def _proposals(task: Task, strategy: str, best: float) -> tuple[list[Proposal], bool]:
    """Return layouts with one kind of recomputation that may be faster than `best`, and whether some did not fit."""
    space = space_with_degrees(task)
    limit = best
    found = search_fleets(space, best)
    best = min([best, *(each.fleet.seconds for each in found[:1])])
    meshes = list(_mesh_proposals(space, strategy, best)) if task.settings.data is None else []
    if not found and (meshes or limit < float("inf")):
        return meshes, space.short_of_memory
    if not found:
        raise PlanRefusedError("memory: no pipeline over these nodes holds the model with parallel.tensor="
                               f"{task.settings.tensor} and parallel.pipeline={task.settings.pipeline}, or the batch "
                               "has fewer micro-batches than pipelines. Use more nodes, a smaller "
                               "parallel.micro_batch_size or a smaller model.")
    fleets = [proposal for each in found[:_MOST_PROPOSED]
              for proposal in propose(space, each.fleet, each.size, strategy)]
    return meshes + fleets, space.short_of_memory


def search_fleets(space: Space, limit: float = float("inf")) -> list[Found]:
    """Return the fleets found for every micro-batch size that may be faster than `limit` seconds, fastest first.

    Sizes rise, and the search ends where the best of one is far behind the best so far: filling grows with the size.
    """
    found: list[Found] = []
    for size in micro_batch_sizes_of(space.task):
        microbatches = space.task.settings.global_batch_size // size
        if space.work_bound(size, microbatches) > limit:
            continue
        best_of_size = float("inf")
        for fleet in _fleets(space, space.templates(size), microbatches, limit):
            found.append(Found(fleet, size))
            limit, best_of_size = min(limit, fleet.seconds), min(best_of_size, fleet.seconds)
        if limit < float("inf") and best_of_size > _FAR_BEHIND * limit and space.task.cluster.world_size > _FEW_RANKS:
            break
    return sorted(found, key=lambda each: each.fleet.seconds)


def _mesh_proposals(space: Space, strategy: str, best: float) -> Iterator[Proposal]:
    """Yield the layouts of stages that all pipelines share, those that are not much slower than the best known."""
    task = space.task
    found: list[tuple[Mesh, int]] = []
    may_idle = task.settings.leave_nodes_out
    known = enumerate_meshes(space.kinds, space.degrees, space.num_layers, may_idle=may_idle,
                             wrap=space.is_tied)
    for size in micro_batch_sizes_of(task):
        microbatches = task.settings.global_batch_size // size
        if space.work_bound(size, microbatches) > best:
            continue
        meshes = price_meshes(space.pricing, space.kinds, space.degrees, space.num_layers, task.settings.pipeline,
                              size, microbatches, may_idle=may_idle, known=known)
        if meshes and meshes[0].seconds > _FAR_BEHIND * best and task.cluster.world_size > _FEW_RANKS:
            break
        found += [(mesh, size) for mesh in meshes[:_MOST_MESHES]]
        best = min([best, *(mesh.seconds for mesh in meshes[:1])])
    for mesh, size in sorted(found, key=lambda each: (each[0].seconds, each[1]))[:_MOST_MESHES]:
        yield _propose_mesh(space, mesh, size, strategy)


def _propose_mesh(space: Space, mesh: Mesh, size: int, strategy: str) -> Proposal:
    used = dict.fromkeys(kind for kind, _, _ in mesh.stages)
    task = on_nodes(space.task, [node.slot for k in used for node in space.kinds[k].nodes])
    microbatches = space.task.settings.global_batch_size // size

    def build() -> tuple[Pipeline, ...]:
        parts = place_mesh(mesh.stages, space.kinds, task.cluster)
        if parts is None:
            raise PlanRefusedError("the tensor-parallel groups do not fill the nodes")
        return build_pipelines(parts, mesh.layers, microbatches)

    stages = ", ".join(
        f"{space.kinds[k].name} {width} wide, "
        f"{counted(count, 'layer')}" + (f" of tensor {tensor}" if tensor > 1 else "")
        for (k, tensor, width), count in zip(mesh.stages, mesh.layers, strict=True))
    actions = 6 * microbatches * len(mesh.stages)
    return Proposal(strategy, f"stages shared by all pipelines [{stages}], micro-batch {size}", task, size,
                    GroupRules(two_level=task.settings.two_level), mesh.seconds, True, actions, build)


def micro_batch_sizes_of(task: Task) -> tuple[int, ...]:
    """Return the asked micro-batch size, or the powers of two that divide the batch; for few ranks all divisors."""
    if task.settings.micro_batch_size is not None:
        return (int(task.settings.micro_batch_size),)
    batch = task.settings.global_batch_size
    few = task.cluster.world_size <= _FEW_RANKS
    return tuple(size for size in range(1, min(batch, _MOST_MICRO_BATCH) + 1)
                 if batch % size == 0 and (few or size & (size - 1) == 0))


def propose(space: Space, fleet: Fleet, size: int, strategy: str) -> Iterator[Proposal]:
    """Yield the layouts of a fleet: stages together in nodes, or pipelines together, where that differs."""
    like = len({space.spans(template) for template, _ in fleet.pipelines}) == 1
    fleet, fits = space.memory.fitted(fleet, size, lambda template: space.sync_seconds(template, across=not like))
    task = on_nodes(space.task, used_slots(fleet, space.kinds))
    places = (True, False) if len(fleet.pipelines) > 1 and max(t.depth for t, _ in fleet.pipelines) > 1 else (True,)
    for together in places:
        def build(together: bool = together) -> tuple[Pipeline, ...]:
            pipelines = place(fleet, space.kinds, task.cluster, stages_together=together)
            if pipelines is None:
                raise PlanRefusedError("the tensor-parallel groups do not fill the nodes")
            return pipelines

        words = describe_fleet(space.kinds, fleet) + f", micro-batch {size}"
        if len(places) > 1:
            words += ", stages fill nodes" if together else ", pipelines fill nodes"
        actions = 6 * sum(template.depth * count for template, count in fleet.pipelines)
        yield Proposal(strategy, words, task, size, GroupRules(two_level=task.settings.two_level),
                       space.placed_seconds(fleet, size, together=together), fits, actions, build)


def describe_fleet(kinds: Sequence[Kind], fleet: Fleet) -> str:
    """Return a fleet in words: `2 x [ib 2, roce 1 of tensor 2: layers 3+3+2]`."""
    words = []
    for template, copies in Counter(template for template, _ in fleet.pipelines).items():
        stages = ", ".join(f"{kinds[kind].name} {count}" + (f" of tensor {tensor}" if tensor > 1 else "")
                           for kind, tensor, count in template.segments)
        layers = "+".join(f"{layer}" if n == 1 else f"{n}x{layer}" for layer, n in
                          ((layer, len(list(group))) for layer, group in itertools.groupby(template.layers)))
        words.append(f"{copies} x [{stages}: layers {layers}]")
    return " and ".join(words)


def _fleets(space: Space, templates: Sequence[Template], microbatches: int, best: float) -> Iterator[Fleet]:
    """Yield fleets for one micro-batch size: alike ones, then the knapsack's."""
    settings = space.task.settings
    may_idle = settings.leave_nodes_out
    alone = [space.sync_seconds(template, across=False) for template in templates]
    alike = sorted(alike_fleets(space.kinds, templates, alone, microbatches, may_idle=may_idle),
                   key=lambda fleet: fleet.seconds)
    alike = [fleet for fleet in alike if settings.data in (None, len(fleet.pipelines))]
    syncs = dict(zip(templates, alone, strict=True))
    for fleet in alike[:_MOST_ALIKE]:
        shared = [template for template, _ in fleet.pipelines]
        exact = share_microbatches(shared, [syncs[template] * (len(shared) > 1) for template in shared], microbatches)
        if exact is not None:
            best = min(best, exact.seconds)
            yield exact
    if not templates:
        return
    if best == float("inf"):
        best = 4 * microbatches * max(template.period for template in templates) + max(t.fill for t in templates)
    fabrics = frozenset(kind.fabric for kind in space.kinds)
    groups: list[tuple[list[Template], bool]] = [(list(templates), len(fabrics) > 1)]
    if len(fabrics) > 1:
        groups.append(([template for template in templates if space.spans(template) == fabrics], False))
    for some, across in groups:
        kept = _efficient(space, some, best)
        cost = [space.sync_seconds(template, across=across) for template in kept]
        for fleet in Knapsack(space.kinds, kept, cost, microbatches).fleets(best, may_idle=may_idle):
            if settings.data in (None, len(fleet.pipelines)):
                yield fleet


def _efficient(space: Space, templates: Iterable[Template], seconds: float) -> list[Template]:
    """Return the templates that make the most of their GPUs in a step of about `seconds`."""
    speed = [1 / space.pricing.layer_seconds(kind, 1, 1) if 1 in degrees else
             1 / space.pricing.layer_seconds(kind, degrees[0], 1) / degrees[0]
             for kind, degrees in zip(space.kinds, space.degrees, strict=True)]

    def waste(template: Template) -> float:
        price = sum(gpus * each for gpus, each in zip(template.gpus(len(speed)), speed, strict=True))
        passed = max(1e-9, (seconds - template.fill) / template.period)
        return price / passed

    return sorted(templates, key=waste)[:_MOST_KEPT]
