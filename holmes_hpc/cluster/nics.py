"""The catalogue of NICs, their families, and what sites call them in Slurm features.

`bandwidth_gbps` is the data rate of one NIC in one direction after line coding, 10^9 bit/s. `latency_us` is
the usual one-way time of a small message between two nodes behind one switch, as public micro-benchmarks show
it: for RDMA the hardware's, for Ethernet that of TCP through the kernel.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from holmes_hpc import registry
from holmes_hpc.cluster.lookup import find, unknown
from holmes_hpc.errors import ConfigurationError

ETHERNET = "ethernet"
ETHERNET_LATENCY_US = 30.0
DEFAULT_ETHERNET_GBPS = 25.0
"""What a node has beside its fast NICs, where its cluster file does not say."""
_ETHERNET_RATES = (1, 10, 25, 40, 50, 100, 200, 400)

# Family of a NIC to the usual name of its IP interface.
DEFAULT_INTERFACES: Mapping[str, str] = {"ib": "ib0", "roce": "roce0", "efa": "efa0", "slingshot": "hsn0",
                                         "opa": "opa0", ETHERNET: "eth0"}
FAMILIES: tuple[str, ...] = tuple(DEFAULT_INTERFACES)


@dataclass(frozen=True)
class Nic:
    """One NIC kind. Only NICs of the same family can talk to each other over their own network."""

    name: str
    family: str
    bandwidth_gbps: float
    latency_us: float

    @property
    def rdma(self) -> bool:
        """Whether the NIC writes into the other node's memory past the kernel."""
        return self.family != ETHERNET


_CATALOGUE = (
    # InfiniBand, four lanes: InfiniBand Trade Association roadmap; NVIDIA ConnectX-3 to ConnectX-8 product
    # briefs.
    Nic("qdr40", "ib", 32, 1.6),      # 40 Gb/s on the wire, 8 bits in 10
    Nic("fdr56", "ib", 54.5, 1.3),    # 56.25 Gb/s on the wire, 64 bits in 66
    Nic("edr100", "ib", 100, 1.1),
    Nic("hdr100", "ib", 100, 1.1),    # two lanes of HDR
    Nic("hdr200", "ib", 200, 1.1),
    Nic("ndr200", "ib", 200, 1.1),    # two lanes of NDR
    Nic("ndr400", "ib", 400, 1.1),
    Nic("xdr800", "ib", 800, 1.1),
    # RDMA over converged Ethernet: NVIDIA ConnectX-4 to ConnectX-7 product briefs.
    Nic("roce25", "roce", 25, 2.5),
    Nic("roce50", "roce", 50, 2.5),
    Nic("roce100", "roce", 100, 2.0),
    Nic("roce200", "roce", 200, 2.0),
    Nic("roce400", "roce", 400, 2.0),
    # Amazon EC2 user guide: the sum of a node's adapters (p3dn and g5, p4d, p5), so nics_per_node stays 1.
    Nic("efa100", "efa", 100, 16),
    Nic("efa400", "efa", 400, 16),
    Nic("efa3200", "efa", 3200, 16),
    # HPE Slingshot-11 and Intel (Cornelis) Omni-Path 100 product briefs.
    Nic("slingshot200", "slingshot", 200, 2.0),
    Nic("opa100", "opa", 100, 1.1),
    *(Nic(f"eth{rate}", ETHERNET, rate, ETHERNET_LATENCY_US) for rate in _ETHERNET_RATES),
)

_BUILTIN = {kind.name: kind for kind in _CATALOGUE}
NICS: Mapping[str, Nic] = MappingProxyType(ChainMap(cast(dict[str, Nic], registry.NICS), _BUILTIN))
"""All kinds, those that plug-ins added last."""

_FAMILY_WORDS = {"ib": "ib", "infiniband": "ib", "roce": "roce", "rocev1": "roce", "rocev2": "roce",
                 "efa": "efa", "slingshot": "slingshot", "slingshot11": "slingshot", "ss11": "slingshot",
                 "cxi": "slingshot", "opa": "opa", "omnipath": "opa", "eth": ETHERNET, "ethernet": ETHERNET}
