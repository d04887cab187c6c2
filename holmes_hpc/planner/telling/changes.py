"""What the user could change, and what it would give: the same layout, predicted again on a changed machine or task.

The layout stays as it is, so that a figure is what at least is to be had; a new search may find more. Only where nodes
are left out it is another one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.planner.cost.rank_memory import USABLE_FRACTION
from holmes_hpc.planner.layout.groups import GroupRules, find_groups
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.search.fewer_nodes import faster_on_fewer, left_out
from holmes_hpc.planner.search.schedules import candidate_schedules
from holmes_hpc.planner.simulation.predict import predict
from holmes_hpc.planner.task import RECOMPUTATIONS, Task
from holmes_hpc.planner.telling.slow_links import faster_ethernet, on_cluster
from holmes_hpc.planner.telling.typed import overrides_for
from holmes_hpc.schedule.turns import turn_ranks
from holmes_hpc.values import Group, Pipeline, Plan, Prediction, ScheduleChoice, Synchronization
from holmes_hpc.values.capabilities import ENGINE
from holmes_hpc.values.strategy_kinds import strategy_kind
from holmes_hpc.words import seconds_words

MOST_CHANGES = 4
_LEAST_GAIN = 0.01
_MOST_ACTIONS = 150_000
"""Simulated actions, about a second or two; the first changes are always looked at."""
_ACTIONS_A_RANK = 40
"""What pricing a rank takes, in simulated actions."""
_ALWAYS = 2
_ACTIONS_A_MICROBATCH = 6
_ETHERNET = "ethernet"
_NARROW = "bfloat16"


@dataclass(frozen=True)
class Change:
    """A change in words, with the setting, and the tokens per second that it gives relative to the plan's."""

    words: str
    gain: float


@dataclass(frozen=True)
class _Variant:
    words: str
    task: Task
    layout: Layout
    choice: ScheduleChoice


def find_changes(task: Task, layout: Layout, plan: Plan, used: set[str]) -> tuple[Change, ...]:
    """Return the changes that gain most and fit into memory, at most `MOST_CHANGES`, each by a hundredth or more.

    `used` are the networks that carry anything.
    """
    found = []
    budget, number = _MOST_ACTIONS, 0
    for variants in _variants(task, layout, plan, used):
        best: Change | None = None
        for variant in variants:
            budget -= _cost(variant)
            number += 1
            if number > _ALWAYS and budget < 0:
                break
            other = predict(variant.task, variant.layout, variant.choice)
            gain = other.tokens_per_second / plan.predicted.tokens_per_second - 1
            if gain > (best.gain if best else _LEAST_GAIN) and _fits(variant.task, other):
                best = Change(variant.words, gain)
        found += [best] if best else []
    found += _fewer_nodes(task, plan)
    return tuple(sorted(found, key=lambda change: -change.gain)[:MOST_CHANGES])


def _fewer_nodes(task: Task, plan: Plan) -> list[Change]:
    """Return the change to some of the nodes, planned anew: the only one that is another layout."""
    step = plan.predicted.step_seconds
    fewer = faster_on_fewer(task, step)
    if fewer is None:
        return []
    words = (f"without {left_out(task, fewer.task)}, planned anew: {seconds_words(fewer.seconds)} a step "
             "(parallel.leave_nodes_out=true)")
    return [Change(words, step / fewer.seconds - 1)]


def _cost(variant: _Variant) -> int:
    """Return about how many actions a simulation takes.

    Of pipelines over the same nodes one is simulated, and alike pipelines in two short steps.
    """
    cluster, pipelines = variant.task.cluster, variant.layout.pipelines
    kinds = {(pipeline.microbatches, tuple(cluster.node_of(stage.ranks[0]).slot for stage in pipeline.stages))
             for pipeline in pipelines}
    depth = max(len(pipeline.stages) for pipeline in pipelines)
    most = 4 * (depth + 16) * (1 + variant.choice.warmup_extra)
    return _ACTIONS_A_RANK * cluster.world_size + _ACTIONS_A_MICROBATCH * sum(
        min(most, microbatches) * len(slots) for microbatches, slots in kinds)


