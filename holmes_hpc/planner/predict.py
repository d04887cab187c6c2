"""From a layout and its schedule to what is expected of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holmes_hpc.planner.collectives import Bucket
from holmes_hpc.planner.compute_cost import GIB, ComputeCost
from holmes_hpc.planner.folding import fold
from holmes_hpc.planner.memory import RankMemory, memory_per_rank
from holmes_hpc.planner.network_cost import NetworkCost, Traffic
from holmes_hpc.planner.overlap import Buckets, Overlap
from holmes_hpc.planner.ownership import element_count, stage_units
from holmes_hpc.planner.replicas import find_replicas
from holmes_hpc.planner.schedules import edge_ranks, make_schedule, transfers
from holmes_hpc.planner.settings import Task
from holmes_hpc.planner.simulation import Prices, Timeline, simulate
from holmes_hpc.planner.validation import peak_in_flight
from holmes_hpc.values import Action, ActionKind, Group, Pipeline, Prediction, Reduction, Schedule, ScheduleChoice

_GRADIENT_BYTES = 4
PERIOD = 16
"""Micro-batches by which two shortened steps differ."""
_STEP_COLLECTIVES = 3
"""Small collectives over the world in each step: loss, gradient norm, the barrier before the step."""


@dataclass(frozen=True)
class Layout:
    """A complete layout, without its prediction.

    `overlap` says what is exchanged under compute; None: every reduction stands alone at the end of the step.
    """

    pipelines: tuple[Pipeline, ...]
    groups: tuple[Group, ...]
    reductions: tuple[Reduction, ...]
    micro_batch_size: int
    overlap: Overlap | None = None


def compute_cost(task: Task) -> ComputeCost:
    """Return the compute prices of a task."""
    return ComputeCost(task.machine, task.architecture, task.settings.precision, task.settings.optimizer,
                       task.settings.recompute, task.settings.sequence_parallel)


def predict(task: Task, layout: Layout, choice: ScheduleChoice) -> Prediction:
    """Simulate one step of a layout and return the figures of a plan."""
    architecture, world = task.architecture, task.cluster.world_size
    timeline, peaks = observe(task, layout, choice)
    memory = tuple(parts.total / GIB for parts in memory_parts(task, layout, peaks))
    seconds = timeline.step_seconds + _step_collectives(task, layout.groups[0])
    samples = task.settings.global_batch_size
    flops = architecture.model_flops_per_sample() * samples
    busy = sum(timeline.busy_seconds.values()) / world
    return Prediction(
        machine=task.machine.label,
        step_seconds=seconds,
        tokens_per_second=samples * architecture.sequence_length / seconds,
        tflops_per_gpu=flops / (seconds * world * 1e12),
        memory_gib_per_rank=memory,
        idle_fraction=max(0.0, 1.0 - busy / seconds),
    )


Peaks = Mapping[tuple[int, int, int], int]
Row = TypeVar("Row")


def observe(task: Task, layout: Layout, choice: ScheduleChoice) -> tuple[Timeline, Peaks]:
    """Simulate a step; return what was seen, and the micro-batches in flight.

    Long steps of alike pipelines repeat themselves, so two shorter ones tell how long each further micro-batch takes.
    """
    counts = {pipeline.microbatches for pipeline in layout.pipelines}
    depth = max(len(pipeline.stages) for pipeline in layout.pipelines)
    # Interleaved pipelines repeat themselves after as many micro-batches as they have ranks.
    ranks = depth // choice.chunks if choice.chunks > 1 else 1
    period = PERIOD + -PERIOD % ranks
    short = 2 * (depth + choice.warmup_extra * depth) + period
    short += (min(counts) - short) % ranks
    if len(counts) > 1 or choice.name == "gpipe" or min(counts) < 2 * (short + period):
        return _simulate(task, layout, choice)
    first, _ = _simulate(task, _with_microbatches(layout, short), choice)
    second, peaks = _simulate(task, _with_microbatches(layout, short + period), choice)
    periods = (min(counts) - short - period) / period
    busy = {rank: seconds + periods * (seconds - first.busy_seconds[rank])
            for rank, seconds in second.busy_seconds.items()}
    return Timeline(second.step_seconds + periods * (second.step_seconds - first.step_seconds), busy), peaks


def memory_parts(task: Task, layout: Layout, peaks: Peaks) -> tuple[RankMemory, ...]:
    """Return the memory of every rank by parts; `peaks` are those of `observe`."""
    return memory_per_rank(compute_cost(task), task.cluster, layout.pipelines, layout.micro_batch_size, peaks)


def _with_microbatches(layout: Layout, count: int) -> Layout:
    pipelines = tuple(dataclasses.replace(pipeline, microbatches=count) for pipeline in layout.pipelines)
    return dataclasses.replace(layout, pipelines=pipelines)


def _simulate(task: Task, layout: Layout, choice: ScheduleChoice) -> tuple[Timeline, Peaks]:
    if core_pools(task)[0]:
        # Ranks that queue for the same cores depend on all the others.
        schedule = make_schedule(layout.pipelines, layout.groups, layout.reductions, choice)
        prices = price(task, layout)
        schedule = with_gathers(schedule, layout.reductions, prices)
        return simulate(schedule, layout.reductions, prices), peak_in_flight(schedule)
    replicas = find_replicas(task.cluster, layout.pipelines)
    few = dataclasses.replace(layout, pipelines=replicas.picked, reductions=replicas.restrict(layout.reductions))
    folded = fold(few.pipelines, few.groups, few.reductions, replicas.fill_trunks(price(task, few)),
                  lambda rank: task.cluster.node_of(rank).slot, turns=choice.turns)
    own = _of_pipelines(_of_pipelines(choice, replicas.chosen), folded.kept)
    schedule = make_schedule(folded.pipelines, folded.groups, folded.reductions, own)
    schedule = with_gathers(schedule, folded.reductions, folded.prices)
    timeline = simulate(schedule, folded.reductions, folded.prices)
    busy = {rank: timeline.busy_seconds[folded.rank_like[same]] for rank, same in replicas.rank_like().items()}
    peaks = folded.spread_peaks(few.pipelines, peak_in_flight(schedule))
    return Timeline(timeline.step_seconds, busy), replicas.spread_peaks(peaks)


def with_gathers(schedule: Schedule, reductions: Sequence[Reduction], prices: Prices) -> Schedule:
    """Return the schedule with the gathers that nothing hides, as the plan's has them."""
    if prices.overlap_gathers or not prices.gathers:
        return schedule
    return dataclasses.replace(schedule, actions={
        rank: (*actions, *(Action(ActionKind.GATHER, reduction=index) for index in sorted(prices.gathers, reverse=True)
                           if rank in reductions[index].owners))
        for rank, actions in schedule.actions.items()})


