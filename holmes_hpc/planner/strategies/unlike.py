"""Layouts of unlike pipelines: templates on kinds of nodes, put together by a knapsack on the step time."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.layout.node_kinds import Kind, on_nodes
from holmes_hpc.planner.layout.pipelines import build_pipelines
from holmes_hpc.planner.strategies.fleets.knapsack import Fleet, Knapsack, alike_fleets, share_microbatches
from holmes_hpc.planner.strategies.fleets.placement import place, place_mesh, used_slots
from holmes_hpc.planner.strategies.fleets.shared_stages import Mesh, enumerate_meshes, price_meshes
from holmes_hpc.planner.strategies.fleets.space import Space, space_with_degrees
from holmes_hpc.planner.strategies.fleets.templates import Template
from holmes_hpc.planner.strategies.proposals import (
    AlikePipelines,
    LayoutFacts,
    Proposal,
    SharedStages,
    UnlikePipelines,
)
from holmes_hpc.planner.strategies.refusals import no_pipelines
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Pipeline
from holmes_hpc.values.strategy_kinds import UNLIKE

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


def proposals(task: Task, strategy: str = UNLIKE.name) -> list[Proposal]:
    """Return the most promising layouts of like and unlike pipelines, best estimates first.

    Recomputation is searched where it is left open: it costs time and saves memory. Raises PlanRefusedError when no
    template fits into memory.
    """
    choices = RECOMPUTATIONS if task.settings.search_recompute else (task.settings.recompute,)
    proposed: list[Proposal] = []
    refusals: list[PlanRefusedError] = []
    short = False
    for recompute in choices:
        if proposed and (recompute == "selective" or not short):
            continue  # A fused attention core leaves little to save; and where all fits, there is no need.
        other = dataclasses.replace(task, settings=task.settings.replace(recompute=recompute, search_recompute=False))
        known = {each.facts: each.estimate_seconds for each in proposed}
        try:
            found, dropped = _proposals(other, strategy, min([float("inf"), *known.values()]))
            short = short or dropped
            for each in found:
                # Recomputing is only worth proposing where the layout is faster for it, or does not fit without.
                if each.estimate_seconds < known.get(each.facts, float("inf")) * (1 - 1e-9):
                    facts = dataclasses.replace(each.facts, recompute=recompute)
                    proposed.append(dataclasses.replace(each, facts=facts))
        except PlanRefusedError as refusal:
            refusals.append(refusal)
            short = True
    if not proposed and refusals:
        raise refusals[-1]
    return sorted(proposed, key=lambda each: each.estimate_seconds)


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
        raise no_pipelines(task, max(map(max, space.degrees)), micro_batch_sizes_of(task),
                           short_of_memory=space.short_of_memory)
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

    form = SharedStages(tuple((space.kinds[k].name, tensor, width, count) for (k, tensor, width), count
                              in zip(mesh.stages, mesh.layers, strict=True)))
    return Proposal(LayoutFacts(strategy, form, size), task, GroupRules(two_level=task.settings.two_level),
                    mesh.seconds, True, build)


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

        form = UnlikePipelines(_forms(space.kinds, fleet), together if len(places) > 1 else None)
        yield Proposal(LayoutFacts(strategy, form, size), task, GroupRules(two_level=task.settings.two_level),
                       space.placed_seconds(fleet, size, together=together), fits, build)


def _forms(kinds: Sequence[Kind], fleet: Fleet) -> tuple[AlikePipelines, ...]:
    return tuple(AlikePipelines(copies, tuple((kinds[kind].name, tensor, count)
                                              for kind, tensor, count in template.segments), tuple(template.layers))
                 for template, copies in Counter(template for template, _ in fleet.pipelines).items())


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
