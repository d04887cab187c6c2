"""Which NIC and fabric each node of a Slurm cluster has, as far as Slurm tells.

The NIC comes from the node's features by the table in `cluster/nics.py`, before which the cluster file's
`cluster.features` goes, else from a `nic` resource, else from the names of its switch and partitions. The fabric is
never taken for granted: nodes of one partition belong to one fabric only if their NICs agree and the topology joins
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holmes_hpc.cluster.nics import ETHERNET, NicFeature, nic_of_feature, nics_of_features
from holmes_hpc.cluster.slurm.gres import Gres
from holmes_hpc.cluster.slurm.nodes import SlurmNode
from holmes_hpc.cluster.slurm.topology import Topology

_NIC_RESOURCES = frozenset({"nic", "hca", "ib", "roce", "efa", "opa"})


@dataclass(frozen=True)
class NodeAnnotation:
    """What is known of a node's fast network. None: Slurm does not tell."""

    node: str
    family: str | None
    nic: str | None
    """the NIC kind, `hdr200`, where a feature or resource is that exact"""
    fabric: str | None
    """the name of the set of nodes that reach each other over these NICs"""
    switch: str | None
    source: str
    """what told the NIC: `feature ib`, `gres nic:hdr200`, `switch ib-sw`, `partition ib`, or `nothing`"""
    contradiction: str | None = None
    """what disagrees with it, in words"""


def annotate(nodes: Sequence[SlurmNode], topology: Topology | None = None,
             site_features: Mapping[str, str] | None = None) -> dict[str, NodeAnnotation]:
    """Return for each node its NIC and fabric.

    `topology` is that of the cluster; `site_features` are `cluster.features`. Raises ConfigurationError where a value
    of those is neither a NIC kind nor a family.
    """
    switches = topology.switch_of if topology else {}
    found = {node.name: _nic(node, switches.get(node.name), site_features) for node in nodes}
    fabrics = _fabrics(found, topology)
    return {name: NodeAnnotation(
                node=name, family=match.family if match else None, nic=match.kind if match else None,
                fabric=fabrics.get(name), switch=switches.get(name), source=source, contradiction=contradiction)
            for name, (match, source, contradiction) in found.items()}


_Found = tuple[NicFeature | None, str, str | None]


def _nic(node: SlurmNode, switch: str | None, site_features: Mapping[str, str] | None) -> _Found:
    by_feature = nics_of_features(node.features, site_features)
    by_gres = _of_gres(node.gres, site_features)
    fast = [match for match in by_feature if match.family != ETHERNET]
    if len(fast) > 1:
        families = " and ".join(match.family for match in fast)
        return fast[0], _feature_source(node, fast[0], site_features), f"its features name {families} NICs at once"
    if fast:
        match = fast[0]
        contradiction = None
        if by_gres and by_gres[0].family not in (match.family, ETHERNET):
            contradiction = f"its features say {match.family}, its resource {by_gres[1]} {by_gres[0].family}"
        elif match.kind is None and by_gres and by_gres[0].family == match.family:
            match = NicFeature(match.family, by_gres[0].kind)
        return match, _feature_source(node, fast[0], site_features), contradiction
    if by_gres:
        return by_gres[0], f"gres {by_gres[1]}", None
    if by_feature:
        return by_feature[0], _feature_source(node, by_feature[0], site_features), None
    return _of_names(node, switch, site_features)


def _feature_source(node: SlurmNode, match: NicFeature, site_features: Mapping[str, str] | None) -> str:
    named = next(feature for feature in node.features if nic_of_feature(feature, site_features) == match)
    return f"feature {named}"


def _of_gres(gres: Iterable[Gres], site_features: Mapping[str, str] | None) -> tuple[NicFeature, str] | None:
    """Return the NIC that a resource such as `nic:hdr200` or `ib` names."""
    for entry in gres:
        if entry.name.casefold() in _NIC_RESOURCES:
            for word in (entry.type, entry.name):
                match = nic_of_feature(word, site_features) if word else None
                if match:
                    return match, f"{entry.name}:{entry.type}" if entry.type else entry.name
    return None


def _of_names(node: SlurmNode, switch: str | None, site_features: Mapping[str, str] | None) -> _Found:
    """Fall back to what a switch or all partitions are called; partitions that disagree tell nothing."""
    match = nic_of_feature(switch, site_features) if switch else None
    if match:
        return match, f"switch {switch}", None
    named = {partition: match for partition in node.partitions
             if (match := nic_of_feature(partition, site_features)) is not None}
    if len({match.family for match in named.values()}) == 1:
        partition, match = next(iter(named.items()))
        return match, f"partition {partition}", None
    return None, "nothing", None


def _fabrics(found: Mapping[str, _Found], topology: Topology | None) -> dict[str, str]:
    """Return the fabric of each node whose NIC is known.

    A fabric is named after the family, and where several parts of the network have NICs of that family, or of several
    kinds that do not mix (`ib_hdr` and `ib_qdr`), after the part or the kind as well.
    """
    fabrics = {}
    for family in dict.fromkeys(match.family for match, _, _ in found.values() if match):
        members = {name: match for name, (match, _, _) in found.items() if match and match.family == family}
        others = frozenset(name for name, (match, _, _) in found.items()
                           if match and match.family not in (family, ETHERNET))
        parts = _parts(members, others, topology)
        kinds = {match.kind for match in members.values() if match.kind}
        for name, match in members.items():
            part = parts.get(name)
            fabric = family
            if len(set(parts.values())) > 1:
                fabric += f"-{part}"
            if len(kinds) > 1 and family != ETHERNET and match.kind:
                fabric += f"-{match.kind}"
            fabrics[name] = fabric
    return fabrics


def _parts(members: Iterable[str], others: frozenset[str], topology: Topology | None) -> dict[str, str]:
    """Return the part of the network that each node is in: the highest switch below which no other fast NIC hangs.

    A switch that joins unlike NICs joins them by Ethernet, so what hangs on two of its ports may be two fabrics.
    """
    if topology is None or topology.kind != "tree":
        return dict.fromkeys(members, "")
    below = _nodes_below(topology)
    parts = {}
    for name in members:
        pure = [switch for switch, nodes in below.items() if name in nodes and not nodes & others]
        parts[name] = max(pure, key=lambda switch: len(below[switch])) if pure else ""
    return parts


def _nodes_below(topology: Topology) -> dict[str, frozenset[str]]:
    """Return all nodes below each switch, whether it lists them itself or through its switches."""
    switches = {switch.name: switch for switch in topology.switches}

    def below(name: str, above: tuple[str, ...] = ()) -> frozenset[str]:
        switch = switches.get(name)
        if switch is None or name in above:
            return frozenset()
        return frozenset(switch.nodes).union(*(below(child, (*above, name)) for child in switch.children))

    return {name: below(name) for name in switches}
