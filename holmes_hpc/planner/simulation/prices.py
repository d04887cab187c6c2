"""What every action of a layout's step costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from holmes_hpc.cluster.disturbed import node_slowdown, rank_slowdown
from holmes_hpc.planner.cost.collectives import gather_seconds
from holmes_hpc.planner.cost.full_shard import gathered_seconds, with_exchange
from holmes_hpc.planner.cost.network import NetworkCost, Traffic
from holmes_hpc.planner.cost.stages import ComputeCost
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.layout.ownership import element_count, stage_units
from holmes_hpc.planner.layout.sharing import updated_parameters
from holmes_hpc.planner.simulation.buckets import Buckets, Overlap
from holmes_hpc.planner.simulation.collectives import Bucket
from holmes_hpc.planner.simulation.events import Prices
from holmes_hpc.planner.task import Task
from holmes_hpc.schedule.building import edge_ranks, transfers
from holmes_hpc.values import ActionKind, Reduction


def compute_cost(task: Task) -> ComputeCost:
    """Return the compute prices of a task."""
    settings = task.settings
    key = (task.architecture, settings.precision, settings.optimizer, settings.recompute,
           settings.sequence_parallel, task.software)
    found: ComputeCost = task.prices.compute.of(key, lambda: ComputeCost(task.machine, *key))
    return found


def network_cost(task: Task) -> NetworkCost:
    """Return the network prices of a task."""
    return NetworkCost(task.machine, task.prices)


def price(task: Task, layout: Layout) -> Prices:
    """Return what every action of a layout costs."""
    cost = compute_cost(task)
    network = network_cost(task)
    compute: dict[tuple[ActionKind, int, int], float] = {}
    for p, pipeline in enumerate(layout.pipelines):
        for s, stage in enumerate(pipeline.stages):
            units = stage_units(task.architecture, pipeline, s)
            forward, backward = stage_seconds(task, cost, stage.ranks, units, layout.micro_batch_size)
            compute[ActionKind.FORWARD, p, s], compute[ActionKind.BACKWARD, p, s] = forward, backward
            weight = weight_seconds(task, cost, stage.ranks, units, layout.micro_batch_size)
            if task.software.full_shard:
                moved = _exchange_seconds(task, cost, layout, units, stage.tensor)
                compute[ActionKind.FORWARD, p, s] = with_exchange(forward, moved)
                backward = compute[ActionKind.BACKWARD, p, s] = with_exchange(backward, 2 * moved)
            compute[ActionKind.BACKWARD_WEIGHT, p, s] = weight
            compute[ActionKind.BACKWARD_INPUT, p, s] = backward - weight
    reductions = [network.summed(reduction, layout.groups,
                                 summed_bytes(task) * element_count(task.architecture, reduction.owns))
                  if layout.overlap is None or not _is_exchanged(layout, reduction) else Traffic(0.0)
                  for reduction in layout.reductions]
    pools, cores = core_pools(task)
    prices = Prices(compute, _messages(task, network, layout), reductions, _optimizer(task, cost, layout),
                    pools, cores, blocking_sends=task.software.blocking_transfers, waits=_waits(task, layout, compute))
    return prices if layout.overlap is None else _overlapped(task, network, layout, layout.overlap, prices)


def _waits(task: Task, layout: Layout, compute: dict[tuple[ActionKind, int, int], float]
           ) -> dict[tuple[ActionKind, int, int], float]:
    """Return what of an action's seconds is added to its compute because a rank is slowed down on purpose.

    Of a stage's ranks the slowest counts. Where a whole node is slow its kind of GPU says so already, where only some
    of its ranks are, `compute` is made longer here.
    """
    cluster, waits = task.cluster, {}
    for (kind, p, s), seconds in compute.items() if cluster.acting else ():
        ranks = layout.pipelines[p].stages[s].ranks
        priced = max(node_slowdown(cluster.node_of(rank), cluster.acting) for rank in ranks)
        slowest = max(rank_slowdown(cluster, rank) for rank in ranks)
        if slowest > 1:
            compute[kind, p, s] = seconds * slowest / priced
            waits[kind, p, s] = compute[kind, p, s] * (1 - 1 / slowest)
    return waits


def summed_bytes(task: Task) -> float:
    """Return the bytes that are summed for a parameter behind the backwards, with what is gathered behind the step.

    A sum passes every rank twice, a gather once. Full shards are summed micro-batch by micro-batch instead.
    """
    software = task.software
    return 0.0 if software.full_shard else software.gradient_bytes + software.step_gather_bytes / 2


def _sharers(task: Task, layout: Layout) -> int:
    """Return over how many ranks the trainer divides the optimizer's step, beside what the layout divides."""
    return len(layout.pipelines) if task.software.full_shard else 1


