"""Layouts of unlike pipelines: templates on kinds of nodes, put together by a knapsack on the step time."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.layout.node_kinds import Kind, on_nodes
from holmes_hpc.planner.strategies.estimates import Estimated, ShapeSearch, propose_shape
from holmes_hpc.planner.strategies.fleets.knapsack import Fleet, Knapsack, alike_fleets, share_microbatches
from holmes_hpc.planner.strategies.fleets.placed import Placed, placed_seconds
from holmes_hpc.planner.strategies.fleets.placement import place, used_slots
from holmes_hpc.planner.strategies.fleets.shared_stages import enumerate_stages, shared_shapes
from holmes_hpc.planner.strategies.fleets.space import Space, space_with_degrees
from holmes_hpc.planner.strategies.fleets.templates import Template
from holmes_hpc.planner.strategies.proposals import (
    AlikePipelines,
    LayoutFacts,
    Proposal,
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
_MOST_SHARED = 24
_MOST_MICRO_BATCH = 32
_FEW_RANKS = 8
_FAR_BEHIND = 1.25


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
    choices = task.settings.recomputations if task.settings.search_recompute else (task.settings.recompute,)
    proposed: list[Proposal] = []
    refusals: list[PlanRefusedError] = []
    short = False
    shared = functools.cache(lambda: _shared_searches(space_with_degrees(task), strategy))
    for recompute in choices:
        if proposed and (recompute == "selective" or not short):
            continue  # A fused attention core leaves little to save; and where all fits, there is no need.
        other = dataclasses.replace(task, settings=task.settings.replace(recompute=recompute, search_recompute=False))
        known = {each.facts: each.estimate_seconds for each in proposed}
        try:
            found, dropped = _proposals(other, strategy, shared, min([float("inf"), *known.values()]))
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


def _proposals(task: Task, strategy: str, shared_searches: Callable[[], list[ShapeSearch]],
               best: float) -> tuple[list[Proposal], bool]:
    """Return layouts with one kind of recomputation that may be faster than `best`, and whether some did not fit."""
    space = space_with_degrees(task)
    limit = best
    found = search_fleets(space, best)
    best = min([best, *(each.fleet.seconds for each in found[:1])])
    shared = _shared_proposals(space, shared_searches(), best) if task.settings.data is None else []
    if not found and (shared or limit < float("inf")):
        return shared, space.short_of_memory
    if not found:
        raise no_pipelines(task, max(map(max, space.degrees)), micro_batch_sizes_of(task),
                           short_of_memory=space.short_of_memory)
    return shared + propose(space, found[:_MOST_PROPOSED], strategy), space.short_of_memory


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


def _shared_searches(space: Space, strategy: str) -> list[ShapeSearch]:
    """Return the shapes of stages that all pipelines share, by the nodes that they use."""
    asked, idle = space.task.settings.pipeline, space.task.settings.leave_nodes_out
    stages = [each for each in enumerate_stages(space.kinds, space.degrees, space.num_layers, may_idle=idle,
                                                wrap=space.is_tied, like=space.like) if asked in (None, len(each))]
    return [ShapeSearch(own, shapes) for own, shapes in shared_shapes(space.task, space.kinds, stages, strategy)]


def _shared_proposals(space: Space, known: Sequence[ShapeSearch], best: float) -> list[Proposal]:
    """Return the layouts of stages that all pipelines share, those that are not much slower than the best known."""
    task = space.task
    found: list[tuple[Task, Estimated]] = []
    tasks = [on_nodes(task, [node.slot for node in search.estimator.task.cluster.nodes]) for search in known]
    searches = [(own, search.for_task(own)) for own, search in zip(tasks, known, strict=True)]
    for size in micro_batch_sizes_of(task):
        if space.work_bound(size, task.settings.global_batch_size // size) > best:
            continue
        of_size = sorted(((own, each) for own, search in searches for each in search.fitting(size)),
                         key=lambda pair: pair[1].seconds)[:_MOST_SHARED]
        if of_size and of_size[0][1].seconds > _FAR_BEHIND * best and task.cluster.world_size > _FEW_RANKS:
            break
        found += of_size
        best = min([best, *(each.seconds for _, each in of_size[:1])])
    found.sort(key=lambda pair: pair[1].seconds)
    return [propose_shape(own, each) for own, each in found[:_MOST_SHARED]]


def micro_batch_sizes_of(task: Task) -> tuple[int, ...]:
    """Return the asked micro-batch size, or the powers of two that divide the batch; for few ranks all divisors."""
    if task.settings.micro_batch_size is not None:
        return (int(task.settings.micro_batch_size),)
    batch = task.settings.global_batch_size
    few = task.cluster.world_size <= _FEW_RANKS
    return tuple(size for size in range(1, min(batch, _MOST_MICRO_BATCH) + 1)
                 if batch % size == 0 and (few or size & (size - 1) == 0))


def propose(space: Space, found: Sequence[Found], strategy: str) -> list[Proposal]:
    """Return the layouts of fleets: stages together in nodes, or pipelines together, where that differs."""
    placed = [(each, fits) for fleet, size, fits in (_fitted(space, each) for each in found)
              for each in _places(fleet, size)]
    seconds = placed_seconds(space, [each for each, _ in placed])
    return [_proposal(space, each, fits, estimate, strategy)
            for (each, fits), estimate in zip(placed, seconds, strict=True)]


def _fitted(space: Space, found: Found) -> tuple[Fleet, int, bool]:
    like = len({space.spans(template) for template, _ in found.fleet.pipelines}) == 1
    fleet, fits = space.memory.fitted(found.fleet, found.size,
                                      lambda template: space.sync_seconds(template, across=not like))
    return fleet, found.size, fits


def _places(fleet: Fleet, size: int) -> list[Placed]:
    several = len(fleet.pipelines) > 1 and max(template.depth for template, _ in fleet.pipelines) > 1
    return [Placed(fleet, size, together) for together in ((True, False) if several else (True,))]


def _proposal(space: Space, placed: Placed, fits: bool, seconds: float, strategy: str) -> Proposal:
    fleet, several = placed.fleet, len(_places(placed.fleet, placed.size)) > 1
    task = on_nodes(space.task, used_slots(fleet, space.kinds))

    def build() -> tuple[Pipeline, ...]:
        pipelines = place(fleet, space.kinds, task.cluster, stages_together=placed.stages_together)
        if pipelines is None:
            raise PlanRefusedError("the tensor-parallel groups do not fill the nodes")
        return pipelines

    form = UnlikePipelines(_forms(space.kinds, fleet), placed.stages_together if several else None)
    return Proposal(LayoutFacts(strategy, form, placed.size), task, GroupRules(two_level=task.settings.two_level),
                    seconds, fits, build)


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
        cost = [space.sync_seconds(template, across=True) if across else syncs[template] for template in kept]
        for fleet in Knapsack(space.kinds, kept, cost, microbatches).fleets(best, may_idle=may_idle):
            if settings.data in (None, len(fleet.pipelines)):
                yield fleet


def _efficient(space: Space, templates: Iterable[Template], seconds: float) -> list[Template]:
    """Return the templates that make the most of their GPUs in a step of about `seconds`."""
    speed = [1 / space.stage_costs.layer_seconds(kind, 1, 1) if 1 in degrees else
             1 / space.stage_costs.layer_seconds(kind, degrees[0], 1) / degrees[0]
             for kind, degrees in zip(space.kinds, space.degrees, strict=True)]

    def waste(template: Template) -> float:
        price = sum(gpus * each for gpus, each in zip(template.gpus(len(speed)), speed, strict=True))
        passed = max(1e-9, (seconds - template.fill) / template.period)
        return price / passed

    return sorted(templates, key=waste)[:_MOST_KEPT]
