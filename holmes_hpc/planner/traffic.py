"""What a step carries over every NIC and trunk, and over every network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.planner.cost.gpu_constants import network_share
from holmes_hpc.planner.network_cost import Resource, Traffic
from holmes_hpc.planner.predict import Layout, price
from holmes_hpc.planner.schedules import transfers
from holmes_hpc.planner.settings import Task
from holmes_hpc.planner.simulation import Prices

TRUNK = "trunk"


def busy_seconds(task: Task, layout: Layout) -> dict[Resource, float]:
    """Return how long a step occupies each direction of every NIC, and every trunk, with messages and reductions.

    Exchange between the tensor-parallel ranks of different nodes is part of their compute, and not in here.
    """
    prices = price(task, layout)
    busy: dict[Resource, float] = {}
    for count, traffic in (*_messages(layout, prices), *_collectives(prices)):
        for key, seconds in traffic.busy.items():
            busy[key] = busy.get(key, 0.0) + count * seconds
    return busy


def network_bytes(task: Task, busy: Mapping[Resource, float]) -> dict[str, float]:
    """Return the bytes that all nodes together send in a step, by network; `busy` is that of `busy_seconds`."""
    nodes = {node.slot: node for node in task.cluster.nodes}
    sent: dict[str, float] = {}
    for (slot, what), seconds in busy.items():
        direction, _, network = what.partition(" ")
        if slot != TRUNK and direction == "out":
            rate = task.machine.node_bandwidth_gbps(nodes[slot], network) * network_share(network)
            sent[network] = sent.get(network, 0.0) + seconds * rate * 1e9 / 8
    return sent


def resource_words(key: Resource, cluster: ClusterDescription) -> str:
    """Return a resource for people: `Ethernet of roce/0, receiving`, `the trunk from ib to roce`."""
    where, what = key
    if where == TRUNK:
        return "the trunk from {} to {}".format(*what.split(">"))
    direction, _, network = what.partition(" ")
    many = next(node.nics for node in cluster.nodes if node.slot == where) > 1
    name = "Ethernet" if network == "ethernet" else f"{network} NIC{'s' if many else ''}"
    return f"{name} of {where}, {'sending' if direction == 'out' else 'receiving'}"


def _messages(layout: Layout, prices: Prices) -> Iterator[tuple[int, Traffic]]:
    for pipeline in layout.pipelines:
        for before, after in zip(pipeline.stages, pipeline.stages[1:], strict=False):
            for pair in (*transfers(before.ranks, after.ranks), *transfers(after.ranks, before.ranks)):
                yield pipeline.microbatches, prices.messages[pair]


def _collectives(prices: Prices) -> Iterator[tuple[int, Traffic]]:
    for index, whole in enumerate(prices.reductions):
        parts = [bucket.traffic for bucket in prices.buckets.get(index, ())] or [whole]
        yield from ((1, part) for part in parts)
    for buckets in prices.gathers.values():
        yield from ((1, bucket.traffic) for bucket in buckets)
