"""What a node really has: interfaces with their addresses, InfiniBand and RoCE ports, GPUs. Read from /sys and /proc.

No tool is called, so it works in a container; `root` lets tests lay out a node of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holmes_hpc.cluster.host import count_gpus
from holmes_hpc.cluster.link_state import address_of


@dataclass(frozen=True)
class Port:
    """A port of an adapter: `link_layer` is `InfiniBand` or `Ethernet` (RoCE), `state` `ACTIVE` or not."""

    adapter: str
    port: int
    link_layer: str
    state: str
    rate_gbps: float

    @property
    def family(self) -> str:
        """The network family of the port."""
        return "ib" if self.link_layer == "InfiniBand" else "roce"


@dataclass(frozen=True)
class NodeReport:
    """What one node has.

    `interfaces` maps those that are up to their IPv4 address, None where there is none; `down` names the others.
    `speeds_gbps` holds the rates, 10^9 bit/s, of those that tell one (virtual ones invent theirs).
    """

    node: str
    interfaces: dict[str, str | None]
    ports: tuple[Port, ...]
    gpus: int
    down: tuple[str, ...] = ()
    speeds_gbps: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> NodeReport:
        """Read a report that `to_json` made."""
        return cls(data["node"], dict(data["interfaces"]), tuple(Port(**port) for port in data["ports"]), data["gpus"],
                   tuple(data["down"]), dict(data["speeds_gbps"]))

    def active_adapters(self, family: str) -> list[str]:
        """Return the adapters with an active port of a family, in name order."""
        return sorted({port.adapter for port in self.ports if port.family == family and port.state == "ACTIVE"})


def read_node(name: str, root: Path = Path("/"), address: Callable[[str], str | None] = address_of) -> NodeReport:
    """Return the report of this node; `root` and `address` stand for another one's files and addresses."""
    folder = root / "sys/class/net"
    found = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    up = [path for path in found if _read(path / "operstate") in ("up", "unknown")]
    speeds = {path.name: int(_read(path / "speed") or 0) / 1000 for path in up
              if _read(path / "speed").isdigit()}  # -1, or no answer at all, where there is none
    return NodeReport(name, {path.name: address(path.name) for path in up}, tuple(_ports(root)), count_gpus(root),
                      tuple(path.name for path in found if path not in up), speeds)


def _ports(root: Path) -> list[Port]:
    ports = []
    folder = root / "sys/class/infiniband"
    for adapter in sorted(folder.iterdir()) if folder.is_dir() else []:
        for port in sorted((adapter / "ports").iterdir()) if (adapter / "ports").is_dir() else []:
            # "4: ACTIVE" and "200 Gb/sec (4X HDR)"
            state = _read(port / "state").rpartition(":")[2].strip()
            rate = _read(port / "rate").split()
            ports.append(Port(adapter.name, int(port.name), _read(port / "link_layer"), state,
                              float(rate[0]) if rate else 0.0))
    return ports


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
