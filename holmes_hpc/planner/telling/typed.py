"""How a changed cluster is asked for: overrides that can be typed as they are printed."""

from __future__ import annotations

from collections.abc import Iterator

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.cluster import FabricLink
from holmes_hpc.cluster.nics import ETHERNET
from holmes_hpc.config.fields import GBPS, MOST_NICS

_KEYS = {"nics": "nics_per_node", "ethernet_gbps": "ethernet_gbps"}


def overrides_for(before: ClusterDescription, after: ClusterDescription) -> str | None:
    """Return the overrides that make one cluster of the other, which has other NICs, Ethernet or links.

    None where there are none: the short form of a cluster file knows no `ethernet_gbps`, files of measured links go
    before what is set, and settings have bounds.
    """
    if before.measured != after.measured:
        return None
    words: list[str] = []
    for key, value in _changed(before, after):
        if not _is_allowed(key, value):
            return None
        if before.is_short and key.endswith("ethernet_gbps"):
            if any(node.network != ETHERNET for node in after.nodes):
                return None
            continue  # it follows from the number of NICs
        words.append(f"{key}={value:g}")
    if before.links != after.links:
        words.append(f"'cluster.links=[{','.join(map(_link, after.links))}]'")
    return " ".join(words) or None


def _changed(before: ClusterDescription, after: ClusterDescription) -> Iterator[tuple[str, float]]:
    labels = {node.label: node for node in before.nodes}
    for label, node in {node.label: node for node in after.nodes}.items():
        place = "cluster" if before.is_short else f"cluster.partitions.{label}"
        for name, key in _KEYS.items():
            if getattr(node, name) != getattr(labels[label], name):
                yield f"{place}.{key}", getattr(node, name)


def _is_allowed(key: str, value: float) -> bool:
    most = MOST_NICS if key.endswith("nics_per_node") else GBPS["maximum"]
    return value <= most and float(f"{value:g}") == value


def _link(link: FabricLink) -> str:
    key, rate = (("bandwidth_gbps", link.bandwidth_gbps) if link.shared_gbps is None
                 else ("shared_gbps", link.shared_gbps))
    rates = "" if rate is None else f",{key}:{rate:g}"
    return f"{{between:[{','.join(link.between)}]{rates},latency_us:{link.latency_us:g}}}"
