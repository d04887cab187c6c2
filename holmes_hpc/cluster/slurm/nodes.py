"""Nodes and partitions as `scontrol`, `sinfo` and slurm.conf tell of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holmes_hpc.cluster.hostlist import expand_hostlist
from holmes_hpc.cluster.slurm.gres import Gres, read_gres
from holmes_hpc.cluster.slurm.records import (
    SlurmOutputError,
    configuration_lines,
    read_records,
    read_table,
    reads,
    split_list,
    value_of,
)
from holmes_hpc.foreign import ForeignError, parse_json

NODE_FORMAT = "%N|%P|%T|%f|%b|%G|%c|%m"
"""for `sinfo --Node --format`, read by `read_sinfo`"""

_FLAGS = {"*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "%": "POWERING_DOWN", "!": "POWERING_DOWN",
          "$": "MAINTENANCE", "@": "REBOOT_ISSUED", "^": "REBOOT_REQUESTED", "-": "PLANNED"}
_SHORT_STATES = {"ALLOC": "ALLOCATED", "MIX": "MIXED", "COMP": "COMPLETING", "DRNG": "DRAINING",
                 "MAINT": "MAINTENANCE", "RESV": "RESERVED", "UNK": "UNKNOWN", "PLND": "PLANNED", "FUTR": "FUTURE"}
_AWAY = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE", "INVAL", "MAINT",
                   "MAINTENANCE", "NOT_RESPONDING", "UNKNOWN"})
# Column names of sinfo, and the field letters that sites use as keys when they let it print JSON lines.
_COLUMNS = {"name": ("NODELIST", "HOSTNAMES", "n", "N"), "partition": ("PARTITION", "p", "P"),
            "state": ("STATE", "s", "T", "t"), "available": ("AVAIL_FEATURES", "FEATURES", "f"),
            "active": ("ACTIVE_FEATURES", "b"), "gres": ("GRES", "G"), "cpus": ("CPUS", "c"),
            "memory": ("MEMORY", "mem", "m")}


@dataclass(frozen=True)
class SlurmNode:
    """One node. `state` holds Slurm's words in capitals, `("IDLE", "DRAIN")` for `IDLE+DRAIN`."""

    name: str
    features: tuple[str, ...] = ()
    """the active ones where Slurm tells, else the available ones"""
    gres: tuple[Gres, ...] = ()
    state: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    address: str | None = None
    cpus: int | None = None
    memory_mb: int | None = None
    slurm_version: str | None = None

    @property
    def usable(self) -> bool:
        """Whether a job may get the node, now or when others have left; a cloud node that sleeps may."""
        return bool(self.state) and not _AWAY.intersection(self.state)


@dataclass(frozen=True)
class SlurmPartition:
    """One partition."""

    name: str
    nodes: tuple[str, ...]
    default: bool = False
    up: bool = True
    max_time: str | None = None
    priority_tier: int | None = None
    grace_seconds: int | None = None
    preempt_mode: str | None = None


def read_state(text: str) -> tuple[str, ...]:
    """Return the words of a node's state: `mix*` gives ("MIXED", "NOT_RESPONDING")."""
    words: list[str] = []
    for word in text.upper().split("+"):
        bare = word.rstrip("".join(_FLAGS))
        words.append(_SHORT_STATES.get(bare, bare))
        words += [_FLAGS[mark] for mark in word[len(bare):]]
    return tuple(word for word in words if word)


@reads("the output of scontrol show node")
def read_scontrol_nodes(text: str) -> tuple[SlurmNode, ...]:
    """Return the nodes of `scontrol show node`, in its long or its one-line form."""
    return tuple(_node_of_record(record) for record in read_records(text, "NodeName"))


def _node_of_record(record: Mapping[str, str]) -> SlurmNode:
    return SlurmNode(
        name=record["NodeName"], address=value_of(record, "NodeAddr"),
        features=split_list(record.get("ActiveFeatures") or record.get("AvailableFeatures")),
        gres=read_gres(record.get("Gres")), state=read_state(record.get("State", "")),
        partitions=split_list(record.get("Partitions")), cpus=_number(record.get("CPUTot")),
        memory_mb=_number(record.get("RealMemory")), slurm_version=value_of(record, "Version"))


