"""Which interface and which NCCL settings stand for each network on one node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from holmes_hpc.comm import nccl
from holmes_hpc.errors import NetworkError

FAMILIES = ("local", "ib", "roce", "ethernet", "efa", "slingshot", "opa")
DEFAULT_INTERFACES = {
    "ib": "ib0",
    "roce": "roce0",
    "ethernet": "eth0",
    "efa": "efa0",
    "slingshot": "hsn0",
    "opa": "opa0",
}


class DescribedNode(Protocol):
    """The part of a cluster's node that decides its networks."""

    @property
    def slot(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def network(self) -> str: ...
    @property
    def hca(self) -> str | None: ...
    @property
    def gid_index(self) -> int | None: ...
    @property
    def interface(self) -> str | None: ...
    @property
    def fabric_interface(self) -> str | None: ...


@dataclass(frozen=True)
class NodeNetworks:
    """The networks of one node: network family to interface (for gloo), and the environment for NCCL.

    `node` and `label` serve the messages; `label` is the node's label in the cluster file.
    """

    node: str
    interfaces: Mapping[str, str]
    label: str = "LABEL"
    nccl_environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def described(cls, node: DescribedNode, name: str | None = None) -> NodeNetworks:
        """Return the networks of a real node as the cluster file describes it; `name` is its host name."""
        fabric = {node.network: node.fabric_interface or DEFAULT_INTERFACES[node.network]}
        # On a node whose fast NIC is an Ethernet one, traffic inside and across fabrics takes the same
        # interface.
        ethernet = node.interface or DEFAULT_INTERFACES["ethernet"]
        return cls(
            node=name or node.slot,
            label=node.label,
            interfaces={"local": "lo", **fabric, "ethernet": ethernet},
            nccl_environment=nccl.node_environment(node.hca, node.gid_index, node.interface),
        )

    @classmethod
    def emulated(cls, node: DescribedNode) -> NodeNetworks:
        """Return the networks of an emulated node, whose interfaces have the default names."""
        return cls(
            node=node.slot,
            label=node.label,
            interfaces={
                "local": "lo",
                node.network: DEFAULT_INTERFACES[node.network],
                "ethernet": DEFAULT_INTERFACES["ethernet"],
            },
        )

    @classmethod
    def local(cls, node: str = "localhost") -> NodeNetworks:
        """Return the networks of plain local processes: everything over the loopback interface."""
        return cls(node=node, interfaces=dict.fromkeys(FAMILIES, "lo"))

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