def _fits(task: Task, predicted: Prediction) -> bool:
    return all(predicted.memory_gib_per_rank[rank] <= task.machine.memory_gib(node) * USABLE_FRACTION
               for node in task.cluster.nodes for rank in task.cluster.ranks_of(node))


def _variants(task: Task, layout: Layout, plan: Plan, used: set[str]) -> Iterator[Iterator[_Variant]]:
    """Yield what to try, in kinds of which the best is told; first what is most often worth it."""
    choice = plan.schedule
    if _ETHERNET in used:
        yield _faster_ethernet(task, layout, choice)
    yield _untied(task, layout, choice, plan.strategy)
    yield _narrower_numbers(task, layout, choice)
    yield _more_overlap(task, layout, choice)
    yield _larger_batch(task, layout, choice)
    yield _other_micro_batches(task, layout, choice)
    yield _free_schedules(task, layout, choice)
    yield _without_recomputation(task, layout, choice)
    yield _more_nics(task, layout, choice, used)


def _faster_ethernet(task: Task, layout: Layout, choice: ScheduleChoice) -> Iterator[_Variant]:
    cluster = task.cluster
    if task.machine.has_real_emulation:
        if task.machine.shaped:
            rate = 2 * min(cluster.emulated_gbps(node, _ETHERNET) for node in cluster.nodes)
            faster = dataclasses.replace(cluster, rates={**cluster.rates, _ETHERNET: rate})
            yield _Variant(f"twice the emulated Ethernet (cluster.emulate.rates.ethernet={rate:g})",
                           on_cluster(task, faster), layout, choice)
        return
    faster = faster_ethernet(cluster, 2)
    # Nodes whose fast NIC is Ethernet have no more Ethernet than that gives.
    nodes = tuple(dataclasses.replace(node, nics=2 * node.nics) if node.network == _ETHERNET else node
                  for node in faster.nodes)
    faster = dataclasses.replace(faster, nodes=nodes)
    words = "twice the bandwidth between fabrics" if faster.links else "a second Ethernet NIC per node"
    yield _Variant(_with_overrides(words, cluster, faster), on_cluster(task, faster), layout, choice)


def _more_nics(task: Task, layout: Layout, choice: ScheduleChoice, used: set[str]) -> Iterator[_Variant]:
    """Twice the fast NICs on the nodes of one fabric at a time."""
    if task.machine.has_real_emulation:
        return
    for fabric, members in task.cluster.fabrics.items():
        if members[0].network not in used:
            continue
        nodes = tuple(dataclasses.replace(node, nics=2 * node.nics, ethernet_gbps=node.ethernet_gbps
                                          * (2 if node.network == _ETHERNET else 1))
                      if node.fabric == fabric else node for node in task.cluster.nodes)
        more = dataclasses.replace(task.cluster, nodes=nodes)
        words = f"twice the {members[0].nic} NICs on the nodes of {fabric}"
        yield _Variant(_with_overrides(words, task.cluster, more), on_cluster(task, more), layout, choice)


def _with_overrides(words: str, before: ClusterDescription, after: ClusterDescription) -> str:
    overrides = overrides_for(before, after)
    return f"{words} ({overrides})" if overrides else f"{words} (no setting alone says so)"


def _untied(task: Task, layout: Layout, choice: ScheduleChoice, strategy: str) -> Iterator[_Variant]:
    if not task.architecture.tied_embeddings:
        return
    architecture = dataclasses.replace(task.architecture, tied_embeddings=False)
    rules = GroupRules(one_network=strategy_kind(strategy).one_network, two_level=task.settings.two_level)
    groups, reductions = find_groups(architecture, task.cluster, layout.pipelines, rules,
                                     sharded=any(reduction.divides for reduction in layout.reductions),
                                     in_nodes=task.machine.uses_gloo)
    yield _Variant("untied embeddings (model.tied_embeddings=false)",
                   dataclasses.replace(task, architecture=architecture),
                   dataclasses.replace(layout, groups=groups, reductions=reductions), choice)