@reads("the output of sinfo")
def read_sinfo(text: str) -> tuple[SlurmNode, ...]:
    """Return the nodes that `sinfo` lists, each once, with all partitions in which it is listed.

    Understood are tables with a header (the default, `--Node`, `--long`, any `--format` that names the columns, our own
    NODE_FORMAT), `--json` from 22.05 on, and a JSON object a line. Raises SlurmOutputError where there is no list of
    nodes in the text.
    """
    rows = _json_rows(text) if text.lstrip().startswith("{") else [_row(cells) for cells in read_table(text)]
    found: dict[str, SlurmNode] = {}
    for row in rows:
        for name in expand_hostlist(str(row.get("name") or "")):
            node = _node_of_row(name, row)
            known = found.get(name, node)
            found[name] = replace(node, partitions=tuple(dict.fromkeys((*known.partitions, *node.partitions))))
    if not found and not any(heading in text for heading in ("NODELIST", "HOSTNAMES", '"sinfo"', '"nodes"')):
        raise SlurmOutputError(f"sinfo printed no list of nodes: {text[:200]!r}; ask with --format='{NODE_FORMAT}'")
    return tuple(found.values())


def _row(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Give the columns our names; what is none of them is left out."""
    row = {}
    for ours, theirs in _COLUMNS.items():
        name = next((name for name in theirs if name in cells), None)
        if name is not None:
            row[ours] = cells[name]
    return row


def _node_of_row(name: str, row: Mapping[str, Any]) -> SlurmNode:
    state, active = row.get("state", ""), row.get("active")
    features = active if active not in (None, "", "(null)") else row.get("available")
    words = [state] if isinstance(state, str) else list(state)
    return SlurmNode(
        name=name, features=tuple(features) if isinstance(features, list) else split_list(features),
        gres=read_gres(row.get("gres")), state=tuple(part for word in words for part in read_state(word)),
        partitions=tuple(part.rstrip("*") for part in _listed(row.get("partition"))), address=row.get("address"),
        cpus=_number(row.get("cpus")), memory_mb=_number(row.get("memory")), slurm_version=row.get("version"))


def _listed(partitions: Any) -> tuple[str, ...]:
    return tuple(partitions) if isinstance(partitions, list) else split_list(partitions)


def _json_rows(text: str) -> list[dict[str, Any]]:
    try:
        document = parse_json(text, "sinfo")
    except ForeignError:
        return [_row(parse_json(line, "sinfo")) for line in text.splitlines() if line.strip()]
    if "nodes" in document:  # sinfo of 22.05, and scontrol show node --json: one entry for each node
        return [{"name": node["name"], "partition": node.get("partitions"),
                 "state": [*_words(node.get("state")), *node.get("state_flags", [])],
                 "active": node.get("active_features"), "available": node.get("features"), "gres": node.get("gres"),
                 "cpus": node.get("cpus"), "memory": node.get("real_memory"), "address": node.get("address"),
                 "version": node.get("slurmd_version") or node.get("version")} for node in document["nodes"]]
    # sinfo of newer releases: an entry for each group of nodes that are alike, in each partition.
    return [{"name": ",".join(group["nodes"]["nodes"]), "partition": [group["partition"]["name"]],
             "state": _words(group["node"]["state"]), "active": group["features"]["active"],
             "available": group["features"]["total"], "gres": group["gres"]["total"],
             "cpus": group["cpus"]["maximum"], "memory": group["memory"]["minimum"]}
            for group in document.get("sinfo", [])]


def _words(state: Any) -> list[str]:
    return [state] if isinstance(state, str) else list(state or [])


@reads("the output of scontrol show partition")
def read_scontrol_partitions(text: str) -> tuple[SlurmPartition, ...]:
    """Return the partitions of `scontrol show partition`."""
    return tuple(
        SlurmPartition(
            name=record["PartitionName"], nodes=tuple(expand_hostlist(value_of(record, "Nodes") or "")),
            default=record.get("Default") == "YES", up=record.get("State", "UP") == "UP",
            max_time=record.get("MaxTime"), priority_tier=_number(record.get("PriorityTier")),
            grace_seconds=_number(record.get("GraceTime")), preempt_mode=record.get("PreemptMode"))
        for record in read_records(text, "PartitionName"))


@reads("slurm.conf")
def read_slurm_conf(text: str) -> tuple[tuple[SlurmNode, ...], tuple[SlurmPartition, ...]]:
    """Return the nodes, with their partitions, and the partitions of a slurm.conf.

    Lines named DEFAULT change what the following lines leave out; sets of nodes (`NodeSet=`) stand for their nodes.
    Raises HostlistError for a malformed list.
    """
    nodes: dict[str, SlurmNode] = {}
    sets: list[Mapping[str, str]] = []
    described: list[Mapping[str, str]] = []
    node_defaults: dict[str, str] = {}
    partition_defaults: dict[str, str] = {}
    for settings in configuration_lines(text):
        if settings.get("nodename") == "DEFAULT":
            node_defaults |= settings
        elif "nodename" in settings:
            nodes |= {name: _configured_node(name, node_defaults | settings)
                      for name in expand_hostlist(settings["nodename"])}
        elif "nodeset" in settings:
            sets.append(settings)
        elif settings.get("partitionname") == "DEFAULT":
            partition_defaults |= settings
        elif "partitionname" in settings:
            described.append(partition_defaults | settings)
    named = {settings["nodeset"]: _members(settings, nodes) for settings in sets}
    partitions = [_configured_partition(settings, nodes, named) for settings in described]
    for partition in partitions:
        for name in partition.nodes:
            if name in nodes:
                nodes[name] = replace(nodes[name], partitions=(*nodes[name].partitions, partition.name))
    return tuple(nodes.values()), tuple(partitions)


def _configured_node(name: str, settings: Mapping[str, str]) -> SlurmNode:
    return SlurmNode(name=name, features=split_list(settings.get("feature") or settings.get("features")),
                     gres=read_gres(settings.get("gres")), state=read_state(settings.get("state", "")),
                     cpus=_number(settings.get("cpus") or settings.get("procs")),
                     memory_mb=_number(settings.get("realmemory")))


def _members(node_set: Mapping[str, str], nodes: Mapping[str, SlurmNode]) -> tuple[str, ...]:
    """Return the nodes of a `NodeSet=` line: those that it lists, and those with its feature."""
    feature = node_set.get("feature")
    with_feature = (name for name, node in nodes.items() if feature is not None and feature in node.features)
    return tuple(dict.fromkeys((*expand_hostlist(node_set.get("nodes", "")), *with_feature)))


def _configured_partition(settings: Mapping[str, str], nodes: Iterable[str], sets: Mapping[str, tuple[str, ...]]
                          ) -> SlurmPartition:
    listed = settings.get("nodes", "")
    members = (name for entry in expand_hostlist(listed) for name in sets.get(entry, (entry,)))
    return SlurmPartition(
        name=settings["partitionname"],
        nodes=tuple(nodes) if listed.upper() == "ALL" else tuple(dict.fromkeys(members)),
        default=settings.get("default", "NO").upper() == "YES", up=settings.get("state", "UP").upper() == "UP",
        max_time=settings.get("maxtime"),
        priority_tier=_number(settings.get("prioritytier") or settings.get("priority")),
        grace_seconds=_number(settings.get("gracetime")), preempt_mode=settings.get("preemptmode"))


def _number(value: Any) -> int | None:
    """Return the number at the start of `31860+`, `4` or 4; None where there is none."""
    match = re.match(r"[0-9]+", str(value)) if value is not None else None
    return int(match[0]) if match else None
