"""Compares what the cluster file says of a node with what the node has, before any process group is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holmes_hpc.cluster import Node
from holmes_hpc.cluster.nics import DEFAULT_INTERFACES, ETHERNET
from holmes_hpc.launch.node_report import NodeReport

_VERBS = ("ib", "roce")


@dataclass(frozen=True)
class Mismatch:
    """One contradiction: the node, what was expected and found, and what to do."""

    node: str
    expected: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"node {self.node}: expected {self.expected}, found {self.found}; {self.remedy}"


def find_mismatches(nodes: Sequence[tuple[Node, NodeReport]], *, uses_verbs: bool) -> list[Mismatch]:
    """Return every contradiction between described nodes and their reports.

    `uses_verbs`: the run communicates over NCCL, which needs adapters; gloo needs interfaces with an address.
    """
    found: list[Mismatch] = []
    for node, report in nodes:
        found += _interface_mismatches(node, report, fabric=not uses_verbs)
        if node.network in _VERBS and (uses_verbs or report.ports):
            found += _port_mismatches(node, report)
    if uses_verbs:
        found += _unequal_adapters(nodes)
    return found


def interfaces_of(node: Node) -> dict[str, str]:
    """Return the interface of each network of a described node."""
    fabric = node.fabric_interface or (node.interface if node.network == ETHERNET else None)
    ethernet = node.interface or DEFAULT_INTERFACES[ETHERNET]
    return {"local": "lo", node.network: fabric or DEFAULT_INTERFACES[node.network], ETHERNET: ethernet}


def _interface_mismatches(node: Node, report: NodeReport, *, fabric: bool) -> list[Mismatch]:
    problems = []
    for network, name in interfaces_of(node).items():
        if network == "local" or (network != ETHERNET and not fabric):
            continue
        setting = "interface" if network == ETHERNET else "fabric_interface"
        if report.interfaces.get(name) is None:
            state = "one without an address" if name in report.interfaces else f"only {_names(report.interfaces)}"
            problems.append(Mismatch(report.node, f"the {network} interface {name} with an IPv4 address", state,
                                     f"set cluster.partitions.{node.label}.{setting}, or leave the node out by "
                                     f"cluster.partitions.{node.label}.exclude={report.node}"))
    return problems


def _port_mismatches(node: Node, report: NodeReport) -> list[Mismatch]:
    active = report.active_adapters(node.network)
    wanted = [name.partition(":")[0].lstrip("=^") for name in (node.hca or "").split(",") if name]
    remedy = f"repair the port, or leave the node out by cluster.partitions.{node.label}.exclude={report.node}"
    missing = [name for name in wanted if name not in active]
    if missing:
        return [Mismatch(report.node, f"active {node.network} ports on {', '.join(wanted)}", _ports(report), remedy)]
    if not active:
        return [Mismatch(report.node, f"an active {node.network} port (nic: {node.nic})", _ports(report), remedy)]
    return []


def _unequal_adapters(nodes: Sequence[tuple[Node, NodeReport]]) -> list[Mismatch]:
    """One communicator over unequal numbers of adapters can hang in silence."""
    problems = []
    first: dict[str, tuple[str, int]] = {}
    for node, report in nodes:
        if node.network not in _VERBS:
            continue
        count = len(node.hca.split(",")) if node.hca else len(report.active_adapters(node.network))
        other, expected = first.setdefault(node.fabric, (report.node, count))
        if count != expected:
            problems.append(Mismatch(report.node, f"{expected} adapters as on {other}, in one fabric", str(count),
                                     f"name the same number on each by cluster.partitions.{node.label}.hca"))
    return problems


def _ports(report: NodeReport) -> str:
    ports = [f"{port.adapter}/{port.port} {port.link_layer} {port.state}" for port in report.ports]
    return ", ".join(ports) or "no InfiniBand or RoCE adapter (/sys/class/infiniband is empty)"


def _names(interfaces: Mapping[str, str | None]) -> str:
    return ", ".join(interfaces) or "no interface that is up"
