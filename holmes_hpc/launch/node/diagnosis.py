"""What `doctor` finds on this node: its interfaces and adapters, and whether they are those of the cluster file."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holmes_hpc.cluster import ClusterDescription, Node
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.findings import FAIL, NOTE, OK, Finding
from holmes_hpc.launch.node.backend import AUTO, check_environment, decide_backend
from holmes_hpc.launch.node.mismatch import find_mismatches
from holmes_hpc.launch.node.node_report import NodeReport, read_node
from holmes_hpc.submit.commands import SlurmCommandError
from holmes_hpc.submit.fit import matches
from holmes_hpc.submit.inventory import Inventory, ask_slurm
from holmes_hpc.submit.options import cluster_of
from holmes_hpc.values.backend_kinds import BACKEND_KINDS


def node_findings(config: Any, environment: Mapping[str, str], cluster: ClusterDescription | None,
                  root: Path = Path("/")) -> Iterator[Finding]:
    """Yield what this node has; compared with the label of `cluster` that it belongs to, where it is a node of one."""
    name = environment.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    report = read_node(name, root)
    yield from _report(report)
    yield from _environment(str(config.launch.backend), report, environment)
    label = _label_of(config, name) if cluster is not None else None
    if cluster is None or label is None:
        return
    node = next(node for node in cluster.nodes if node.label == label)
    backend = decide_backend(str(config.launch.backend), [(node, report)])
    yield from _compare(node, report, uses_verbs=backend.uses_adapters)


def _report(report: NodeReport) -> Iterator[Finding]:
    shown = [f"{name} {address or 'without an IPv4 address'}" + (
        f" ({report.speeds_gbps[name]:g} Gb/s)" if report.speeds_gbps.get(name) else "")
        for name, address in report.interfaces.items() if name != "lo"]
    down = f"; down: {', '.join(report.down)}" if report.down else ""
    yield Finding(OK, "interfaces", f"{report.node}: {', '.join(shown) or 'only lo'}{down}")
    for port in report.ports:
        fact = (f"{port.adapter} port {port.port}: {port.link_layer} ({port.family}), {port.state}, "
                f"{port.rate_gbps:g} Gb/s")
        if port.state == "ACTIVE":
            yield Finding(OK, "adapter", fact)
        else:
            yield Finding(NOTE, "adapter", fact, "look at the cable and at the subnet manager, if it should be in use")
    if not report.ports:
        yield Finding(OK, "adapter", "no InfiniBand or RoCE adapter (/sys/class/infiniband is empty)")


def _environment(wanted: str, report: NodeReport, environment: Mapping[str, str]) -> Iterator[Finding]:
    for kind in BACKEND_KINDS.values():
        if kind.environment is None:
            continue
        try:
            check_environment(kind, environment)
        except ConfigurationError as error:
            state = FAIL if wanted == kind.name or (wanted == AUTO and report.gpus) else NOTE
            fact, _, remedy = str(error).partition("; ")
            yield Finding(state, kind.name, fact, remedy or "unset it")
            continue
        told = [f"{name}={value}" for name, value in environment.items() if name.startswith(kind.variables)]
        yield Finding(OK, kind.name, f"the environment sets {', '.join(told) or f'nothing of {kind.title}'}")


def _compare(node: Node, report: NodeReport, *, uses_verbs: bool) -> Iterator[Finding]:
    mismatches = find_mismatches([(node, report)], uses_verbs=uses_verbs)
    for mismatch in mismatches:
        yield Finding(FAIL, "node", f"as a node of {node.label}: expected {mismatch.expected}, found {mismatch.found}",
                      mismatch.remedy)
    if not mismatches:
        yield Finding(OK, "node", f"has what the label {node.label} describes")


def _label_of(config: Any, name: str) -> str | None:
    """Return the label whose nodes this one is among, None for a login node and where Slurm does not tell."""
    try:
        inventory: Inventory = ask_slurm(dict(config.cluster.features), cluster=cluster_of(config.launch))
    except SlurmCommandError:
        return None
    node = inventory.nodes.get(name)
    if node is None:
        return None
    for label, part in config.cluster.partitions.items():
        if str(part.partition or label) in node.partitions and matches(part.constraint, node.features) is not False:
            return str(label)
    return None
