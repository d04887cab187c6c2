"""Whether a cluster file fits what Slurm tells of the nodes that each label may be given."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holmes_hpc.cluster.hostlist import HostlistError, expand_hostlist
from holmes_hpc.cluster.nics import ETHERNET, NICS
from holmes_hpc.cluster.slurm import NodeAnnotation, SlurmNode
from holmes_hpc.cluster.slurm.gres import Gres, read_gres
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.submit.commands import SlurmCommandError
from holmes_hpc.submit.inventory import Inventory, ask_slurm
from holmes_hpc.submit.options import cluster_of
from holmes_hpc.submit.patience import patiently
from holmes_hpc.words import counted

_MOST_NAMES = 6
_SLICE = re.compile(r"(?<![a-z0-9])\d+g[._]?\d+gb")
_PATIENCE_SECONDS = 20.0
_SURE_SOURCES = ("feature", "gres")
"""A switch's or partition's name says less than a feature, so what it contradicts may still be right."""


@dataclass(frozen=True)
class Fact:
    """What was found of a label, and what to do.

    `fatal`: the job would fail, wait for ever, or be given nodes that cannot talk. sbatch says the first by itself:
    `unsaid` marks the others.
    """

    label: str
    text: str
    remedy: str = ""
    fatal: bool = False
    unsaid: bool = False

    def __str__(self) -> str:
        return f"cluster.partitions.{self.label}: {self.text}" + (f"; {self.remedy}" if self.remedy else "")


def check_submission(config: Any) -> None:
    """Refuse to submit what would wait for ever, or be given nodes of two fabrics or of another one than described.

    Raises ConfigurationError. What sbatch refuses by itself (features and GPUs that do not exist) is left to it, and
    where Slurm does not answer nothing is refused.
    """
    labels, cluster = _labels(config.cluster), cluster_of(config.launch)
    try:
        inventory = patiently(lambda left: ask_slurm(dict(config.cluster.features), sorted(labels.values()), cluster),
                              _PATIENCE_SECONDS)
    except SlurmCommandError:
        return
    fatal = [fact for fact in check_fit(config.cluster, inventory) if fact.fatal and fact.unsaid]
    if fatal:
        raise ConfigurationError("; ".join(map(str, fatal)))


def check_fit(cluster: Any, inventory: Inventory) -> Iterator[Fact]:
    """Yield what Slurm's words say about each label of a cluster configuration."""
    for label, name in _labels(cluster).items():
        part = cluster.partitions[label]
        nodes = [node for node in inventory.nodes_of(name) if _may_get(part, node)]
        yield from _check_numbers(label, part, name, nodes)
        networks = [inventory.networks[node.name] for node in nodes if _has_gpus(part, node)]
        yield from _check_network(label, part, name, networks, inventory)
        for network in networks:
            if network.contradiction:
                yield Fact(label, f"node {network.node}: {network.contradiction}", "tell your site, or exclude it by "
                           f"cluster.partitions.{label}.exclude={network.node}")


def matches(constraint: str | None, features: tuple[str, ...]) -> bool | None:
    """Say whether a node with these features satisfies a constraint (`a&b|c`); None for one with counts or brackets."""
    if not constraint:
        return True
    if re.search(r"[\[\]()*{}]", constraint):
        return None
    return any(all(word.strip() in features for word in re.split(r"[&,]", option)) for option in constraint.split("|"))


def _labels(cluster: Any) -> dict[str, str]:
    return {str(label): str(part.partition or label) for label, part in cluster.partitions.items()}


def _may_get(part: Any, node: SlurmNode) -> bool:
    try:
        excluded = expand_hostlist(part.exclude or "")
    except HostlistError:
        excluded = []
    return node.name not in excluded and matches(part.constraint, node.features) is not False


def main_gpu(node: SlurmNode) -> Gres | None:
    """Return the GPUs of a node, of its main type where there are several: one that is whole, and has the most."""
    kinds = [Gres("gpu", kind, count) for kind, count in _gpu_counts(node).items()]
    return max(kinds, key=lambda gres: (not is_slice(gres.type), gres.count), default=None)


def _gpu_counts(node: SlurmNode) -> dict[str | None, int]:
    counts: dict[str | None, int] = {}
    for gres in node.gres:
        if gres.name == "gpu":
            counts[gres.type] = counts.get(gres.type, 0) + gres.count
    return counts


def is_slice(gpu_type: str | None) -> bool:
    """Return whether a type of GPU is a slice of one (MIG), such as `nvidia_a100_3g.39gb`."""
    return gpu_type is not None and _SLICE.search(gpu_type.casefold()) is not None


def gpus_of(node: SlurmNode) -> int:
    """Return how many GPUs of its main type Slurm knows on a node: ranks of one label have equal GPUs."""
    gpus = main_gpu(node)
    return gpus.count if gpus else 0


def _has_gpus(part: Any, node: SlurmNode) -> bool:
    asked = next((gres.type for gres in read_gres(part.gres) if gres.name == "gpu" and gres.type), None)
    own = _gpu_counts(node).get(asked, 0) if asked else gpus_of(node)
    return part.gpu == "cpu" or own >= part.gpus_per_node


