"""Kinds of nodes: equal nodes are one kind, and the search counts nodes of kinds instead of naming them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from holmes_hpc.cluster import Machine, Node
from holmes_hpc.planner.task import Task


@dataclass(frozen=True, eq=False)
class Kind:
    """Equal nodes of one fabric, in rank order; a kind is only equal to itself, which makes it a cheap key.

    A search asks some ten thousand times for what it says, which is looked up once.
    """

    nodes: tuple[Node, ...]

    @cached_property
    def node(self) -> Node:
        """One of the equal nodes."""
        return self.nodes[0]

    @cached_property
    def gpus(self) -> int:
        """GPUs of each node."""
        return self.node.gpus

    @cached_property
    def total_gpus(self) -> int:
        """GPUs of all nodes."""
        return self.gpus * len(self.nodes)

    @cached_property
    def fabric(self) -> str:
        """The fabric of the nodes."""
        return self.node.fabric

    @cached_property
    def name(self) -> str:
        """The kind for people: fabric and GPU."""
        return self.fabric if self.node.gpu in self.fabric else f"{self.fabric} {self.node.gpu}"


def node_kinds(task: Task) -> tuple[Kind, ...]:
    """Return the kinds of nodes of a cluster, in order of first appearance."""
    kinds: dict[tuple[object, ...], list[Node]] = {}
    for node in task.cluster.nodes:
        key = (node.fabric, node.gpu, node.gpus, node.nic, node.nics, node.ethernet_gbps, node.disturbed)
        kinds.setdefault(key, []).append(node)
    return tuple(Kind(tuple(nodes)) for nodes in kinds.values())


def alike_kinds(task: Task) -> tuple[int, ...]:
    """Return of every kind the number of the first one like it: as many equal nodes in a fabric of their own.

    Where links between fabrics are described or measured, each kind is like itself alone.
    """
    kinds = node_kinds(task)
    if task.cluster.links or task.cluster.measured:
        return tuple(range(len(kinds)))
    alone = Counter(kind.fabric for kind in kinds)
    models: dict[object, int] = {}
    found = []
    for k, kind in enumerate(kinds):
        node = kind.node
        key = (len(kind.nodes), node.gpu, node.gpus, node.nic, node.nics, node.ethernet_gbps, node.disturbed)
        found.append(models.setdefault(key, k) if alone[kind.fabric] == 1 else k)
    return tuple(found)


def renamed(order: Iterable[int], like: Sequence[int]) -> dict[int, int]:
    """Return new numbers of kinds, in which like ones come in the order in which `order` has them.

    Two orders of which one becomes the other by changing like kinds have one result when they are renamed.
    """
    members: dict[int, list[int]] = {}
    for k, model in enumerate(like):
        members.setdefault(model, []).append(k)
    names: dict[int, int] = {}
    used: Counter[int] = Counter()
    for k in order:
        if k not in names:
            names[k] = members[like[k]][used[like[k]]]
            used[like[k]] += 1
    return names


def on_nodes(task: Task, slots: Iterable[str]) -> Task:
    """Return the task on some of the cluster's nodes: ranks are numbered anew over those, in the same order.

    A plan on fewer nodes than the cluster has names only their slots, so that the launcher starts only these and
    `world_size` stays the number of ranks launched.
    """
    kept = frozenset(slots)
    if kept == {node.slot for node in task.cluster.nodes}:
        return task
    found: Task = task.variants.on_nodes.of(kept, lambda: _on_nodes(task, kept))
    return found


def _on_nodes(task: Task, kept: frozenset[str]) -> Task:
    cluster = task.cluster.only(kept)
    if task.machine.has_real_emulation:
        machine = Machine.emulated(cluster, shaped=task.machine.shaped)
    else:
        kinds = {node.gpu: task.machine.gpus[node.gpu] for node in cluster.nodes}
        machine = dataclasses.replace(task.machine, cluster=cluster, gpus=kinds)
    return dataclasses.replace(task, cluster=cluster, machine=machine)
