"""Which interface and which NCCL settings stand for each network on one node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holmes_hpc.cluster.nccl import node_environment
from holmes_hpc.cluster.nics import DEFAULT_INTERFACES, ETHERNET
from holmes_hpc.errors import NetworkError

if TYPE_CHECKING:
    from holmes_hpc.cluster.cluster import Node
    from holmes_hpc.emulation.network import EmulatedNode

LOOPBACK = "lo"


@dataclass(frozen=True)
class NodeNetworks:
    """The networks of one node: network family to interface (for gloo), and the environment for NCCL.

    `node` and `label` serve the messages; `label` is the node's label in the cluster file.
    """

    node: str
    interfaces: Mapping[str, str]
    label: str = "<label>"
    nccl_environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def described(cls, node: Node, name: str | None = None) -> NodeNetworks:
        """Return the networks of a real node as the cluster file describes it; `name` is its host name."""
        interfaces = {
            "local": LOOPBACK,
            node.network: node.fabric_interface or DEFAULT_INTERFACES[node.network],
            # Last, so that on nodes without a fast NIC both kinds of group take the one that `interface` names.
            ETHERNET: node.interface or DEFAULT_INTERFACES[ETHERNET],
        }
        environment = node_environment(node.hca, node.gid_index, node.interface)
        return cls(name or node.slot, interfaces, node.label, environment)

    @classmethod
    def emulated(cls, node: EmulatedNode) -> NodeNetworks:
        """Return the networks of an emulated node."""
        return cls(node.name, node.interface_names, label=node.slot.rpartition("/")[0])

    @classmethod
    def local(cls, node: str = "localhost") -> NodeNetworks:
        """Return the networks of plain local processes: everything over the loopback interface."""
        return cls(node, dict.fromkeys(("local", *DEFAULT_INTERFACES), LOOPBACK))

    def interface(self, network: str) -> str:
        """Return the interface of `network`. Raises NetworkError when this node has none."""
        try:
            return self.interfaces[network]
        except KeyError:
            raise NetworkError(
                f"node {self.node} has no network {network!r}: it has {', '.join(sorted(self.interfaces))}; "
                "the plan was made for another node, so compare "
                f"cluster.partitions.{self.label}.nic with the node"
            ) from None

    def setting(self, network: str) -> str:
        """Return the name of the setting that gives the interface of `network` on this node."""
        if network == "ethernet":
            return f"cluster.partitions.{self.label}.interface"
        return f"cluster.partitions.{self.label}.fabric_interface"