# A bare generation is the full port; sites that have the half port write hdr100 or ndr200.
_GENERATION_WORDS = {"qdr": "qdr40", "fdr": "fdr56", "edr": "edr100", "hdr": "hdr200", "ndr": "ndr400",
                     "xdr": "xdr800", **{f"{rate}gbe": f"eth{rate}" for rate in _ETHERNET_RATES}}
_TOPIC_WORDS = {"net", "network", "nic", "interconnect", "fabric", "hca"}


@dataclass(frozen=True)
class NicFeature:
    """What a Slurm feature says of a node's NIC: the family, and the kind where the feature is that exact."""

    family: str
    kind: str | None = None


def nic(name: str, path: str = "nic") -> Nic:
    """Return the NIC kind of this name.

    `path` is the setting that named it. Raises ConfigurationError with the near match and all names.
    """
    return find(NICS, name, "NIC kind", path)


def is_builtin(name: str) -> bool:
    """Return whether a NIC kind of this name ships with the package."""
    return name in _BUILTIN


def check_family(family: str, path: str) -> None:
    """Raise ConfigurationError for an unknown family; `path` names who has it."""
    if family not in FAMILIES:
        raise ConfigurationError(unknown(family, FAMILIES, "NIC family", path))


def nic_of_feature(feature: str, site_features: Mapping[str, str] | None = None) -> NicFeature | None:
    """Return what one Slurm feature (`ib`, `IB:HDR`, `ib_hdr`, `EDR`, `efa-c5n`, ...) says of the NIC.

    Case does not count. `site_features` (`cluster.features`) go before the built-in table. None: the feature
    is not about NICs. Raises ConfigurationError where a site's value is neither a NIC kind nor a family.
    """
    for name, value in (site_features or {}).items():
        if name.casefold() == feature.casefold():
            return _named(value, f"cluster.features.{name}")
    text = feature.casefold().replace("omni-path", "omnipath")
    words = [word for word in re.split(r"[^a-z0-9]+", text) if word]
    if words and words[0] in _TOPIC_WORDS:
        words = words[1:]
    kinds = [kind for kind in map(_kind_of_word, words) if kind]
    family = _FAMILY_WORDS.get(words[0]) if words else None
    if family:
        # `ib_hdr`, but also `efa-c5n`: further words may name a kind of this family or be the site's own.
        return NicFeature(family, next((kind.name for kind in kinds if kind.family == family), None)
                          or _kind_by_rate(family, words[1:]))
    # Without a family every word must be a kind: `edr`, not `gold-6130-edr-less`.
    return NicFeature(kinds[0].family, kinds[0].name) if len(kinds) == len(words) == 1 else None


def nics_of_features(features: Iterable[str], site_features: Mapping[str, str] | None = None
                     ) -> tuple[NicFeature, ...]:
    """Return the NICs that a node's features name: one for each family, the most exact, Ethernet last."""
    found: dict[str, NicFeature] = {}
    for feature in features:
        match = nic_of_feature(feature, site_features)
        if match and (match.family not in found or found[match.family].kind is None):
            found[match.family] = match
    return tuple(sorted(found.values(), key=lambda match: match.family == ETHERNET))


def check_features(site_features: Mapping[str, str]) -> None:
    """Raise ConfigurationError where a value of `cluster.features` is neither a NIC kind nor a family."""
    for name, value in site_features.items():
        _named(value, f"cluster.features.{name}")


def _named(value: str, path: str) -> NicFeature:
    if value in NICS:
        return NicFeature(NICS[value].family, value)
    if value in FAMILIES:
        return NicFeature(value)
    raise ConfigurationError(unknown(value, (*FAMILIES, *NICS), "NIC kind or family", path))


def _kind_of_word(word: str) -> Nic | None:
    return NICS.get(_GENERATION_WORDS.get(word, word))


def _kind_by_rate(family: str, words: list[str]) -> str | None:
    """Return `roce100` for the words `roce`, `100`, and for `100g`, `100gb`, `100gbps`."""
    for word in words:
        match = re.fullmatch(r"([0-9]+)(?:g|gb|gbps|gbit|gbe)?", word)
        if match and f"{family.replace(ETHERNET, 'eth')}{match[1]}" in NICS:
            return f"{family.replace(ETHERNET, 'eth')}{match[1]}"
    return None