def _narrower_numbers(task: Task, layout: Layout, choice: ScheduleChoice) -> Iterator[_Variant]:
    kinds = [task.machine.gpu(node) for node in task.cluster.nodes]
    able = _NARROW in ENGINE.precisions and all(_NARROW in kind.peak_tflops and kind.name != "cpu" for kind in kinds)
    if task.settings.precision == "float32" and able:
        yield _Variant(f"{_NARROW} (train.precision={_NARROW})",
                       dataclasses.replace(task, settings=task.settings.replace(precision=_NARROW)), layout, choice)


def _more_overlap(task: Task, layout: Layout, choice: ScheduleChoice) -> Iterator[_Variant]:
    now = layout.overlap
    if isinstance(now, Synchronization) and not now.overlap_grad_reduce:
        more = dataclasses.replace(now, overlap_grad_reduce=True, overlap_param_gather=now.sharded)
        keys = "parallel.overlap_grad_reduce=true" + " parallel.overlap_param_gather=true" * now.sharded
        yield _Variant(f"sums of gradients under the backward ({keys})", task,
                       dataclasses.replace(layout, overlap=more), choice)


def _larger_batch(task: Task, layout: Layout, choice: ScheduleChoice) -> Iterator[_Variant]:
    batch = 2 * task.settings.global_batch_size
    pipelines = tuple(Pipeline(2 * pipeline.microbatches, pipeline.stages) for pipeline in layout.pipelines)
    yield _Variant(f"twice the global batch (train.global_batch_size={batch})",
                   dataclasses.replace(task, settings=task.settings.replace(global_batch_size=batch)),
                   dataclasses.replace(layout, pipelines=pipelines), choice)


def _other_micro_batches(task: Task, layout: Layout, choice: ScheduleChoice) -> Iterator[_Variant]:
    now = layout.micro_batch_size
    for size in (2 * now, now // 2):
        counts = [pipeline.microbatches * now for pipeline in layout.pipelines]
        if size < 1 or any(samples % size for samples in counts):
            continue
        pipelines = tuple(Pipeline(samples // size, pipeline.stages)
                          for samples, pipeline in zip(counts, layout.pipelines, strict=True))
        if choice.chunks > 1 and any(pipeline.microbatches % (len(pipeline.stages) // choice.chunks)
                                     for pipeline in pipelines):
            continue
        yield _Variant(f"micro-batches of {size} instead of {now} (parallel.micro_batch_size={size})", task,
                       dataclasses.replace(layout, pipelines=pipelines, micro_batch_size=size), choice)


def _free_schedules(task: Task, layout: Layout, choice: ScheduleChoice) -> Iterator[_Variant]:
    """What the planner would compare if schedule, extra warm-up and turns were left to it."""
    settings = task.settings
    asked = settings.schedule
    fixed = (asked is not None and not asked.in_chunks) or settings.warmup_extra is not None
    if not (fixed or settings.turns is not None) or choice.chunks > 1:
        return
    free = dataclasses.replace(task, settings=settings.replace(schedule=None, warmup_extra=None, turns=None))
    groups = layout.groups + tuple(
        group for ranks in turn_ranks(task.cluster, layout.pipelines, layout.groups)
        if (group := Group("turn", tuple(ranks), task.cluster.shared_network(ranks))) not in layout.groups)
    open_layout = dataclasses.replace(layout, groups=groups)
    for other in candidate_schedules(free, open_layout):
        if dataclasses.replace(other, digest=choice.digest) != choice:
            extra = f", warm-up +{other.warmup_extra}" if other.warmup_extra else ""
            turns = ", turns" if other.turns else ""
            keys = " ".join((f"parallel.schedule={other.name}", f"parallel.warmup_extra={other.warmup_extra}",
                             f"parallel.turns={str(other.turns).lower()}"))
            yield _Variant(f"the schedule {other.name}{extra}{turns} ({keys})", free, open_layout, other)


def _without_recomputation(task: Task, layout: Layout, choice: ScheduleChoice) -> Iterator[_Variant]:
    now = RECOMPUTATIONS.index(task.settings.recompute)
    for recompute in (each for each in task.settings.recomputations if RECOMPUTATIONS.index(each) < now):
        changed = dataclasses.replace(task, settings=task.settings.replace(recompute=recompute))
        yield _Variant(f"less recomputation (parallel.recompute={recompute})", changed, layout, choice)
