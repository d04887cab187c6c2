"""Which switch or block each node hangs on: `scontrol show topology`, topology.conf."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from holmes_hpc.cluster.hostlist import expand_hostlist
from holmes_hpc.cluster.slurm.records import configuration_lines, read_records, reads

_KEYS = (("SwitchName", "tree"), ("BlockName", "block"))


@dataclass(frozen=True)
class Switch:
    """One switch or block: the nodes that hang on it directly, and the switches below it."""

    name: str
    nodes: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topology:
    """The topology of a cluster. `kind` is Slurm's word: tree, block or flat."""

    kind: str
    switches: tuple[Switch, ...]

    @cached_property
    def switch_of(self) -> Mapping[str, str]:
        """Node name to the name of the switch that it hangs on directly."""
        # A switch above others lists their nodes too: only those without switches below count.
        return {node: switch.name for switch in self.switches if not switch.children for node in switch.nodes}

    def strangers(self, known: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return the nodes that each switch names and the cluster does not have: typing errors of the file."""
        return {switch.name: unknown for switch in self.switches
                if (unknown := tuple(node for node in switch.nodes if node not in known))}


@reads("the topology")
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
