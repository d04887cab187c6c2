"""What Slurm tells of its nodes, asked for at once: partitions, features, resources, states, switches."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holmes_hpc.cluster.slurm import (
    NodeAnnotation,
    SlurmNode,
    SlurmPartition,
    Topology,
    annotate,
    read_scontrol_nodes,
    read_sinfo,
    read_topology,
)
from holmes_hpc.cluster.slurm.nodes import NODE_FORMAT, read_scontrol_partitions, read_slurm_conf
from holmes_hpc.submit.commands import SlurmCommandError, run_command, understood

_QUESTION_SECONDS = 20.0


@dataclass(frozen=True)
class Inventory:
    """The nodes of a Slurm cluster, its partitions, and what is known of each node's network."""

    nodes: Mapping[str, SlurmNode]
    partitions: Mapping[str, SlurmPartition]
    topology: Topology | None
    networks: Mapping[str, NodeAnnotation]

    @classmethod
    def of(cls, nodes: Sequence[SlurmNode], partitions: Sequence[SlurmPartition], topology: Topology | None,
           site_features: Mapping[str, str] | None = None) -> Inventory:
        """Return the inventory of these nodes. Raises ConfigurationError for a value of `site_features`."""
        return cls({node.name: node for node in nodes}, {part.name: part for part in partitions}, topology,
                   annotate(nodes, topology, site_features))

    def nodes_of(self, partition: str) -> list[SlurmNode]:
        """Return the nodes of a partition in Slurm's order."""
        return [node for node in self.nodes.values() if partition in node.partitions]


def ask_slurm(site_features: Mapping[str, str] | None = None, partitions: Sequence[str] = (),
              cluster: str | None = None) -> Inventory:
    """Return the inventory that the controller (of `cluster`, another one of this site) tells.

    Where partitions are named, it is of these alone. Raises SlurmCommandError where no controller answers, or in no
    form that is known.
    """
    only = [f"--partition={','.join(partitions)}"] if partitions else ["--all"]
    with understood(["sinfo"]):
        nodes = read_sinfo(run_command(["sinfo", "--Node", *only, f"--format={NODE_FORMAT}"], cluster=cluster,
                                       timeout_seconds=_QUESTION_SECONDS))
    with understood(["scontrol", "show", "partition"]):
        told = read_scontrol_partitions(run_command(["scontrol", "show", "partition"], cluster=cluster,
                                                    timeout_seconds=_QUESTION_SECONDS))
    return Inventory.of(nodes, told, _topology(cluster), site_features)


def _topology(cluster: str | None) -> Topology | None:
    try:
        text = run_command(["scontrol", "show", "topology"], cluster=cluster, timeout_seconds=_QUESTION_SECONDS)
        with understood(["scontrol", "show", "topology"]):
            return read_topology(text) if "Name=" in text else None
    except SlurmCommandError:
        return None  # some releases fail where there is none


def read_saved(nodes_text: str, topology_text: str | None = None) -> Inventory:
    """Return the inventory of saved output: `scontrol show node`, `sinfo` with features, or a slurm.conf.

    Raises SlurmOutputError where the text is none of these.
    """
    partitions: Sequence[SlurmPartition] = ()
    nodes: Sequence[SlurmNode]
    if re.search(r"^\s*PartitionName=", nodes_text, re.MULTILINE):
        nodes, partitions = read_slurm_conf(nodes_text)
    elif re.search(r"^\s*NodeName=\S+\s+(Arch|CoresPerSocket)=", nodes_text, re.MULTILINE):
        nodes = read_scontrol_nodes(nodes_text)
    elif re.search(r"^\s*NodeName=", nodes_text, re.MULTILINE):
        nodes, partitions = read_slurm_conf(nodes_text)
    else:
        nodes = read_sinfo(nodes_text)
    return Inventory.of(nodes, partitions, read_topology(topology_text) if topology_text else None)