def _check_numbers(label: str, part: Any, name: str, nodes: list[SlurmNode]) -> Iterator[Fact]:
    setting = f"cluster.partitions.{label}"
    if not nodes:
        what = f"no node of the partition {name} has the features {part.constraint}" if part.constraint else (
            f"Slurm shows no node of a partition {name}")
        yield Fact(label, what, f"correct {setting}.constraint or .partition", fatal=True)
        return
    if len(nodes) < part.nodes:
        suiting = f" with the features {part.constraint}" if part.constraint else ""
        yield Fact(label, f"it wants {part.nodes} nodes, and the partition {name} has {len(nodes)}{suiting}: the job "
                   "would wait for ever", f"lower {setting}.nodes, or correct {setting}.partition", fatal=True,
                   unsaid=True)
        return
    enough = [node for node in nodes if _has_gpus(part, node)]
    if len(enough) < part.nodes:
        most = max(map(gpus_of, nodes))
        yield Fact(label, f"it wants {counted(part.nodes, 'node')} with {counted(part.gpus_per_node, 'GPU')}, and of "
                          f"{counted(len(nodes), 'node')} of "
                   f"{name} {len(enough)} have so many (the most: {most})",
                   f"lower {setting}.nodes or .gpus_per_node", fatal=True)
        return
    away = [node for node in enough if node.state and not node.usable]  # a slurm.conf tells no states
    if len(enough) - len(away) < part.nodes:
        listed = ", ".join(f"{node.name} {'+'.join(node.state)}" for node in away[:_MOST_NAMES])
        yield Fact(label, f"{len(enough) - len(away)} of the {counted(part.nodes, 'node')} that it wants are in "
                          f"service; {listed}",
                   "the job will wait for them")


def _check_network(label: str, part: Any, name: str, networks: list[NodeAnnotation], inventory: Inventory
                   ) -> Iterator[Fact]:
    described = NICS[part.nic].family
    if described == ETHERNET:
        return  # every node has it
    fast = [network for network in networks if network.family not in (None, ETHERNET)]
    fabrics: dict[str, list[NodeAnnotation]] = {}
    for network in fast:
        fabrics.setdefault(str(network.fabric), []).append(network)
    if len(fabrics) > 1:
        listed = "; ".join(f"{fabric}: {_names(found)}" for fabric, found in fabrics.items())
        families = {network.family for network in fast}
        kinds = {network.nic for network in fast}
        # Parts that only switches tell apart may be one fabric whose core Slurm was not told of.
        sure = len(families) > 1 or len(kinds - {None}) > 1
        yield Fact(label, f"the partition {name} holds nodes of several fabrics, which cannot talk to each other over "
                   f"their fast NICs ({listed})", _way_to_ask(label, part, fabrics, described, inventory),
                   fatal=sure, unsaid=True)
        return
    wrong = [network for network in fast if network.family != described]
    if wrong:
        yield Fact(label, f"nic is {part.nic} ({described}), but Slurm says {wrong[0].family} of {_names(wrong)} "
                   f"({wrong[0].source})", f"correct cluster.partitions.{label}.nic, or cluster.features",
                   fatal=wrong[0].source.startswith(_SURE_SOURCES),
                   unsaid=True)
        return
    others = [network for network in fast if network.nic not in (None, part.nic)]
    if others:
        yield Fact(label, f"nic is {part.nic}, and Slurm says {others[0].nic} of {_names(others)} "
                   f"({others[0].source})", f"correct cluster.partitions.{label}.nic for right predictions")
    unknown = [network for network in networks if network.family is None]
    if unknown:
        yield Fact(label, f"Slurm does not tell the NIC of {_names(unknown)}",
                   "each node reports it when the job starts; name features in cluster.features")


def _way_to_ask(label: str, part: Any, fabrics: Mapping[str, list[NodeAnnotation]], described: str,
                inventory: Inventory) -> str:
    """Return how to ask for the nodes of the described fabric alone."""
    fitting = [found for found in fabrics.values() if found[0].family == described] or list(fabrics.values())
    kinds = [found for found in fitting if found[0].nic == part.nic]
    wanted = {network.node for network in (kinds or fitting)[0]}
    others = {network.node for found in fabrics.values() for network in found} - wanted
    feature = distinguishing_feature([inventory.nodes[name] for name in wanted],
                                     [inventory.nodes[name] for name in others])
    setting = f"cluster.partitions.{label}"
    if feature is None:
        return f"no feature tells them apart: leave the others out by {setting}.exclude, or name another partition"
    asked = f"{part.constraint}&{feature}" if part.constraint else feature
    one_family = len({network.family for found in fabrics.values() for network in found}) == 1
    return f"ask for one of them by {setting}.constraint='{asked}'" + (
        f", or if they do reach each other name their features in cluster.features ({feature}: {described})"
        if one_family else "")


def distinguishing_feature(wanted: list[SlurmNode], others: list[SlurmNode]) -> str | None:
    """Return a feature that all nodes of `wanted` have and none of `others`, None where there is none."""
    if not wanted:
        return None
    for feature in wanted[0].features:
        if all(feature in node.features for node in wanted) and not any(feature in node.features for node in others):
            return feature
    return None


def _names(networks: list[NodeAnnotation]) -> str:
    names, more = [network.node for network in networks], len(networks) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
