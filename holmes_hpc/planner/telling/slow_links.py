"""Whether the link between fabrics is what limits a plan: its step simulated again as if that link took no time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.planner.cost.network import Resource
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.simulation.predict import observe, predict
from holmes_hpc.planner.simulation.prices import core_pools
from holmes_hpc.planner.simulation.traffic import TRUNK, parts_of
from holmes_hpc.planner.task import Task
from holmes_hpc.values import ScheduleChoice

FULL = 0.85
"""Share of the step from which on a rank or a link has no time left to speak of."""
_MOST_OF_THE_WAITS = 0.5
_WORTH_TELLING = 0.25
"""A link that costs less of the step than this limits nothing, unless it is full."""
_NO_TIME = 1e6
"""So many times faster a link takes no time but its latency."""


@dataclass(frozen=True)
class LimitingLink:
    """A link between fabrics, the share of the step that it is busy, and the step's seconds if it took no time."""

    resource: Resource
    busy_share: float
    seconds_without: float


def limiting_link(task: Task, layout: Layout, choice: ScheduleChoice, busy: Mapping[Resource, float],
                  step_seconds: float, computing: float) -> LimitingLink | None:
    """Return the link between fabrics that limits a step, if one does.

    It does where ranks do not compute all the time (the share `computing` of the step, on average) and it is full, or
    costs at least a quarter of the step and more than half of what ranks wait. `busy` are the seconds of all links.
    """
    key, seconds = max(busy.items(), key=lambda item: (item[1], item[0]), default=(None, 0.0))
    if key is None or computing >= FULL or len(task.cluster.fabrics) < 2:
        return None
    full = seconds >= FULL * step_seconds
    across = {each: spent for each, spent in busy.items() if _is_across(each)}
    if not across or (full and not _is_across(key)):
        return None
    key = min(across, key=lambda each: (-across[each], each))
    if across[key] < _WORTH_TELLING * step_seconds:
        return None
    without = _without(task, layout, choice)
    saved = 1 - without / step_seconds
    if not full and saved < max(_WORTH_TELLING, _MOST_OF_THE_WAITS * (1 - computing)):
        return None
    cores = busiest_cores(task, observe(task, layout, choice)[0].busy_seconds)
    if cores and cores[1] >= FULL * step_seconds:
        return None
    return LimitingLink(key, across[key] / step_seconds, min(without, step_seconds))


def faster_ethernet(cluster: ClusterDescription, factor: float) -> ClusterDescription:
    """Return the cluster with all that lies between its fabrics so many times faster."""
    nodes = tuple(dataclasses.replace(node, ethernet_gbps=factor * node.ethernet_gbps) for node in cluster.nodes)
    links = tuple(dataclasses.replace(
        link, bandwidth_gbps=link.bandwidth_gbps and factor * link.bandwidth_gbps,
        shared_gbps=link.shared_gbps and factor * link.shared_gbps) for link in cluster.links)
    measured = tuple(dataclasses.replace(
        link, bandwidth_gbps=factor * link.bandwidth_gbps,
        together_gbps=link.together_gbps and factor * link.together_gbps) if link.network == ETHERNET else link
        for link in cluster.measured)
    return dataclasses.replace(cluster, nodes=nodes, links=links, measured=measured)


def on_cluster(task: Task, cluster: ClusterDescription) -> Task:
    """Return the same task on another description of its cluster."""
    return dataclasses.replace(task, cluster=cluster, machine=dataclasses.replace(task.machine, cluster=cluster))


def busiest_cores(task: Task, busy_seconds_of: Mapping[int, float]) -> tuple[str, float] | None:
    """Return the cores that several ranks share and are busiest, and for how long each is busy."""
    pools, sizes = core_pools(task)
    busy = dict.fromkeys(sizes, 0.0)
    for rank, pool in pools.items():
        busy[pool] += busy_seconds_of[rank] / sizes[pool]
    return max(busy.items(), key=lambda item: item[1]) if busy else None


def _is_across(resource: Resource) -> bool:
    where, what = resource
    return where == TRUNK or parts_of(what)[1] == ETHERNET


def _without(task: Task, layout: Layout, choice: ScheduleChoice) -> float:
    cluster = task.cluster
    if task.machine.has_real_emulation:
        rate = max(cluster.emulated_gbps(node, ETHERNET) for node in cluster.nodes)
        free = dataclasses.replace(cluster, rates={**cluster.rates, ETHERNET: _NO_TIME * rate})
    else:
        free = faster_ethernet(cluster, _NO_TIME)
    return predict(on_cluster(task, free), layout, choice).step_seconds
