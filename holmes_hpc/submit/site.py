"""Writes a first cluster file from what Slurm tells: a label for each kind of node that a job can ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import yaml

from holmes_hpc.cluster.gpus import GPUS
from holmes_hpc.cluster.nics import DEFAULT_ETHERNET_GBPS, ETHERNET, NICS
from holmes_hpc.cluster.slurm import NodeAnnotation, SlurmNode
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.quoting import control_character, one_line
from holmes_hpc.submit.fit import distinguishing_feature, gpus_of, is_slice, main_gpu
from holmes_hpc.submit.inventory import Inventory

# What stands where a family is known and its speed is not: a common kind, marked as a guess.
_USUAL_NICS = {"ib": "hdr200", "roce": "roce100", "efa": "efa400", "slingshot": "slingshot200", "opa": "opa100",
               ETHERNET: "eth25"}
_USUAL_GPU = "a100-80g"


@dataclass(frozen=True)
class Guess:
    """A value of the file; `doubt` says what a person should look at, None where Slurm told it."""

    value: str | int
    doubt: str | None = None


@dataclass(frozen=True)
class Label:
    """One label: equal nodes of one partition."""

    name: str
    partition: Guess
    nodes: tuple[SlurmNode, ...]
    gpu: Guess
    gpus_per_node: int
    nic: Guess
    nics: int
    fabric: str
    constraint: str | None
    gres: str | None
    remark: str | None


def describe_site(inventory: Inventory, name: str) -> str:
    """Return the text of a cluster file. Raises ConfigurationError where Slurm shows no node that could train."""
    labels = find_labels(inventory)
    if not labels:
        raise ConfigurationError("no node that is in a partition is listed, by sinfo --all or in the file of --nodes, "
                                 "so there is nothing to describe")
    lines = ["# A first description by `holmes site`, from what Slurm tells. Look at every line with a question mark,",
             f"# leave out labels that you do not use, then check with `holmes doctor +cluster={name}`.",
             f"name: {name}", "partitions:"]
    for label in labels:
        lines += _lines(label)
    return "\n".join(lines) + "\n"


def find_labels(inventory: Inventory) -> list[Label]:
    """Return a label for each set of nodes alike in partition, GPUs and network; without GPUs where none has any."""
    with_gpus = any(gpus_of(node) for node in inventory.nodes.values())
    told = any(node.partitions for node in inventory.nodes.values())
    groups: dict[tuple[object, ...], list[SlurmNode]] = {}
    for node in inventory.nodes.values():
        if (node.partitions or not told) and (gpus_of(node) or not with_gpus):
            network = inventory.networks[node.name]
            kind = (_partition_of(node, inventory), _gpu_type(node), gpus_of(node), network.fabric, network.nic)
            groups.setdefault(kind, []).append(node)
    labels: list[Label] = []
    for nodes in groups.values():
        labels.append(_label(nodes, inventory, [label.name for label in labels]))
    return labels


def _partition_of(node: SlurmNode, inventory: Inventory) -> str | None:
    """Return the partition to ask for: an open one whose nodes are most alike, no urgent one that ends others' jobs.

    None where the text names no partitions, as of a sinfo without that column.
    """
    def preference(name: str) -> tuple[bool, int, int, int]:
        told = inventory.partitions.get(name)
        tier, closed = (None, False) if told is None else (told.priority_tier, not told.up)
        members = inventory.nodes_of(name)
        kinds = {(inventory.networks[member.name].fabric, _gpu_type(member), gpus_of(member)) for member in members}
        return closed, tier or 0, len(kinds), -len(members)

    return min(node.partitions, key=preference, default=None)


def _label(nodes: Sequence[SlurmNode], inventory: Inventory, taken: Sequence[str]) -> Label:
    first = nodes[0]
    partition, network = _partition_of(first, inventory), inventory.networks[first.name]
    members = inventory.nodes.values() if partition is None else inventory.nodes_of(partition)
    others = [node for node in members if node.name not in {each.name for each in nodes}
              and gpus_of(node) >= gpus_of(first)]
    kind, gres = _gpu_type(first), None
    further = sorted({gres.type for gres in first.gres if gres.name == "gpu" and gres.type} - {kind})
    if kind and (further or is_slice(kind) or any(_gpu_type(node) != kind for node in others)):
        gres = f"gpu:{kind}:{gpus_of(first)}"
        others = [node for node in others if _gpu_type(node) == kind]
    constraint = distinguishing_feature(list(nodes), others) if others else None
    remark = None
    if others and constraint is None:
        remark = (f"? no feature tells these nodes from {', '.join(node.name for node in others[:4])}, which the same "
                  "request may be given; ask for others by `exclude`")
    remark = "; ".join(filter(None, (_of_gpus(kind, further), remark))) or None
    usable = sum(node.usable for node in nodes)
    if usable < len(nodes) and first.state:
        remark = f"{usable} of {len(nodes)} nodes are in service now" + (f"; {remark}" if remark else "")
    name = _free_name(partition, network, first, taken)
    nics = sum(gres.count for gres in first.gres if gres.name in ("nic", "hca", network.family)) or 1
    asked = Guess(name, "the text names no partition: ask your site") if partition is None else Guess(partition)
    return Label(name, asked, tuple(nodes), _gpu(first), gpus_of(first) or 1, _nic(network), nics,
                 network.fabric or name, constraint, gres, remark)


def _free_name(partition: str | None, network: NodeAnnotation, node: SlurmNode, taken: Iterable[str]) -> str:
    words = [network.fabric or "nodes", *filter(None, [partition]), _gpu_type(node) or "cpu"]
    for count in range(1, len(words) + 1):
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(dict.fromkeys(words[:count]))).strip("-.") or "nodes"
        if name not in taken:
            return name
    return next(f"{name}-{number}" for number in range(2, 10_000) if f"{name}-{number}" not in taken)


def _of_gpus(kind: str | None, further: Sequence[str]) -> str | None:
    """Return what to ask of nodes with slices of GPUs, or with GPUs of several types."""
    if is_slice(kind):
        return (f"? {kind} is a slice of a GPU (MIG), described here as a whole one: NCCL joins no two slices of one "
                "GPU, and its speed and memory are less; leave this label out, or ask for one rank on each node")
    if further:
        return (f"? these nodes have GPUs of other types too ({', '.join(further)}), which this label leaves alone: "
                "ranks of a label have equal GPUs")
    return None


def _gpu_type(node: SlurmNode) -> str | None:
    gpus = main_gpu(node)
    return gpus.type if gpus else None


def _gpu(node: SlurmNode) -> Guess:
    """Return the catalogue's name for a node's GPUs, from their resource type and the node's features."""
    if not gpus_of(node):
        return Guess("cpu")
    kind = _gpu_type(node)
    for text in filter(None, (kind, *node.features)):
        fitting = _named_gpus(text)
        if len(fitting) == 1:
            return Guess(fitting[0], f"Slurm says {text}: a slice of it" if is_slice(kind) else None)
        if fitting:
            sizes = {size for feature in (text, *node.features) for size in re.findall(r"(\d+)\s*gi?b?(?![a-z])",
                                                                                      feature.casefold())}
            sized = [name for name in fitting if f"{GPUS[name].memory_gib:g}" in sizes]
            if len(sized) == 1 and not is_slice(kind):
                return Guess(sized[0])
            likely = sized if sized and not is_slice(kind) else fitting
            return Guess(likely[0], f"Slurm says {text}: one of {', '.join(likely)}")
    return Guess(_USUAL_GPU, f"Slurm says {kind or 'nothing'}: choose from the catalogue in docs/clusters.md")


