"""Links as a probe measured them: the file that it writes and that `cluster.measured` names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holmes_hpc.cluster.nics import FAMILIES
from holmes_hpc.cluster.records import (
    ABOVE_ZERO,
    FROM_ZERO,
    MAYBE_ABOVE_ZERO,
    MAYBE_COUNT,
    PAIR,
    RecordFile,
    one_of,
)
from holmes_hpc.foreign import read_object
from holmes_hpc.paths import at_home

FORMAT_VERSION = 1
INSIDE_NODES = "local"
"""The network of a link inside a node, which names labels in place of fabrics."""

_FULL_SHARE = 0.8
"""Pairs of nodes that together move less than this share of what they move one by one share something."""

_MOST_LETTERS = 60
"""So much is told of what a file says of itself."""

_FILE = RecordFile(
    "cluster.measured", "file of `holmes probe`", FORMAT_VERSION, "links",
    {"network": one_of((INSIDE_NODES, *FAMILIES)), "between": PAIR, "nodes": PAIR, "bandwidth_gbps": ABOVE_ZERO,
     "latency_us": FROM_ZERO, "pairs": MAYBE_COUNT, "together_gbps": MAYBE_ABOVE_ZERO},
    "measure by `holmes probe`, or leave it out")


@dataclass(frozen=True)
class MeasuredLink:
    """One class of node pairs: a network between two fabrics, or inside one (`local`: inside a node of a label).

    `bandwidth_gbps` (10^9 bit/s in one direction) and `latency_us` (one way) are those of one pair alone, named by
    `nodes`; `together_gbps` is the sum over `pairs` disjoint pairs at once.
    """

    network: str
    between: tuple[str, str]
    nodes: tuple[str, str]
    bandwidth_gbps: float
    latency_us: float
    pairs: int = 1
    together_gbps: float | None = None

    @property
    def trunk_gbps(self) -> float | None:
        """What all nodes share on this link; None where pairs do not hinder each other, or only one was tried."""
        if self.together_gbps is None or self.together_gbps > _FULL_SHARE * self.pairs * self.bandwidth_gbps:
            return None
        return self.together_gbps


def to_json(links: Sequence[MeasuredLink], **further: Any) -> dict[str, Any]:
    """Return the content of the file; `further` are facts for people, such as when and with what it was measured."""
    return {"format": FORMAT_VERSION, **further, "links": [dataclasses.asdict(link) for link in links]}


def read_measured(path: str | None) -> tuple[MeasuredLink, ...]:
    """Return the links of `cluster.measured`; none where nothing is named. Raises ConfigurationError."""
    if path is None:
        return ()
    return tuple(MeasuredLink(**{**link, "between": tuple(link["between"]), "nodes": tuple(link["nodes"])})
                 for link in _FILE.read(path))


def measured_where(path: str | None) -> str:
    """Return in words where and by what the links of a file were measured, as far as it says so."""
    said = read_object(at_home(path, "cluster.measured")) if path is not None else None
    if not said:
        return ""
    cluster, time, backend, emulated = (said.get(name) for name in ("cluster", "time", "backend", "emulated"))
    parts = [f"on {cluster[:_MOST_LETTERS]}"] if isinstance(cluster, str) else []
    parts += [f"by {backend[:_MOST_LETTERS]}"] if isinstance(backend, str) else []
    parts += [f"at {time[:_MOST_LETTERS]}"] if isinstance(time, str) else []
    parts += ["emulated, so they are not the cluster's own"] if emulated is True else (
        ["not emulated"] if emulated is False else [])
    return "measured " + ", ".join(parts) if parts else "its file does not say where they were measured"


def links_in_words(links: Sequence[MeasuredLink]) -> str:
    """Return which links these are: `ib inside a, ethernet between a and b`."""
    return ", ".join(f"{link.network} " + (f"inside {link.between[0]}" if len(set(link.between)) == 1
                                           else f"between {' and '.join(link.between)}") for link in links)


def find_link(links: Sequence[MeasuredLink], network: str, end_a: str, end_b: str) -> MeasuredLink | None:
    """Return what was measured of a network between two fabrics (`local`: labels), in either order."""
    return next((link for link in links if link.network == network and sorted(link.between) == sorted((end_a, end_b))),
                None)
