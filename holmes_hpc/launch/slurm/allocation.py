"""Fits a plan to the nodes that Slurm gave: slots to nodes, checks, and planning anew where the order differs."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holmes_hpc.cluster import ClusterDescription, Node
from holmes_hpc.cluster.nics import ETHERNET, NICS
from holmes_hpc.errors import PREEMPTED, NetworkError, PlanRefusedError
from holmes_hpc.launch.node.backend import decide_backend
from holmes_hpc.launch.node.mismatch import Mismatch, find_mismatches, interfaces_of
from holmes_hpc.launch.node.node_report import NodeReport
from holmes_hpc.launch.slurm.job_plan import plan_for_job
from holmes_hpc.planner import bind, for_library
from holmes_hpc.schedule import plan_digest
from holmes_hpc.values import Plan
from holmes_hpc.values.backend_kinds import GLOO

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Allocation:
    """Where the slots lie (slot to node name), the address of rank 0's node, nodes that use Ethernet alone, and the
    communication library of all ranks."""

    slots: dict[str, str]
    host: str
    ethernet_only: tuple[str, ...] = ()
    backend: str = GLOO.name


@dataclass(frozen=True)
class GivenNode:
    """A node that Slurm gave: the ranks on it, its component (None: not known), and what it reports of itself."""

    name: str
    ranks: tuple[int, ...]
    component: int | None
    report: NodeReport


class ExcludeNodesError(NetworkError):
    """Nodes are not as described and the job should go back into the queue without them."""

    exit_status = PREEMPTED

    def __init__(self, message: str, nodes: tuple[str, ...]) -> None:
        super().__init__(message)
        self.nodes = nodes


def allocate(config: Any, cluster: ClusterDescription, plan: Plan, given: Sequence[GivenNode]
             ) -> tuple[Plan, Allocation]:
    """Return the plan bound to the step's nodes (in rank order), and the allocation.

    Plans anew where nodes come in another order than planned, or use Ethernet after a mismatch, or where another
    version made the plan. Raises ConfigurationError when the new plan leaves nodes out, PlanRefusedError when the step
    has other nodes or tasks than the cluster file describes, NetworkError (with `launch.on_mismatch=fail`) or
    ExcludeNodesError (`exclude_node`) when a node is not as described.
    """
    found = _assign(cluster, given)
    backend = decide_backend(str(config.launch.backend), found)
    mismatches = find_mismatches(found, uses_verbs=backend.uses_adapters)
    ethernet_only = _going_over_ethernet(mismatches, found, str(config.launch.on_mismatch))
    nodes = tuple(_over_ethernet(node) if report.node in ethernet_only else node for node, report in found)
    slots = {node.slot: report.node for node, report in found}
    if not _is_planned_for(plan, nodes):
        LOG.info("the nodes are others than planned, or in another order: planning anew")
        plan = plan_for_job(config, dataclasses.replace(cluster, nodes=nodes))
    elif plan_digest(plan) != plan.schedule.digest:
        LOG.info("another version of holmes_hpc made the plan: planning anew")
        plan = plan_for_job(config, dataclasses.replace(cluster, nodes=nodes))
    first, report = found[0]
    host = report.interfaces.get(interfaces_of(first)[ETHERNET]) or report.node
    plan = for_library(plan, knows_nodes=backend.knows_nodes)
    return bind(plan, slots), Allocation(slots, host, ethernet_only, backend.name)


def _is_planned_for(plan: Plan, nodes: Sequence[Node]) -> bool:
    """Say whether the plan, which an earlier start may have made, is for these nodes in this order."""
    wanted = [(node.slot, node.fabric, node.gpu) for node in nodes for _ in range(node.gpus)]
    return [(place.slot, place.fabric, place.gpu) for place in plan.ranks] == wanted


def _assign(cluster: ClusterDescription, given: Sequence[GivenNode]) -> list[tuple[Node, NodeReport]]:
    """Return the described node that each node of the step stands for, in the step's order."""
    left = list(cluster.nodes)
    labels = list(dict.fromkeys(node.label for node in cluster.nodes))
    components = {node.component for node in given}
    by_component = None not in components and len(components) == len(labels)
    assigned = []
    for node in given:
        _check_contiguous(node)
        fitting = [each for each in left if not by_component or each.label == labels[node.component or 0]]
        if not by_component:
            fitting = [each for each in fitting if _could_be(each, node.report)] or fitting
        chosen = next((each for each in fitting if each.gpus == len(node.ranks)), None)
        if chosen is None:
            raise PlanRefusedError(_refusal(cluster, given, node))
        left.remove(chosen)
        assigned.append((chosen, node.report))
    if left:
        raise PlanRefusedError(_refusal(cluster, given, None))
    return assigned


