"""What a step carries over every NIC and trunk, and over every network."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from holmes_hpc.cluster import ClusterDescription, Node
from holmes_hpc.planner.cost.gpu_constants import network_share
from holmes_hpc.planner.cost.network import Resource, Traffic
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.simulation.events import Prices
from holmes_hpc.planner.simulation.prices import price
from holmes_hpc.planner.simulation.representatives import representatives
from holmes_hpc.planner.task import Task
from holmes_hpc.schedule.building import transfers
from holmes_hpc.values import Pipeline

TRUNK = "trunk"


@dataclass(frozen=True)
class Load:
    """Traffic that a step has `count` times, on nodes of which `replicas` are alike."""

    count: int
    replicas: int
    traffic: Traffic


def loads(task: Task, layout: Layout) -> tuple[Load, ...]:
    """Return the messages and collectives of a step; of replicas that do the same only one has its messages in it.

    Exchange between the tensor-parallel ranks of different nodes is part of their compute, and not in here.
    """
    found = representatives(task, layout)
    few, prices, alike = found.layout, found.prices, Counter(found.replicas.like)
    return (*(Load(pipeline.microbatches, alike[p], prices.messages[pair])
              for p, pipeline in enumerate(few.pipelines) for pair in _pairs(pipeline)),
            *(Load(1, 1, traffic) for traffic in _collectives(prices)))


def busy_seconds(found: Sequence[Load]) -> dict[Resource, float]:
    """Return how long a step occupies each direction of every NIC, and every trunk."""
    busy: dict[Resource, float] = {}
    for traffic, (times, _) in _by_traffic(found):
        for resource, seconds in traffic.busy.items():
            busy[resource] = busy.get(resource, 0.0) + times * seconds
    return busy


def network_bytes(task: Task, found: Sequence[Load]) -> dict[str, float]:
    """Return the bytes that all nodes together send in a step, by network."""
    nodes = {node.slot: node for node in task.cluster.nodes}
    rates: dict[Resource, tuple[str, float]] = {}
    sent: dict[str, float] = {}
    for traffic, (_, times) in _by_traffic(found):
        for resource, seconds in traffic.busy.items():
            known = rates.get(resource)
            if known is None:
                known = rates[resource] = _bytes_a_second(task, nodes, resource)
            network, rate = known
            if rate:
                sent[network] = sent.get(network, 0.0) + times * seconds * rate
    return sent


def node_bytes(task: Task, layout: Layout) -> dict[tuple[str, str], float]:
    """Return the bytes that each node sends in a step, by its slot and the network.

    Every replica is priced, so this is for layouts that are small enough to be drawn.
    """
    prices, nodes = price(task, layout), {node.slot: node for node in task.cluster.nodes}
    found = [*(Load(pipeline.microbatches, 1, prices.messages[pair])
               for pipeline in layout.pipelines for pair in _pairs(pipeline)),
             *(Load(1, 1, traffic) for traffic in _collectives(prices))]
    sent: dict[tuple[str, str], float] = {}
    for resource, seconds in busy_seconds(found).items():
        network, rate = _bytes_a_second(task, nodes, resource)
        if rate:
            sent[resource[0], network] = sent.get((resource[0], network), 0.0) + seconds * rate
    return sent


def _by_traffic(found: Sequence[Load]) -> list[tuple[Traffic, tuple[int, int]]]:
    """Return each traffic once, with how often the simulated ranks have it in a step, and how often all have it."""
    times: dict[int, tuple[Traffic, tuple[int, int]]] = {}
    for load in found:
        _, (few, many) = times.get(id(load.traffic), (load.traffic, (0, 0)))
        times[id(load.traffic)] = load.traffic, (few + load.count, many + load.count * load.replicas)
    return list(times.values())


def _bytes_a_second(task: Task, nodes: Mapping[str, Node], resource: Resource) -> tuple[str, float]:
    """Return the network of what sends, and what it sends in a second; nothing for what is no node's own."""
    slot, what = resource
    direction, network, way = parts_of(what)
    if slot == TRUNK or direction != "out" or way is not None:
        return network, 0.0
    return network, task.machine.node_bandwidth_gbps(nodes[slot], network) * network_share(network) * 1e9 / 8


def parts_of(what: str) -> tuple[str, str, str | None]:
    """Return direction and network of a node's resource, and which way out of its fabric it is, if it is one."""
    direction, _, network = what.partition(" ")
    network, is_way, way = network.partition(">")
    return direction, network, way if is_way else None


def used_networks(busy: Mapping[Resource, float]) -> set[str]:
    """Return the networks that carry anything."""
    return {parts_of(what)[1] for (where, what), seconds in busy.items() if seconds and where != TRUNK}


def resource_words(key: Resource, cluster: ClusterDescription) -> str:
    """Return a resource for people: `Ethernet of roce/0, receiving`, `the trunk from ib to roce`."""
    where, what = key
    if where == TRUNK:
        return "the trunk from {} to {}".format(*what.split(">"))
    direction, network, way = parts_of(what)
    many = next(node.nics for node in cluster.nodes if node.slot == where) > 1
    name = "Ethernet" if network == "ethernet" else f"{network} NIC{'s' if many else ''}"
    far = "" if way is None else f" {'to' if direction == 'out' else 'from'} {way or 'other fabrics'}"
    return f"{name} of {where}{far}, {'sending' if direction == 'out' else 'receiving'}"


def _pairs(pipeline: Pipeline) -> Iterator[tuple[int, int]]:
    for before, after in itertools.pairwise(pipeline.stages):
        yield from (*transfers(before.ranks, after.ranks), *transfers(after.ranks, before.ranks))


def _collectives(prices: Prices) -> Iterator[Traffic]:
    for index, whole in enumerate(prices.reductions):
        yield from [bucket.traffic for bucket in prices.buckets.get(index, ())] or [whole]
    for buckets in prices.gathers.values():
        yield from (bucket.traffic for bucket in buckets)
