"""Reading `config.cluster`: the short form made full, every name checked, nodes put in rank order."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from holmes_hpc.cluster.calibrated import read_calibrated
from holmes_hpc.cluster.cluster import ClusterDescription, FabricLink, Node
from holmes_hpc.cluster.disturbances import read_disturbances
from holmes_hpc.cluster.gpus import check_gpu
from holmes_hpc.cluster.lookup import unknown
from holmes_hpc.cluster.measured import links_in_words, measured_where, read_measured
from holmes_hpc.cluster.nics import (
    DEFAULT_ETHERNET_GBPS,
    ETHERNET,
    ETHERNET_LATENCY_US,
    FAMILIES,
    check_features,
    nic,
)
from holmes_hpc.cluster.profiled import read_profiled
from holmes_hpc.config.cluster_schema import Partition
from holmes_hpc.errors import ConfigurationError

# A label is half of a slot's name (`ib/0`) and of a host name in emulation (`ib-0`).
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_SHORT_KEYS = ("nodes", "gpus_per_node", "gpu", "nic", "nics_per_node")
_ORDERS = ("grouped", "alternate")


def read_cluster(config: Any) -> ClusterDescription:
    """Return the cluster that `config.cluster` describes.

    Raises ConfigurationError for no or doubled descriptions, unknown GPU, NIC, fabric and family names, a
    fabric of unlike NIC families, and links that contradict themselves.
    """
    partitions = _partitions(config)
    nodes_by_label = {label: _nodes(label, *described) for label, described in partitions.items()}
    _check_fabrics(nodes_by_label)
    check_features(config.features)
    if config.order not in _ORDERS:
        raise ConfigurationError(unknown(config.order, _ORDERS, "order of nodes", "cluster.order"))
    nodes = _in_order(list(nodes_by_label.values()), config.order)
    cluster = ClusterDescription(
        name=_name(config), nodes=nodes, links=_links(config.links, {node.fabric for node in nodes}),
        rates=_rates(config.emulate.rates), compute=str(config.emulate.compute),
        scale=float(config.emulate.scale), order=str(config.order), measured=read_measured(config.measured),
        measured_where=measured_where(config.measured),
        calibrated=read_calibrated(config.calibrated), profiled=read_profiled(config.profiled),
        communicator_gib=float(config.communicator_gib), is_short=not config.partitions)
    _check_measured(cluster, config.measured)
    return dataclasses.replace(cluster, disturbances=read_disturbances(config.emulate.disturbances, cluster))


def _check_measured(cluster: ClusterDescription, path: str | None) -> None:
    """Refuse the file of another cluster, of whose links this one has none; a plan notes what else it does not use."""
    if cluster.measured and not any(map(cluster.has_link, cluster.measured)):
        labels = dict.fromkeys(node.label for node in cluster.nodes)
        raise ConfigurationError(
            f"cluster.measured={path} has no link of this cluster: it has {links_in_words(cluster.measured)}; the "
            f"labels here are {', '.join(labels)}, the fabrics {', '.join(cluster.fabrics)}; name the file of this "
            "cluster, measure it by `holmes probe cluster.measured=null`, or leave it out")


def _name(config: Any) -> str:
    if (OmegaConf.is_config(config) and OmegaConf.is_missing(config, "name")) or config.name == "???":
        raise ConfigurationError("cluster.name is missing; write `name: NAME` in the cluster file")
    return str(config.name)


def _partitions(config: Any) -> dict[str, tuple[Any, str]]:
    """Return each label's partition and the path of its settings; the short form becomes one label."""
    short = {key: getattr(config, key) for key in _SHORT_KEYS if getattr(config, key) is not None}
    if config.partitions and short:
        key = next(iter(short))
        raise ConfigurationError(
            f"cluster.{key} and cluster.partitions exclude each other: cluster.{key} describes one kind of "
            f"node for the whole cluster; set cluster.partitions.<label>.{key}, or leave out "
            "cluster.partitions")
    if config.partitions:
        return {str(label): (partition, f"cluster.partitions.{label}")
                for label, partition in config.partitions.items()}
    if "nodes" not in short:
        raise ConfigurationError(
            "the cluster has no nodes; describe them under cluster.partitions.<label> (nodes, gpus_per_node, "
            "gpu, nic), or give cluster.nodes, gpus_per_node, gpu and nic for one kind of node")
    partition = Partition(**short)
    return {nic(partition.nic, "cluster.nic").family: (partition, "cluster")}


