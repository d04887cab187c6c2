"""The ports of a node's RDMA adapters while a run uses them: what the kernel counts and says in /sys/class/infiniband.

What an adapter sends by itself passes no interface, so that the counters of interfaces do not see it. `port_xmit_data`
counts units of four bytes, `port_xmit_wait` the ticks in which a port had data and sent none (InfiniBand Architecture
Specification, PortCounters). How long a tick is differs from one adapter to another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holmes_hpc.cluster.link_state import UP

_FOLDER = Path("/sys/class/infiniband")
_UNIT_BYTES = 4
_ACTIVE = "ACTIVE"


@dataclass(frozen=True)
class PortCount:
    """Bytes that a port has sent, and ticks in which it waited with data; None where it does not count those."""

    sent_bytes: int
    waited_ticks: int | None


class Ports:
    """The active ports of some adapters (`names`; all where there are none) when it was made.

    `folder` lets tests lay out adapters of their own.
    """

    def __init__(self, names: Iterable[str] = (), folder: Path = _FOLDER) -> None:
        wanted = set(names)
        found = sorted(folder.glob("*/ports/*")) if folder.is_dir() else []
        self._paths = {f"{path.parent.parent.name}/{path.name}": path for path in found
                       if (not wanted or path.parent.parent.name in wanted) and _state(path) == _ACTIVE}
        self._first_rates = {name: _text(path / "rate") for name, path in self._paths.items()}

    def __bool__(self) -> bool:
        """Say whether there is any."""
        return bool(self._paths)

    def counts(self) -> dict[str, PortCount]:
        """Return the counters of the ports that have some, by `adapter/port`."""
        found = {}
        for name, path in self._paths.items():
            units, ticks = _number(path / "counters/port_xmit_data"), _number(path / "counters/port_xmit_wait")
            sent = _number(path / "hw_counters/tx_bytes") if units is None else units * _UNIT_BYTES
            if sent is not None:
                found[name] = PortCount(sent, ticks)
        return found

    def states(self) -> dict[str, str]:
        """Return in words how each port's link is, as `link_states` does of interfaces."""
        return {name: self._describe(name, path) for name, path in self._paths.items()}

    def _describe(self, name: str, path: Path) -> str:
        state, rate, first = _state(path), _text(path / "rate"), self._first_rates[name]
        if state != _ACTIVE:
            return f"down ({state})" if state else "missing"
        if 0 < _gbps(rate) < _gbps(first):
            return f"{UP}, but at {rate}, which was {first} at the start"
        return f"{UP}, {rate}"


def _state(path: Path) -> str:
    return _text(path / "state").rpartition(":")[2].strip()  # "4: ACTIVE"


def _gbps(rate: str) -> float:
    """Return the number that a rate such as `200 Gb/sec (4X HDR)` begins with, 0 where it begins with none."""
    try:
        return float(rate.split()[0])
    except (IndexError, ValueError):
        return 0.0


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()[:80]
    except OSError:
        return ""
