"""The simulator's prices as a wind tunnel takes them: for ranks that wait, on links that are emulated."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.planner.cost.gpu_constants import network_share
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.layout.ownership import element_count, stage_units
from holmes_hpc.planner.simulation.buckets import unit_spans
from holmes_hpc.planner.simulation.prices import compute_cost, network_cost, price, summed_bytes
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Level, Reduction
from holmes_hpc.values.timed import Span, TimedPrices


def timed_prices(task: Task, layout: Layout, scale: float, dilation: float) -> TimedPrices:
    """Return what the waits of a layout's ranks take, and what each node's NICs reach, on the cluster as described."""
    prices, cluster = price(task, layout), task.cluster
    spans: dict[tuple[int, int], tuple[Span, ...]] = {}
    for p, pipeline in enumerate(layout.pipelines):
        for s in range(len(pipeline.stages)):
            units = stage_units(task.architecture, pipeline, s)
            found = unit_spans(task.architecture, units)
            spans[p, s] = tuple((unit, *found[unit]) for unit in units)
    sums, gathers = {}, {}
    for index, reduction in enumerate(layout.reductions):
        count = element_count(task.architecture, reduction.owns)
        sums[index] = _inside(task, layout, reduction.levels, summed_bytes(task) * count)
        gathers[index] = _inside(task, layout, reduction.gathers, compute_cost(task).element_bytes * count)
    local = {pair: traffic.seconds + traffic.latency_seconds for pair, traffic in prices.messages.items()
             if cluster.node_of(pair[0]) is cluster.node_of(pair[1])}
    rates = {(node.slot, network): task.machine.node_bandwidth_gbps(node, network) * network_share(network)
             for node in cluster.nodes for network in {node.network, ETHERNET}}
    return TimedPrices(scale, dilation, prices.compute, spans, prices.optimizer, sums, gathers, local, rates)


def operations(task: Task, layout: Layout) -> int:
    """Return how many messages, sums and gathers the ranks of a step have all together: what this host works at."""
    messages = sum(2 * pipeline.microbatches * max(len(here.ranks), len(there.ranks))
                   for pipeline in layout.pipelines for here, there in pairwise(pipeline.stages))
    collectives = sum((1 + reduction.divides) * len(reduction.owners) * _buckets(task, layout, reduction)
                      for reduction in layout.reductions if len(reduction.owners) > 1)
    return 2 * messages + collectives


def _buckets(task: Task, layout: Layout, reduction: Reduction) -> int:
    """Return how many buckets a reduction has."""
    if layout.overlap is None:
        return 1
    return max(1, round(4 * element_count(task.architecture, reduction.owns) / (layout.overlap.bucket_mib * 2**20)))


def _inside(task: Task, layout: Layout, levels: Sequence[Level], size_bytes: float) -> float:
    """Return the longest time that the links inside nodes take for any group of any level."""
    network = network_cost(task)
    return max([0.0, *(network.inside_seconds(level, layout.groups[index], size_bytes)
                       for level in levels for index in level.groups)])