def _nodes(label: str, partition: Any, path: str) -> tuple[Node, ...]:
    if _LABEL.fullmatch(label) is None:
        raise ConfigurationError(f"{path}: the label {label!r} cannot name nodes; "
                                 "use letters, digits, '_', '.' and '-', such as ib or roce-a")
    check_gpu(partition.gpu, f"{path}.gpu")
    kind = nic(partition.nic, f"{path}.nic")
    for key in ("nodes", "gpus_per_node", "nics_per_node"):
        if getattr(partition, key) < 1:
            raise ConfigurationError(f"{path}.{key} is {getattr(partition, key)}; valid: 1 and more"
                                     + (" (leave the label out to run without it)" if key == "nodes" else ""))
    ethernet = _ethernet_gbps(partition, kind.family, kind.bandwidth_gbps, path)
    return tuple(
        Node(slot=f"{label}/{index}", label=label, index=index, fabric=str(partition.fabric or label),
             gpu=partition.gpu, gpus=partition.gpus_per_node, nic=partition.nic, nics=partition.nics_per_node,
             ethernet_gbps=ethernet, hca=partition.hca, gid_index=partition.gid_index,
             interface=partition.interface, fabric_interface=partition.fabric_interface)
        for index in range(partition.nodes))


def _ethernet_gbps(partition: Any, family: str, nic_gbps: float, path: str) -> float:
    """Return the node's Ethernet bandwidth: that of an Ethernet NIC, unless its uplink is slower."""
    given = None if partition.ethernet_gbps is None else float(partition.ethernet_gbps)
    if given is not None and not given > 0:
        raise ConfigurationError(f"{path}.ethernet_gbps is {given}; valid: above 0")
    if family != ETHERNET:
        return DEFAULT_ETHERNET_GBPS if given is None else given
    total = float(nic_gbps * partition.nics_per_node)
    return total if given is None else min(given, total)


def _check_fabrics(nodes_by_label: Mapping[str, tuple[Node, ...]]) -> None:
    """Refuse a fabric whose labels have NICs that cannot talk to each other."""
    first_of: dict[str, Node] = {}
    for nodes in nodes_by_label.values():
        node, first = nodes[0], first_of.setdefault(nodes[0].fabric, nodes[0])
        if node.network != first.network:
            raise ConfigurationError(
                f"the fabric {node.fabric!r} joins {first.label} ({first.nic}, {first.network}) and "
                f"{node.label} ({node.nic}, {node.network}), but these NICs cannot talk to each other; give "
                f"cluster.partitions.{node.label}.fabric another name, or correct its nic")


def _in_order(labels: list[tuple[Node, ...]], order: str) -> tuple[Node, ...]:
    """Put nodes label after label, or one of each label in turn as long as it has nodes left."""
    if order == "grouped":
        return tuple(itertools.chain.from_iterable(labels))
    rounds = itertools.zip_longest(*labels)
    return tuple(node for turn in rounds for node in turn if node is not None)


def _links(links: Any, fabrics: set[str]) -> tuple[FabricLink, ...]:
    read: dict[frozenset[str], FabricLink] = {}
    for number, link in enumerate(links):
        made = _link(link, sorted(fabrics), f"cluster.links[{number}]")
        pair = frozenset(made.between)
        if pair in read:
            raise ConfigurationError(f"cluster.links[{number}] is a second link between "
                                     f"{' and '.join(made.between)}; describe each pair of fabrics once")
        read[pair] = made
    return tuple(read.values())


def _link(link: Any, fabrics: list[str], path: str) -> FabricLink:
    names = [str(name) for name in link.between]
    if len(names) != 2 or names[0] == names[1]:
        raise ConfigurationError(f"{path}.between is {names}; a link joins exactly two different fabrics "
                                 f"of {', '.join(fabrics)}")
    for name in names:
        if name not in fabrics:
            raise ConfigurationError(unknown(name, fabrics, "fabric", f"{path}.between"))
    if link.bandwidth_gbps is not None and link.shared_gbps is not None:
        raise ConfigurationError(
            f"{path}: bandwidth_gbps and shared_gbps exclude each other; give bandwidth_gbps for what each "
            "node has across, or shared_gbps for a trunk that all nodes share")
    for key in ("bandwidth_gbps", "shared_gbps"):
        value = getattr(link, key)
        if value is not None and not value > 0:
            raise ConfigurationError(f"{path}.{key} is {value}; valid: above 0")
    latency = ETHERNET_LATENCY_US if link.latency_us is None else float(link.latency_us)
    return FabricLink((names[0], names[1]), link.bandwidth_gbps, link.shared_gbps, latency)


def _rates(rates: Mapping[str, float]) -> dict[str, float]:
    for family, rate in rates.items():
        if family not in FAMILIES:
            raise ConfigurationError(unknown(family, FAMILIES, "network family", "cluster.emulate.rates"))
        if not rate > 0:
            raise ConfigurationError(f"cluster.emulate.rates.{family} is {rate}; valid: above 0, 10^9 bit/s")
    return {str(family): float(rate) for family, rate in rates.items()}