def _exchange_seconds(task: Task, cost: ComputeCost, layout: Layout, units: tuple[str, ...], tensor: int) -> float:
    """Return the time of gathering a stage's parameters once, over the largest group that sums its gradients."""
    ranks = max((group.ranks for group in layout.groups if group.kind == "data"), key=len, default=())
    if len(ranks) < 2:
        return 0.0
    return gathered_seconds(network_cost(task).tensor_ring(ranks), len(ranks), cost.parameter_count(units, tensor),
                            cost.element_bytes, len(units))


def _overlapped(task: Task, network: NetworkCost, layout: Layout, overlap: Overlap, prices: Prices) -> Prices:
    """Return the prices with reductions in buckets under the backward, and gathers under the next forward."""
    made = Buckets(task.architecture, layout.pipelines, layout.groups, network, overlap,
                   compute_cost(task).element_bytes, summed_bytes(task))
    exchanged = [(index, reduction) for index, reduction in enumerate(layout.reductions)
                 if _is_exchanged(layout, reduction)]
    buckets = {index: made.reduced(reduction) for index, reduction in exchanged}
    if not overlap.overlap_grad_reduce:
        buckets = {index: tuple(Bucket(bucket.traffic) for bucket in parts) for index, parts in buckets.items()}
    gathers = {index: made.gathered(reduction) for index, reduction in exchanged if reduction.divides}
    cost, updated = compute_cost(task), updated_parameters(task, layout)
    optimizer = {rank: cost.optimizer_seconds(task.cluster.node_of(rank), updated[rank] / _sharers(task, layout))
                 for rank in prices.optimizer}
    return dataclasses.replace(prices, buckets=buckets, gathers=gathers, optimizer=optimizer,
                               overlap_gathers=overlap.overlap_param_gather)


def _is_exchanged(layout: Layout, reduction: Reduction) -> bool:
    return any(len(layout.groups[i].ranks) > 1 for i in reduction.groups)


def stage_seconds(task: Task, cost: ComputeCost, ranks: Sequence[int], units: tuple[str, ...],
                  samples: int) -> tuple[float, float]:
    """Return forward and backward time of a stage: its slowest GPU's, with its tensor ranks' sums."""
    nodes = list(dict.fromkeys(task.cluster.node_of(rank) for rank in ranks))
    ring = network_cost(task).tensor_ring(ranks) if len(ranks) > 1 else None
    times = [cost.directions(node, units, samples, len(ranks), ring) for node in nodes]
    return max(each.forward for each in times), max(each.backward for each in times)


def weight_seconds(task: Task, cost: ComputeCost, ranks: Sequence[int], units: tuple[str, ...],
                   samples: int) -> float:
    """Return the weight part of a stage's backward: the products that make the parameters' gradients.

    The attention core, norms, tensor-parallel exchanges and what is recomputed belong to the input part.
    """
    nodes = list(dict.fromkeys(task.cluster.node_of(rank) for rank in ranks))
    ring = network_cost(task).tensor_ring(ranks) if len(ranks) > 1 else None
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
            sizes[pool] = min(ranks, machine.cores or ranks)
            pools.update(dict.fromkeys(cluster.ranks_of(node), pool))
    return pools, sizes


def _messages(task: Task, network: NetworkCost, layout: Layout) -> dict[tuple[int, int], Traffic]:
    networks = {group.ranks: group.network for group in layout.groups if group.kind == "pipeline"}
    whole = task.architecture.boundary_bytes(layout.micro_batch_size, compute_cost(task).element_bytes)
    is_split = task.settings.sequence_parallel or task.software.split_transfers
    prices: dict[tuple[int, int], Traffic] = {}
    for pipeline in layout.pipelines:
        for s in range(len(pipeline.stages) - 1):
            here, there = pipeline.stages[s:s + 2]
            shards = here.tensor if is_split and here.tensor == there.tensor else 1
            # Parts of what every rank needs whole are gathered behind the hop.
            gathers = shards > 1 and not task.settings.sequence_parallel
            for sender, receiver in ((here, there), (there, here)):
                gather = gather_seconds(network.tensor_ring(receiver.ranks), shards, whole) if gathers else 0.0
                for pair in transfers(sender.ranks, receiver.ranks):
                    if pair not in prices:
                        message = network.message(networks[edge_ranks(pipeline, s)], *pair, whole // shards)
                        prices[pair] = message.later(gather)
    return prices


def _optimizer(task: Task, cost: ComputeCost, layout: Layout) -> dict[int, float]:
    held: dict[int, dict[str, int]] = {}
    for pipeline in layout.pipelines:
        for s, stage in enumerate(pipeline.stages):
            units = stage_units(task.architecture, pipeline, s)
            for rank in stage.ranks:
                held.setdefault(rank, {}).update(dict.fromkeys(units, stage.tensor))
    return {rank: cost.optimizer_seconds(task.cluster.node_of(rank), cost.parameter_count(
                tuple(units), max(units.values(), default=1)) / _sharers(task, layout))
            for rank, units in held.items()}
