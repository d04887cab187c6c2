"""What the cost model prices: the cluster as described, or this machine that emulates it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from holmes_hpc.cluster.calibrated import calibrate_gpu
from holmes_hpc.cluster.cluster import LOCAL, ClusterDescription, Node
from holmes_hpc.cluster.disturbed import (
    SLOWED,
    late_seconds,
    most_gbps,
    share_left,
    share_of_all,
    timeout_seconds,
)
from holmes_hpc.cluster.gpus import Gpu, gpu
from holmes_hpc.cluster.host import host_cores
from holmes_hpc.cluster.measured import MeasuredLink, find_link
from holmes_hpc.cluster.nics import ETHERNET, ETHERNET_LATENCY_US, NICS
from holmes_hpc.cluster.profiled import profile_gpu
from holmes_hpc.errors import ConfigurationError, NetworkError

DESCRIBED = "described"
EMULATED = "emulated"
LOCAL_MACHINE = "local"

# One-way time of a small message: NCCL between GPUs of a node; gloo's TCP between processes of one machine,
# whose cores also compute.
_INTRA_NODE_LATENCY_US = 8.0
_EMULATED_LATENCY_US = 150.0


@dataclass(frozen=True)
class LinkRate:
    """What a pair of ranks has alone: 10^9 bit/s in one direction, the one-way time of a small message."""

    bandwidth_gbps: float
    latency_us: float


@dataclass(frozen=True)
class Machine:
    """The machine that a prediction is for; `label` is `described`, `emulated` or `local`.

    `cores` is the number of CPU cores where CPUs compute: this machine's in an emulation, else each node's; None where
    they do not count. `shaped` is False where ranks of an emulated run are plain local processes, so that every
    network is the loopback interface.
    """

    label: str
    cluster: ClusterDescription
    gpus: Mapping[str, Gpu] = field(hash=False)
    cores: int | None = None
    shaped: bool = True

    @classmethod
    def described(cls, cluster: ClusterDescription) -> Machine:
        """Return the cluster as its file describes it."""
        ranks = max((node.gpus for node in cluster.nodes if node.gpu == "cpu"), default=1)
        return cls(DESCRIBED, cluster, _kinds(cluster), cores=host_cores() if ranks > 1 else None)

    @classmethod
    def emulated(cls, cluster: ClusterDescription, cores: int | None = None, shaped: bool = True) -> Machine:
        """Return this machine emulating the cluster: each GPU a CPU core, each network at its emulated rate.

        In the wind tunnel (`cluster.emulate.compute=timed`) bytes and bandwidths shrink alike and compute is
        a wait of the GPU's time, so that GPUs and networks count as described. `cores` is by default what
        this process may run on.
        """
        if cluster.compute == "timed":
            return cls(EMULATED, cluster, _kinds(cluster))
        kinds = {node.gpu: _kind(f"cpu{SLOWED}{slow}" if slow else "cpu", cluster) for node in cluster.nodes
                 for slow in [node.gpu.partition(SLOWED)[2]]}
        return cls(EMULATED if shaped else LOCAL_MACHINE, cluster, kinds, cores or host_cores(), shaped)

    def on(self, cluster: ClusterDescription) -> Machine:
        """Return the same machine with its cluster as it is while disturbances act, slower GPUs and all."""
        gpus = dict(self.gpus)
        for node in cluster.nodes:
            known, _, slower = node.gpu.partition(SLOWED)
            if slower:
                gpus[node.gpu] = self.gpus[known].slower(float(slower))
        return dataclasses.replace(self, cluster=cluster, gpus=gpus)

    @cached_property
    def oversubscription(self) -> float:
        """The most ranks for each core that CPUs have anywhere, at least 1."""
        if self.cores is None:
            return 1.0
        ranks = (self.cluster.world_size if self.has_real_emulation else
                 max((node.gpus for node in self.cluster.nodes if node.gpu == "cpu"), default=1))
        return max(1.0, ranks / self.cores)

    @property
    def has_real_emulation(self) -> bool:
        """Whether this machine's own CPU computes and its own links carry the traffic."""
        return self.is_here and self.cluster.compute != "timed"

    @property
    def is_here(self) -> bool:
        """Whether it is this machine, which emulates the cluster or runs all ranks as plain processes."""
        return self.label in (EMULATED, LOCAL_MACHINE)

    @property
    def uses_gloo(self) -> bool:
        """Whether ranks sum by gloo, as on CPUs and in every emulated run, and not by NCCL."""
        return self.is_here or all(kind.name == "cpu" for kind in self.gpus.values())

    def gpu(self, node: Node) -> Gpu:
        """Return the kind of GPU that computes for the ranks of a node."""
        return self.gpus[node.gpu]

    def tflops(self, node: Node, precision: str) -> float:
        """Return the peak of one GPU of a node, 10^12 FLOP/s.

        Raises ConfigurationError where the GPU lacks the precision.
        """
        kind = self.gpu(node)
        if precision not in kind.peak_tflops:
            raise ConfigurationError(
                f"train.precision={precision}: the GPU {kind.name} of {node.slot} does not compute in it; "
                f"valid there: {', '.join(name for name in kind.peak_tflops if name != 'tf32')}")
        return kind.peak_tflops[precision]

    def memory_gib(self, node: Node) -> float:
        """Return the memory of one rank on a node: its GPU's, or its share of the host's."""
        memory = self.gpu(node).memory_gib
        if self.gpu(node).name != "cpu":
            return memory
        return memory / (self.cluster.world_size if self.has_real_emulation else node.gpus)

    def link(self, network: str, node_a: Node, node_b: Node) -> LinkRate:
        """Return what a pair of ranks has over a network, by one NIC, with nothing else under way.

        Raises NetworkError where the two nodes do not share the network.
        """
        rate, cluster = self._link(network, node_a, node_b), self.cluster
        if not cluster.acting or node_a.slot == node_b.slot or not self._has_links:
            return rate
        seconds = rate.latency_us * 1e-6 + late_seconds(cluster, network, node_a, node_b)
        left = min(share_left(cluster, node, network) for node in (node_a, node_b))
        return LinkRate(min(left * rate.bandwidth_gbps, most_gbps(cluster, network, node_a, node_b, seconds)),
                        1e6 * (seconds + timeout_seconds(cluster, network, node_a, node_b)))

    @property
    def _has_links(self) -> bool:
        """Whether nodes are joined by anything that could be disturbed, and not by the loopback interface."""
        return self.shaped or not self.has_real_emulation

    def _link(self, network: str, node_a: Node, node_b: Node) -> LinkRate:
        """Return what a pair of ranks has undisturbed."""
        if node_a.slot == node_b.slot or (self.has_real_emulation and not self.shaped):
            return self._inside_node(node_a)
        measured = self._measured(network, node_a.fabric, node_b.fabric)
        if measured is not None:
            return LinkRate(measured.bandwidth_gbps, measured.latency_us)
        if network == LOCAL or (network != ETHERNET and not _share(network, node_a, node_b)):
            raise NetworkError(f"{node_a.slot} ({node_a.fabric}, {node_a.network}) and {node_b.slot} "
                               f"({node_b.fabric}, {node_b.network}) do not reach each other by {network!r}")
        if self.has_real_emulation:
            rate = min(self.cluster.emulated_gbps(node, network) for node in (node_a, node_b))
            return LinkRate(rate, _EMULATED_LATENCY_US)
        if _share(network, node_a, node_b):
            nics = (NICS[node_a.nic], NICS[node_b.nic])
            return LinkRate(min(kind.bandwidth_gbps for kind in nics), max(kind.latency_us for kind in nics))
        return self._ethernet(node_a, node_b)

    def node_bandwidth_gbps(self, node: Node, network: str) -> float:
        """Return what a node sends over a network at most, 10^9 bit/s, all its NICs together, wherever to.

        For `local` it is what each of its GPUs has towards the others. `way` says what it has towards one fabric.
        """
        return self._bandwidth_gbps(node, network) * self._left(node, network)

    def _left(self, node: Node, network: str) -> float:
        """Return how much of a NIC's rate is left to the run, where disturbances act."""
        return share_left(self.cluster, node, network) if self.cluster.acting and self._has_links else 1.0

    def _bandwidth_gbps(self, node: Node, network: str) -> float:
        """Return what a node sends at most undisturbed."""
        if network == LOCAL or (self.has_real_emulation and not self.shaped):
            return self._inside_node(node).bandwidth_gbps
        if network not in (node.network, ETHERNET):
            raise NetworkError(f"{node.slot} has no NIC of the family {network!r}, "
                               f"only {node.nic} and Ethernet")
        if self.has_real_emulation:
            return self.cluster.emulated_gbps(node, network)
        own = self._uplink_gbps(node) if network != node.network else self._fabric_gbps(node)
        return max([own, *self._links_gbps(node.fabric).values()]) if network == ETHERNET else own

    def way(self, node: Node, other: Node) -> tuple[str, float]:
        """Return the name of what a node has towards the fabric of another one by Ethernet, and its 10^9 bit/s.

        That is the link of both fabrics, if it has a rate for each node, and else one uplink (`""`) to all others.
        Inside a fabric of Ethernet NICs it is those NICs.
        """
        if self.has_real_emulation:
            return "", self.node_bandwidth_gbps(node, ETHERNET)
        linked, left = self._links_gbps(node.fabric), self._left(node, ETHERNET)
        if other.fabric in linked:
            return other.fabric, left * linked[other.fabric]
        if node.fabric == other.fabric and node.network == ETHERNET:
            return node.fabric, left * self._fabric_gbps(node)
        return "", left * self._uplink_gbps(node)

    def trunk_gbps(self, fabric_a: str, fabric_b: str) -> float | None:
        """Return the bandwidth that all nodes share between two fabrics; None where nothing is shared.

        A probe tells only where it tried several pairs at once; what one pair does says nothing of a described trunk.
        """
        gbps = self._trunk_gbps(fabric_a, fabric_b)
        return gbps * share_of_all(self.cluster, ETHERNET) if gbps and self.cluster.acting else gbps

    def _trunk_gbps(self, fabric_a: str, fabric_b: str) -> float | None:
        """Return what a trunk has undisturbed."""
        measured = self._measured(ETHERNET, fabric_a, fabric_b)
        if measured is not None and measured.together_gbps is not None:
            return measured.trunk_gbps
        link = None if self.has_real_emulation else self.cluster.link_between(fabric_a, fabric_b)
        return link.shared_gbps if link else None

    def _measured(self, network: str, end_a: str, end_b: str) -> MeasuredLink | None:
        """Return what a probe found; an emulation has rates of its own."""
        return None if self.is_here else find_link(self.cluster.measured, network, end_a, end_b)

    def _fabric_gbps(self, node: Node) -> float:
        """Return what a node's fast NICs have inside its fabric, all together."""
        measured = self._measured(node.network, node.fabric, node.fabric)
        return (measured.bandwidth_gbps if measured else NICS[node.nic].bandwidth_gbps) * node.nics

    def _uplink_gbps(self, node: Node) -> float:
        """Return what a node has towards other fabrics, or the most that its fabric was seen to send to one."""
        found = [self._measured(ETHERNET, node.fabric, other) for other in self.cluster.fabrics if other != node.fabric]
        measured = max((link.bandwidth_gbps for link in found if link is not None), default=None)
        if measured is None:
            return node.ethernet_gbps
        # Of several Ethernet NICs the probe's one pair has used one.
        return max(measured, min(measured * node.nics, node.ethernet_gbps)) if node.network == ETHERNET else measured

    def _links_gbps(self, fabric: str) -> dict[str, float]:
        """Return, by the fabric at the other end, what links that were not measured give each node of a fabric."""
        return self._links_by_fabric[fabric]

    @cached_property
    def _links_by_fabric(self) -> dict[str, dict[str, float]]:
        return {fabric: {
            other: link.bandwidth_gbps for link in self.cluster.links if fabric in link.between
            for other in link.between if other != fabric
            if link.bandwidth_gbps is not None and self._measured(ETHERNET, fabric, other) is None
        } for fabric in self.cluster.fabrics}

    def _inside_node(self, node: Node) -> LinkRate:
        measured = self._measured(LOCAL, node.label, node.label)
        if measured is not None:
            return LinkRate(measured.bandwidth_gbps, measured.latency_us)
        latency = _EMULATED_LATENCY_US if self.gpu(node).name == "cpu" else _INTRA_NODE_LATENCY_US
        return LinkRate(8 * self.gpu(node).intra_node_gb_per_second, latency)

    def _ethernet(self, node_a: Node, node_b: Node) -> LinkRate:
        """Return the rate between fabrics, by the cluster file's link if any, or beside one fabric's NICs."""
        nodes_gbps = min(node_a.ethernet_gbps, node_b.ethernet_gbps)
        link = self.cluster.link_between(node_a.fabric, node_b.fabric)
        if link is None:
            return LinkRate(nodes_gbps, ETHERNET_LATENCY_US)
        if link.bandwidth_gbps is not None:
            return LinkRate(link.bandwidth_gbps, link.latency_us)
        return LinkRate(min(nodes_gbps, link.shared_gbps or nodes_gbps), link.latency_us)


def _share(network: str, node_a: Node, node_b: Node) -> bool:
    """Whether two nodes are in one fabric of this network family."""
    return node_a.fabric == node_b.fabric and node_a.network == network


def _kinds(cluster: ClusterDescription) -> dict[str, Gpu]:
    names = dict.fromkeys(node.gpu for node in cluster.nodes)
    return {name: _kind(name, cluster) for name in names}


def _kind(name: str, cluster: ClusterDescription) -> Gpu:
    """Return a kind of GPU as finished runs and probes of a cluster know it, so many times slower if its name says."""
    known, _, slower = name.partition(SLOWED)
    kind = profile_gpu(calibrate_gpu(gpu(known), cluster.calibrated), cluster.profiled)
    return kind.slower(float(slower)) if slower else kind