def _named_gpus(text: str) -> list[str]:
    """Return the GPU kinds whose model is a word of a text: `tesla_v100-pcie-32gb` names v100 and v100-16g."""
    words = set(re.split(r"[^a-z0-9]+", text.casefold()))
    return [name for name in GPUS if name.partition("-")[0] in words]


def _nic(network: NodeAnnotation) -> Guess:
    if network.nic is not None:
        return Guess(network.nic)
    if network.family is not None:
        return Guess(_USUAL_NICS[network.family], f"Slurm says {network.family} ({network.source}) and no speed")
    return Guess(_USUAL_NICS[ETHERNET], "Slurm does not tell the NIC; look at /sys/class/infiniband on a node")


def _word(value: str | int) -> str:
    """Return a value as YAML reads it back: in quotes where it would be another one, such as an alias."""
    text = str(value)
    try:
        plain = control_character(text) is None and "${" not in text and yaml.safe_load(f"a: {text}") == {"a": value}
    except yaml.YAMLError:
        plain = False
    return text if plain else json.dumps(text.replace("${", "\\${"))


def _lines(label: Label) -> list[str]:
    def line(key: str, guess: Guess) -> str:
        return f"    {key}: {_word(guess.value)}" + (f"  # ? {one_line(guess.doubt)}" if guess.doubt else "")

    lines = [f"  {_word(label.name)}:" + (f"  # {one_line(label.remark)}" if label.remark else ""),
             line("partition", label.partition),
             f"    nodes: {len(label.nodes)}",
             f"    gpus_per_node: {label.gpus_per_node}" + ("" if gpus_of(label.nodes[0]) else
                                                             "  # ? ranks on each node, as there are no GPUs"),
             line("gpu", label.gpu), line("nic", label.nic), f"    nics_per_node: {label.nics}"]
    if label.fabric != label.name:
        lines.append(f"    fabric: {_word(label.fabric)}")
    if label.constraint:
        lines.append(f"    constraint: {_word(label.constraint)}")
    if label.gres:
        lines.append(f"    gres: {_word(label.gres)}")
    ethernet = ("    # ethernet_gbps: 25  # ? where the uplink to the other fabrics is slower than these NICs"
                if NICS[str(label.nic.value)].family == ETHERNET else
                f"    ethernet_gbps: {DEFAULT_ETHERNET_GBPS:g}  # ? what reaches the other fabrics")
    return [*lines, ethernet,
            "    # interface: eth0   # ? the Ethernet interface, where it has another name"]