def _of_pipelines(choice: ScheduleChoice, chosen: Sequence[int]) -> ScheduleChoice:
    """Return a schedule's choice for some of the pipelines: the rows that it has for each."""
    def pick(rows: tuple[Row, ...]) -> tuple[Row, ...]:
        return tuple(rows[p] for p in chosen) if len(rows) > 1 else rows

    return dataclasses.replace(choice, hop_warmups=pick(choice.hop_warmups), stage_times=pick(choice.stage_times),
                               hop_times=pick(choice.hop_times))


def price(task: Task, layout: Layout) -> Prices:
    """Return what every action of a layout costs."""
    cost = compute_cost(task)
    network = NetworkCost(task.machine)
    compute: dict[tuple[ActionKind, int, int], float] = {}
    for p, pipeline in enumerate(layout.pipelines):
        for s, stage in enumerate(pipeline.stages):
            units = stage_units(task.architecture, pipeline, s)
            forward, backward = stage_seconds(task, cost, stage.ranks, units, layout.micro_batch_size)
            compute[ActionKind.FORWARD, p, s], compute[ActionKind.BACKWARD, p, s] = forward, backward
            weight = weight_seconds(task, cost, stage.ranks, units, layout.micro_batch_size)
            compute[ActionKind.BACKWARD_WEIGHT, p, s] = weight
            compute[ActionKind.BACKWARD_INPUT, p, s] = backward - weight
    sizes = [_GRADIENT_BYTES * element_count(task.architecture, reduction.owns) for reduction in layout.reductions]
    reductions = [network.reduction(reduction, layout.groups, size)
                  for reduction, size in zip(layout.reductions, sizes, strict=True)]
    pools, cores = core_pools(task)
    prices = Prices(compute, _messages(task, network, layout), reductions, _optimizer(task, cost, layout),
                    pools, cores)
    return prices if layout.overlap is None else _overlapped(task, network, layout, layout.overlap, prices)


