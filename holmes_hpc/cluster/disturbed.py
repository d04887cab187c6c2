"""A cluster as it is while disturbances act on it: what its links and GPUs are then worth.

Traffic and loss leave a flow less of a link's rate, and packets that are late or lost make messages late. Over TCP a
flow that loses packets is also no faster than its window allows (Mathis and others 1997), and one message in as many as
are lost waits for the kernel's least timeout.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from holmes_hpc.cluster.cluster import ClusterDescription, Node
from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.values.disturbances import DELAY, LOSS, RATE, SLOWDOWN, TRAFFIC, Disturbance, acting_at, slowdown_of

SLOWED = "*"
"""Stands between the kind of a GPU and how many times slower it is."""
_LEAST_TIMEOUT_SECONDS = 0.2
"""TCP_RTO_MIN of Linux: a segment that is lost with none behind it is sent again after this."""
_MATHIS = math.sqrt(1.5)
_SEGMENT_BYTES = {ETHERNET: 1448}
_FABRIC_SEGMENT_BYTES = 8948


def at_step(cluster: ClusterDescription, step: int | None) -> ClusterDescription:
    """Return the cluster as it is in a step; None: undisturbed."""
    return under(cluster, () if step is None else acting_at(cluster.disturbances, step))


def under(cluster: ClusterDescription, acting: Iterable[Disturbance]) -> ClusterDescription:
    """Return the cluster while these act: its slow nodes have GPUs of a slower kind."""
    acting = tuple(acting)
    if not acting:
        return cluster
    return dataclasses.replace(cluster, acting=acting, nodes=tuple(_node(node, acting) for node in cluster.nodes))


def _node(node: Node, acting: tuple[Disturbance, ...]) -> Node:
    slowest = node_slowdown(node, acting)
    return dataclasses.replace(
        node, gpu=f"{node.gpu}{SLOWED}{slowest:g}" if slowest > 1 else node.gpu,
        disturbed=tuple(number for number, each in enumerate(acting) if node.slot in each.touched))


def node_slowdown(node: Node, acting: Iterable[Disturbance]) -> float:
    """Return how many times slower all ranks of a node are at least."""
    acting = tuple(acting)
    return min(slowdown_of(acting, node.slot, local) for local in range(node.gpus))


def rank_slowdown(cluster: ClusterDescription, rank: int) -> float:
    """Return how many times slower a rank is now than undisturbed."""
    return slowdown_of(cluster.acting, cluster.node_of(rank).slot, cluster.local_rank(rank)) if cluster.acting else 1.0


def has_unlike_ranks(cluster: ClusterDescription) -> bool:
    """Whether ranks of one node are not alike now, so that none of them stands for another."""
    return any(each.kind == SLOWDOWN for each in cluster.acting)


def share_left(cluster: ClusterDescription, node: Node, network: str) -> float:
    """Return how many times its rate a node's NIC of a family is worth now to the run."""
    share, left = 1.0, 1.0
    for each in cluster.acting:
        if each.network == network and node.slot in each.touched:
            if each.kind == TRAFFIC:
                left -= each.amount
            elif each.kind in (RATE, LOSS):
                share *= each.amount if each.kind == RATE else 1.0 - each.amount
    return share * left


def share_of_all(cluster: ClusterDescription, network: str) -> float:
    """Return the same of what all nodes share, from what disturbs every node."""
    return min((share_left(cluster, node, network) for node in cluster.nodes), default=1.0)


def late_seconds(cluster: ClusterDescription, network: str, a: Node, b: Node) -> float:
    """Return how much later than undisturbed a packet between two nodes arrives now, in the mean, if it does."""
    return sum((each.amount + each.jitter_ms / 2) / 1000 for each in cluster.acting
               if each.kind == DELAY and each.network == network and (a.slot, b.slot) in each.pairs)


def timeout_seconds(cluster: ClusterDescription, network: str, a: Node, b: Node) -> float:
    """Return what a message between two nodes waits in the mean for its last packet to be sent again."""
    return _LEAST_TIMEOUT_SECONDS * _lost(cluster, network, a, b)


def most_gbps(cluster: ClusterDescription, network: str, a: Node, b: Node, latency_seconds: float) -> float:
    """Return what one flow between two nodes reaches at most, since it loses packets; `latency_seconds` is one way."""
    lost = _lost(cluster, network, a, b)
    if not lost:
        return math.inf
    segment = 8 * _SEGMENT_BYTES.get(network, _FABRIC_SEGMENT_BYTES)
    return _MATHIS * segment / (2 * latency_seconds * math.sqrt(lost)) / 1e9


def _lost(cluster: ClusterDescription, network: str, a: Node, b: Node) -> float:
    """Return the share of packets between two nodes that is lost now."""
    arriving = 1.0
    for each in cluster.acting:
        if each.kind == LOSS and each.network == network and (a.slot, b.slot) in each.pairs:
            arriving *= 1.0 - each.amount
    return 1.0 - arriving