def _check_contiguous(node: GivenNode) -> None:
    if node.ranks != tuple(range(node.ranks[0], node.ranks[0] + len(node.ranks))):
        raise PlanRefusedError(
            f"node {node.name} holds the ranks {', '.join(map(str, node.ranks))}: a plan wants consecutive ones on "
            "each node; start the step without `-m cyclic` (launch.srun_args)"
        )


def _could_be(node: Node, report: NodeReport) -> bool:
    """Say whether a node has the fast network of a described one, by its active ports or its interface."""
    if node.network == ETHERNET:
        return True
    address = report.interfaces.get(interfaces_of(node)[node.network])
    return bool(report.active_adapters(node.network)) or address is not None


def _refusal(cluster: ClusterDescription, given: Sequence[GivenNode], node: GivenNode | None) -> str:
    there = ", ".join(f"{each.name} ({len(each.ranks)} tasks)" for each in given)
    wanted = ", ".join(f"{count} of {label} with {gpus} tasks" for (label, gpus), count in
                       Counter((each.label, each.gpus) for each in cluster.nodes).items())
    which = f"node {node.name} with {len(node.ranks)} tasks fits no slot that is left" if node else (
        "slots are left without a node")
    return (f"the step's nodes do not fit the cluster {cluster.name}: {which}. Given: {there}. Described: {wanted}. "
            "Start as many tasks on each node as it has GPUs (--ntasks-per-node), or change "
            "cluster.partitions.<label>.nodes and gpus_per_node")


def _going_over_ethernet(mismatches: Sequence[Mismatch], found: Sequence[tuple[Node, NodeReport]], on_mismatch: str
            ) -> tuple[str, ...]:
    """Return the nodes that go on over Ethernet, or raise."""
    if not mismatches:
        return ()
    text = "; ".join(map(str, mismatches))
    nodes = tuple(dict.fromkeys(mismatch.node for mismatch in mismatches))
    if on_mismatch == "exclude_node":
        _refuse_wrong_description(nodes, found, text)
        raise ExcludeNodesError(f"nodes are not as described, the job goes on without them: {text}", nodes)
    hopeless = [mismatch for mismatch in mismatches if mismatch.network in (ETHERNET, "gpu")]
    if on_mismatch == "ethernet" and hopeless:
        raise NetworkError(f"nodes are not as described, and Ethernet does not help: {'; '.join(map(str, hopeless))}")
    if on_mismatch == "fail":
        raise NetworkError(f"nodes are not as described: {text}; or set launch.on_mismatch=ethernet to go on over "
                           "Ethernet on them, or exclude_node to try others")
    LOG.warning("going on over Ethernet (launch.on_mismatch=ethernet): %s", text)
    return nodes


def _refuse_wrong_description(nodes: Sequence[str], found: Sequence[tuple[Node, NodeReport]], text: str) -> None:
    """Refuse to exclude all of a label's nodes, one after another: then the description is wrong, not they."""
    by_label: dict[str, list[str]] = {}
    for node, report in found:
        by_label.setdefault(node.label, []).append(report.node)
    for label, names in by_label.items():
        if len(names) > 1 and set(names) <= set(nodes):
            raise NetworkError(f"no node of the label {label} is as described, so cluster.partitions.{label} is wrong "
                               f"rather than they, and none is excluded: {text}")


def _over_ethernet(node: Node) -> Node:
    """Return a node without its fast NIC: a fabric of its own, whose network is its Ethernet."""
    kind = min((name for name, nic in NICS.items() if nic.family == ETHERNET),
               key=lambda name: abs(NICS[name].bandwidth_gbps - node.ethernet_gbps))
    return dataclasses.replace(node, nic=kind, nics=1, fabric=f"{node.label}-{node.index}-ethernet",
                               fabric_interface=None, hca=None)
