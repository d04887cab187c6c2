"""Which switch or block each node hangs on: `scontrol show topology`, topology.conf, topology.yaml."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

from holmes_hpc.cluster.hostlist import expand_hostlist
from holmes_hpc.cluster.slurm.records import SlurmOutputError, configuration_lines, read_records

_KEYS = (("SwitchName", "tree"), ("BlockName", "block"))
# In topology.yaml: the kind, the list below it, and the name of an entry of that list.
_YAML_LISTS = {"tree": ("switches", "switch"), "block": ("blocks", "block"), "ring": ("rings", "ring"),
               "torus3d": ("toruses", "name")}


@dataclass(frozen=True)
class Switch:
    """One switch, block, ring or torus: the nodes that hang on it directly, and the switches below it."""

    name: str
    nodes: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topology:
    """One topology of a cluster. `kind` is Slurm's word: tree, block, flat, ring or torus3d."""

    kind: str
    switches: tuple[Switch, ...]
    name: str = "default"
    default: bool = True

    @cached_property
    def switch_of(self) -> Mapping[str, str]:
        """Node name to the name of the switch that it hangs on directly."""
        # A switch above others lists their nodes too: only those without switches below count.
        return {node: switch.name for switch in self.switches if not switch.children for node in switch.nodes}

    def common_switch(self, nodes: Iterable[str]) -> str | None:
        """Return the one switch on which all these nodes hang directly, or None."""
        found = {self.switch_of.get(node) for node in nodes}
        return found.pop() if len(found) == 1 else None

    def strangers(self, known: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return the nodes that each switch names and the cluster does not have: typing errors of the file."""
        return {switch.name: unknown for switch in self.switches
                if (unknown := tuple(node for node in switch.nodes if node not in known))}


def read_topology(text: str) -> Topology:
    """Return the topology of `scontrol show topology` or of a topology.conf; flat where it names no switches.

    A file that sets block sizes and no block, since all are commented out, is a block topology that places no node.
    Raises HostlistError for a malformed list of nodes.
    """
    for key, kind in _KEYS:
        entries = [settings for settings in configuration_lines(text) if key.lower() in settings]
        entries = entries or [{name.lower(): value for name, value in record.items()}
                              for record in read_records(text, key)]
        if entries:
            return Topology(kind, tuple(
                Switch(entry[key.lower()], tuple(expand_hostlist(entry.get("nodes", ""))),
                       tuple(expand_hostlist(entry.get("switches", "")))) for entry in entries))
    sized = any("blocksizes" in settings for settings in configuration_lines(text))
    return Topology("block" if sized else "flat", ())


def read_topology_yaml(text: str) -> tuple[Topology, ...]:
    """Return the topologies of a topology.yaml (Slurm 25.05 and later). Raises SlurmOutputError where it is none."""
    try:
        entries = yaml.safe_load(text) or []
        return tuple(_of_entry(entry) for entry in entries)
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise SlurmOutputError(f"topology.yaml cannot be understood: {error!r}; "
                               "it is a list of entries with `topology` and one of "
                               f"{', '.join(_YAML_LISTS)} or flat") from error


def _of_entry(entry: Mapping[str, Any]) -> Topology:
    kind = next((kind for kind in _YAML_LISTS if kind in entry), "flat")
    switches: tuple[Switch, ...] = ()
    if kind != "flat":
        below, name = _YAML_LISTS[kind]
        switches = tuple(Switch(str(switch[name]), tuple(expand_hostlist(switch.get("nodes", ""))),
                                tuple(expand_hostlist(switch.get("children", "")))) for switch in entry[kind][below])
    return Topology(kind, switches, str(entry["topology"]), bool(entry.get("cluster_default", False)))