def _overlapped(task: Task, network: NetworkCost, layout: Layout, overlap: Overlap, prices: Prices) -> Prices:
    """Return the prices with reductions in buckets under the backward, and gathers under the next forward."""
    made = Buckets(task.architecture, layout.pipelines, layout.groups, network, overlap,
                   compute_cost(task).element_bytes)
    exchanged = [(index, reduction) for index, reduction in enumerate(layout.reductions)
                 if any(len(layout.groups[i].ranks) > 1 for i in (*reduction.inner, *reduction.outer))]
    buckets = {index: made.reduced(reduction) for index, reduction in exchanged}
    if not overlap.overlap_grad_reduce:
        buckets = {index: tuple(Bucket(bucket.traffic) for bucket in parts) for index, parts in buckets.items()}
    gathers = {index: made.gathered(reduction) for index, reduction in exchanged if made.divides(reduction)}
    updated = dict.fromkeys(prices.optimizer, 0.0)
    for reduction in layout.reductions:
        count = element_count(task.architecture, reduction.owns)
        for group in ([layout.groups[i].ranks for i in reduction.inner] if made.divides(reduction)
                      else [(owner,) for owner in reduction.owners]):
            updated.update({rank: updated[rank] + count / len(group) for rank in group})
    cost = compute_cost(task)
    optimizer = {rank: cost.optimizer_seconds(task.cluster.node_of(rank), count) for rank, count in updated.items()}
    return dataclasses.replace(prices, buckets=buckets, gathers=gathers, optimizer=optimizer,
                               overlap_gathers=overlap.overlap_param_gather)


def stage_seconds(task: Task, cost: ComputeCost, ranks: Sequence[int], units: tuple[str, ...],
                  samples: int) -> tuple[float, float]:
    """Return forward and backward time of a stage: its slowest GPU's, with its tensor ranks' sums."""
    nodes = list(dict.fromkeys(task.cluster.node_of(rank) for rank in ranks))
    ring = NetworkCost(task.machine).tensor_ring(ranks) if len(ranks) > 1 else None
    times = [cost.directions(node, units, samples, len(ranks), ring) for node in nodes]
    return max(each.forward for each in times), max(each.backward for each in times)


def weight_seconds(task: Task, cost: ComputeCost, ranks: Sequence[int], units: tuple[str, ...],
                   samples: int) -> float:
    """Return the weight part of a stage's backward: the products that make the parameters' gradients.

    The attention core, norms, tensor-parallel exchanges and what is recomputed belong to the input part.
    """
    nodes = list(dict.fromkeys(task.cluster.node_of(rank) for rank in ranks))
    ring = NetworkCost(task.machine).tensor_ring(ranks) if len(ranks) > 1 else None
    return max(cost.directions(node, units, samples, len(ranks), ring).backward_weight for node in nodes)


def core_pools(task: Task) -> tuple[dict[int, str], dict[str, int]]:
    """Return which CPU cores compute for which ranks, where there are fewer cores than ranks."""
    machine, cluster = task.machine, task.cluster
    if machine.oversubscription <= 1:
        return {}, {}
    pools, sizes = {}, {}
    for node in cluster.nodes:
        if machine.gpu(node).name == "cpu":
            shared = machine.has_real_emulation
            pool = "this machine" if shared else node.slot
            ranks = cluster.world_size if shared else node.gpus
            sizes[pool] = max(1, round(ranks / machine.oversubscription))
            pools.update(dict.fromkeys(cluster.ranks_of(node), pool))
    return pools, sizes


def _messages(task: Task, network: NetworkCost, layout: Layout) -> dict[tuple[int, int], Traffic]:
    networks = {group.ranks: group.network for group in layout.groups if group.kind == "pipeline"}
    whole = task.architecture.boundary_bytes(layout.micro_batch_size, compute_cost(task).element_bytes)
    prices: dict[tuple[int, int], Traffic] = {}
    for pipeline in layout.pipelines:
        for s in range(len(pipeline.stages) - 1):
            before, after = pipeline.stages[s].ranks, pipeline.stages[s + 1].ranks
            shards = len(before) if task.settings.sequence_parallel and len(before) == len(after) else 1
            for pair in (*transfers(before, after), *transfers(after, before)):
                if pair not in prices:
                    prices[pair] = network.message(networks[edge_ranks(pipeline, s)], *pair, whole // shards)
    return prices


def _optimizer(task: Task, cost: ComputeCost, layout: Layout) -> dict[int, float]:
    held: Mapping[int, dict[str, int]] = {rank: {} for rank in range(task.cluster.world_size)}
    for pipeline in layout.pipelines:
        for s, stage in enumerate(pipeline.stages):
            units = stage_units(task.architecture, pipeline, s)
            for rank in stage.ranks:
                held[rank].update(dict.fromkeys(units, len(stage.ranks)))
    return {rank: cost.optimizer_seconds(task.cluster.node_of(rank),
                                         cost.parameter_count(tuple(units), max(units.values(), default=1)))
            for rank, units in held.items()}


def _step_collectives(task: Task, world: Group) -> float:
    """Return the time of the step's small collectives, which take latencies only: log2 of the ranks, both ways."""
    nodes = [task.cluster.node_of(rank) for rank in world.ranks]
    latency = task.machine.link(world.network, nodes[0], nodes[-1]).latency_us * 1e-6
    return _STEP_COLLECTIVES * 2 * (len(nodes) - 1).bit_length() * latency
