"""What a cluster of the tests consists of: nodes, rates, delays, which Slurm."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from holmes_hpc.emulation.network import (
    ETHERNET_MTU,
    FABRIC_MTU,
    EmulatedInterface,
    EmulatedNetwork,
    EmulatedNode,
)

HEAD = "head"
TREE_VARIABLE = "HOLMES_SLURM_TREE"
_DEFAULT_TREE = "/var/tmp/holmes-slurm-24.11"
_ETHERNET_BRIDGE = "bridge-eth"
_HEAD_GBPS = 10.0
_SUBNETS = {"ib": 1, "roce": 2}
_INTERFACES = {"ib": "ib0", "roce": "roce0"}


def tree_folder() -> Path:
    """Return the folder of the Debian 13 tree with Slurm 24.11, whether it is there or not."""
    return Path(os.environ.get(TREE_VARIABLE) or _DEFAULT_TREE)


@dataclass(frozen=True)
class NodeSettings:
    """One node: its fabric NIC's family and what slurm.conf says of it."""

    name: str
    family: str
    """`ib` or `roce`"""
    number: int
    """from 1 on, within the family"""
    features: str
    gpu_type: str
    nic_type: str
    weight: int

    @property
    def address(self) -> str:
        """The node's Ethernet address."""
        return f"10.0.{_SUBNETS[self.family]}.{self.number}"

    @property
    def fabric_address(self) -> str:
        """The address of the node's fabric NIC."""
        return f"10.{_SUBNETS[self.family]}.0.{self.number}"

    @property
    def fabric_interface(self) -> str:
        """The name of the node's fabric NIC, `ib0` or `roce0`."""
        return _INTERFACES[self.family]


@dataclass(frozen=True)
class ClusterSettings:
    """A cluster of the tests; equal settings mean that a test may share a running cluster."""

    ib_nodes: int = 2
    roce_nodes: int = 2
    cpus_per_node: int = 4
    gpus_per_node: int = 2
    ib_features: str = "ib,hdr200,a100"
    roce_features: str = "roce,eth,v100"
    accounting: bool = False
    """slurmdbd and MariaDB"""
    tree: Path | None = None
    """a Debian tree whose Slurm is used in place of the machine's own"""
    ib_gbps: float = 2.0
    roce_gbps: float = 1.5
    ethernet_gbps: float = 0.2
    credential_seconds: int = 5
    """a requeued job waits this long before its next start; Slurm takes 5 and more, its default is 120"""
    kill_wait_seconds: int = 3
    grace_seconds: int = 3
    """between the signal and the end of a job that is preempted"""
    cgroups: bool = False
    """processes are tracked, and memory is limited, by control groups (version 1)"""
    extra: tuple[str, ...] = ()
    """more lines for slurm.conf; the last one wins"""

    @property
    def nodes(self) -> tuple[NodeSettings, ...]:
        """The compute nodes in slurm.conf's order."""
        ib = [NodeSettings(f"ib-{number}", "ib", number, self.ib_features, "a100", "hdr200", 10)
              for number in range(1, self.ib_nodes + 1)]
        roce = [NodeSettings(f"roce-{number}", "roce", number, self.roce_features, "v100", "cx5", 20)
                for number in range(1, self.roce_nodes + 1)]
        return (*ib, *roce)

    def of_family(self, family: str) -> tuple[NodeSettings, ...]:
        """Return the nodes with this fabric NIC."""
        return tuple(node for node in self.nodes if node.family == family)

    @property
    def network(self) -> EmulatedNetwork:
        """The network: the head on Ethernet alone, each node on Ethernet and on its fabric."""
        head = EmulatedNode(HEAD, HEAD, (EmulatedInterface(
            "eth0", "ethernet", head_address(), _HEAD_GBPS, _ETHERNET_BRIDGE, ETHERNET_MTU),))
        return EmulatedNetwork((head, *map(self._emulated, self.nodes)))

    def _emulated(self, node: NodeSettings) -> EmulatedNode:
        rate = {"ib": self.ib_gbps, "roce": self.roce_gbps}[node.family]
        return EmulatedNode(node.name, node.name, (
            EmulatedInterface("eth0", "ethernet", node.address, self.ethernet_gbps, _ETHERNET_BRIDGE, ETHERNET_MTU),
            EmulatedInterface(node.fabric_interface, node.family, node.fabric_address, rate,
                              f"bridge-{node.family}", FABRIC_MTU)))


def head_address() -> str:
    """Return the head node's Ethernet address."""
    return "10.0.0.254"
