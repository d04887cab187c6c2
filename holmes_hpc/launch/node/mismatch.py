"""Compares what the cluster file says of a node with what the node has, before any process group is built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holmes_hpc.cluster import Node
from holmes_hpc.cluster.nics import DEFAULT_INTERFACES, ETHERNET, NICS
from holmes_hpc.launch.node.node_report import NodeReport, Port
from holmes_hpc.words import counted

_VERBS = ("ib", "roce")
_LINK_LAYERS = {"ib": "InfiniBand", "roce": "Ethernet"}
_LEAST_SHARE_OF_RATE = 0.9
"""A port that runs at less than this share of its NIC kind's rate came up with fewer lanes, or at an older speed."""


@dataclass(frozen=True)
class Mismatch:
    """One contradiction: the node, what was expected and found, what to do, and the network that it concerns."""

    node: str
    expected: str
    found: str
    remedy: str
    network: str = ETHERNET

    def __str__(self) -> str:
        return f"node {self.node}: expected {self.expected}, found {self.found}; {self.remedy}"


def find_mismatches(nodes: Sequence[tuple[Node, NodeReport]], *, uses_verbs: bool) -> list[Mismatch]:
    """Return every contradiction between described nodes and their reports.

    `uses_verbs`: the run communicates over NCCL, which needs adapters and GPUs; gloo needs interfaces with an address.
    Where one node of a fabric has adapters the others are expected to have them, whatever the run uses.
    """
    found: list[Mismatch] = []
    with_adapters = {node.fabric for node, report in nodes if report.ports}
    for node, report in nodes:
        found += _interface_mismatches(node, report, fabric=not uses_verbs)
        if node.network in _VERBS and (uses_verbs or node.fabric in with_adapters):
            found += _port_mismatches(node, report)
        if uses_verbs and report.gpus < node.gpus:
            remedy = f"correct cluster.partitions.{node.label}.gpus_per_node, or {_leave_out(node, report)}"
            found.append(Mismatch(report.node, f"{counted(node.gpus, 'GPU')} "
                                               f"({node.gpu})", str(report.gpus), remedy, "gpu"))
    named = {mismatch.node for mismatch in found}
    if uses_verbs:
        found += [mismatch for mismatch in _unequal_adapters(nodes) if mismatch.node not in named]
    return found


def interfaces_of(node: Node) -> dict[str, str]:
    """Return the interface of each network of a described node."""
    fabric = node.fabric_interface or (node.interface if node.network == ETHERNET else None)
    ethernet = node.interface or DEFAULT_INTERFACES[ETHERNET]
    return {"local": "lo", node.network: fabric or DEFAULT_INTERFACES[node.network], ETHERNET: ethernet}


def _interface_mismatches(node: Node, report: NodeReport, *, fabric: bool) -> list[Mismatch]:
    problems = []
    for network, name in interfaces_of(node).items():
        if network == "local" or (network != ETHERNET and not fabric) or report.interfaces.get(name) is not None:
            continue
        setting = "interface" if network == ETHERNET else "fabric_interface"
        problems.append(Mismatch(
            report.node, f"the {network} interface {name} with an IPv4 address", _state(name, report),
            f"set cluster.partitions.{node.label}.{setting}, or {_leave_out(node, report)}", network))
    return problems


def _state(name: str, report: NodeReport) -> str:
    if name in report.down:
        return f"that {name} is down"
    if name in report.interfaces:
        return f"{name} without an address"
    up = {each: address for each, address in report.interfaces.items() if each != "lo" and address is not None}
    return f"no {name}, but {_names(up)}"


def _port_mismatches(node: Node, report: NodeReport) -> list[Mismatch]:
    """Return the first thing that is wrong with a node's adapters: absent, of the other kind, down, too few, slow."""
    remedy = f"repair the port, or {_leave_out(node, report)}"

    def problem(expected: str, found: str | None = None) -> list[Mismatch]:
        return [Mismatch(report.node, expected, found or _ports(report), remedy, node.network)]

    active = report.active_adapters(node.network)
    wanted = _wanted_adapters(node)
    missing = [name for name in wanted if name not in active]
    if missing:
        return problem(f"active {node.network} ports ({_LINK_LAYERS[node.network]} link layer) on {', '.join(wanted)}")
    if len(active) < (1 if wanted else node.nics):
        return problem(f"{node.nics} active {node.network} ports (nic: {node.nic}; nics_per_node: {node.nics})")
    rate = NICS[node.nic].bandwidth_gbps
    slow = [port for port in report.ports if port.adapter in (wanted or active) and _is_slow(port, node.network, rate)]
    fast = len(wanted or active) - len({port.adapter for port in slow})
    if slow and fast < (len(wanted) or node.nics):
        names = ", ".join(f"{port.adapter}/{port.port} at {port.rate_gbps:g} Gb/s" for port in slow)
        return problem(f"{rate:g} Gb/s on each {node.network} port (nic: {node.nic})", names)
    return []


def _is_slow(port: Port, network: str, rate_gbps: float) -> bool:
    return (port.family == network and port.state == "ACTIVE"
            and 0 < port.rate_gbps < _LEAST_SHARE_OF_RATE * rate_gbps)


def _wanted_adapters(node: Node) -> list[str]:
    return [name.strip().partition(":")[0].lstrip("=") for name in (node.hca or "").split(",") if name.strip()]


def _unequal_adapters(nodes: Sequence[tuple[Node, NodeReport]]) -> list[Mismatch]:
    """One communicator over unequal numbers of adapters can hang in silence."""
    counts: dict[str, dict[str, int]] = {}
    labels = {report.node: node.label for node, report in nodes}
    for node, report in nodes:
        if node.network in _VERBS:
            number = len(_wanted_adapters(node)) or len(report.active_adapters(node.network))
            counts.setdefault(node.fabric, {})[report.node] = number
    problems = []
    for fabric, found in counts.items():
        expected, _ = max(Counter(found.values()).items(), key=lambda item: (item[1], item[0]))
        problems += [Mismatch(name, f"{expected} adapters as on the other nodes of the fabric {fabric}", str(count),
                              f"name the same number on each by cluster.partitions.{labels[name]}.hca, or leave the "
                              f"node out by cluster.partitions.{labels[name]}.exclude={name}", "verbs")
                     for name, count in found.items() if count != expected]
    return problems


def _leave_out(node: Node, report: NodeReport) -> str:
    return f"leave the node out by cluster.partitions.{node.label}.exclude={report.node}"


def _ports(report: NodeReport) -> str:
    ports = [f"{port.adapter}/{port.port} (link layer {port.link_layer or 'unknown'}) {port.state or 'without a state'}"
             for port in report.ports]
    return ", ".join(ports) or "no InfiniBand or RoCE adapter (/sys/class/infiniband is empty)"


def _names(interfaces: Mapping[str, str | None]) -> str:
    return ", ".join(interfaces) or "no other interface that is up"
