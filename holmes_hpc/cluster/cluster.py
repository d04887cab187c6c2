"""The cluster of a run as a value: nodes in rank order, the fabrics they form, the links between those.

A fabric is a set of nodes that reach each other by the same fast network. Inside a fabric its NICs carry the
traffic, between fabrics the nodes' Ethernet does. `cluster/read.py` makes it from a cluster file.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from holmes_hpc.cluster.calibrated import CalibratedGpu
from holmes_hpc.cluster.measured import INSIDE_NODES, MeasuredLink
from holmes_hpc.cluster.nics import ETHERNET, NICS
from holmes_hpc.cluster.timed_units import ProfiledUnit
from holmes_hpc.values.disturbances import Disturbance
from holmes_hpc.words import counted

LOCAL = INSIDE_NODES

# What the emulated cluster is limited to where the cluster file names no rate: two cores move about 4 Gbit/s
# in all, and Ethernet has to stay much slower than a fabric.
MOST_EMULATED_FABRIC_GBPS = 2.0
MOST_EMULATED_ETHERNET_GBPS = 0.2


@dataclass(frozen=True)
class Node:
    """One node to be, before Slurm chooses: the `index`-th of the nodes with this partition label.

    `ethernet_gbps` is what the node has towards other fabrics, 10^9 bit/s. `hca`, `gid_index`, `interface`
    and `fabric_interface` are None where the cluster file leaves them to the node.
    """

    slot: str
    label: str
    index: int
    fabric: str
    gpu: str
    gpus: int
    nic: str
    nics: int
    ethernet_gbps: float
    hca: str | None = None
    gid_index: int | None = None
    interface: str | None = None
    fabric_interface: str | None = None
    disturbed: tuple[int, ...] = ()
    """which of the disturbances that act now change this node: nodes of which the same is true may stand for another"""

    @property
    def network(self) -> str:
        """The family of the node's fast NIC: `ib`, `roce`, `ethernet`, ..."""
        return NICS[self.nic].family


@dataclass(frozen=True)
class FabricLink:
    """The network between two fabrics, where it differs from the nodes' Ethernet.

    `bandwidth_gbps` is what each node has across, `shared_gbps` what all nodes share; at most one is set.
    """

    between: tuple[str, str]
    bandwidth_gbps: float | None
    shared_gbps: float | None
    latency_us: float


@dataclass(frozen=True)
class ClusterDescription:
    """A cluster: its nodes in rank order (the ranks of a node are contiguous) and the links between fabrics.

    `rates` (10^9 bit/s by network family), `compute` (`real|timed`) and `scale` say how it is emulated.
    """

    name: str
    nodes: tuple[Node, ...]
    links: tuple[FabricLink, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict, hash=False)
    compute: str = "real"
    scale: float = 1.0
    order: str = "grouped"
    measured: tuple[MeasuredLink, ...] = ()
    """links that a probe measured, which go before what is described"""
    measured_where: str = ""
    """in words, where and by what they were measured"""
    calibrated: tuple[CalibratedGpu, ...] = ()
    """GPU kinds whose speed finished runs corrected"""
    profiled: tuple[ProfiledUnit, ...] = ()
    """units of models that a probe timed on GPU kinds"""
    disturbances: tuple[Disturbance, ...] = ()
    """what an emulation does to it on purpose, whenever"""
    acting: tuple[Disturbance, ...] = ()
    """those of them under which it is looked at here; none: undisturbed"""
    communicator_gib: float = 0.25
    """memory of a GPU for each communicator beyond those that the context has room for"""
    is_short: bool = False
    """whether its file has the short form, of one kind of node"""

    @cached_property
    def _first_ranks(self) -> tuple[int, ...]:
        return tuple(itertools.accumulate((node.gpus for node in self.nodes), initial=0))

    @cached_property
    def _nodes_of_ranks(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes for _ in range(node.gpus))

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {node.slot: place for place, node in enumerate(self.nodes)}

    @property
    def world_size(self) -> int:
        """The number of ranks: one for each GPU."""
        return self._first_ranks[-1]

    @cached_property
    def fabrics(self) -> dict[str, tuple[Node, ...]]:
        """The nodes of each fabric in rank order; fabrics in order of first appearance."""
        names = dict.fromkeys(node.fabric for node in self.nodes)
        return {name: tuple(node for node in self.nodes if node.fabric == name) for name in names}

    def node_of(self, rank: int) -> Node:
        """Return the node that a rank runs on. Raises IndexError for a rank outside the cluster."""
        if rank < 0 or rank >= len(self._nodes_of_ranks):
            raise IndexError(f"rank {rank} is not in the cluster {self.name} of {counted(self.world_size, 'rank')}")
        return self._nodes_of_ranks[rank]

    def ranks_of(self, node: Node) -> tuple[int, ...]:
        """Return the ranks of a node in the order of its GPUs."""
        first = self._first_ranks[self._places[node.slot]]
        return tuple(range(first, first + node.gpus))

    def local_rank(self, rank: int) -> int:
        """Return the number of a rank within its node. Raises IndexError for a rank outside the cluster."""
        return rank - self._first_ranks[self._places[self.node_of(rank).slot]]

    def shared_network(self, ranks: Iterable[int]) -> str:
        """Return the fastest network that all these ranks share.

        `local` inside one node, the NIC's family inside one fabric, else `ethernet`.
        """
        first, network = None, LOCAL
        for node in map(self.node_of, ranks):
            first = first or node
            if node is not first:
                if node.fabric != first.fabric:
                    return ETHERNET
                network = first.network
        return network

    def has_link(self, link: MeasuredLink) -> bool:
        """Return whether a measured link is one of this cluster: inside a label or fabric, or between fabrics."""
        ends = set(link.between)
        if link.network == LOCAL:
            return len(ends) == 1 and ends <= {node.label for node in self.nodes}
        if link.network == ETHERNET:
            return ends <= set(self.fabrics)
        return len(ends) == 1 and any(node.fabric in ends and node.network == link.network for node in self.nodes)

    def only(self, slots: Iterable[str]) -> ClusterDescription:
        """Return the cluster of some of its nodes, in the same order; ranks are numbered anew over them."""
        kept = set(slots)
        return dataclasses.replace(self, nodes=tuple(node for node in self.nodes if node.slot in kept))

    def link_between(self, fabric_a: str, fabric_b: str) -> FabricLink | None:
        """Return the link that the cluster file names between two fabrics; None: the nodes' Ethernet."""
        return next((link for link in self.links if set(link.between) == {fabric_a, fabric_b}), None)

    def emulated_gbps(self, node: Node, network: str) -> float:
        """Return the rate of a node's NIC of this family where the cluster is emulated with real compute.

        It is that of `cluster.emulate.rates`, or the described one within the limits of one machine.
        """
        if network in self.rates:
            return float(self.rates[network])
        if network == ETHERNET:
            return min(node.ethernet_gbps, MOST_EMULATED_ETHERNET_GBPS)
        return min(NICS[node.nic].bandwidth_gbps * node.nics, MOST_EMULATED_FABRIC_GBPS)
