"""Where on its machine a GPU sits: the CPUs and the network adapters that are near it, as the kernel tells in /sys.

`local_cpulist` of a PCI device holds the CPUs of its NUMA node in the kernel's list form, `0-15,64-79`; `numa_node` is
-1 where the firmware says nothing. (Linux, Documentation/ABI/testing/sysfs-bus-pci.) The path that a device's link
leads to names each bridge on the way, so that two devices behind one switch share the beginning of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

_DEVICES = Path("/sys/bus/pci/devices")
_ADAPTERS = Path("/sys/class/infiniband")
_MOST_CPUS = 2**16
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class Nearness(IntEnum):
    """How near two devices are; the nearer, the larger."""

    UNKNOWN = 0
    OTHER_NODE = 1
    """On another NUMA node: what they exchange passes the link between the processors."""
    SAME_NODE = 2
    SAME_SWITCH = 3
    """Behind one bridge or switch below the root: what they exchange does not pass a processor."""

    @property
    def words(self) -> str:
        """Say it."""
        return ("at an unknown place", "on another NUMA node", "on the same NUMA node", "behind the same switch")[self]


@dataclass(frozen=True)
class Place:
    """Where a device sits: its NUMA node (None where nothing says so), the CPUs near it, the bridges above it."""

    numa_node: int | None
    cpus: frozenset[int]
    bridges: tuple[str, ...]

    def nearness(self, other: Place) -> Nearness:
        """Return how near another device of this machine is."""
        # The first name is the root; each further one that both share is a bridge below it.
        if self.bridges[:2] == other.bridges[:2] and len(self.bridges) > 1:
            return Nearness.SAME_SWITCH
        if self.numa_node is None or other.numa_node is None:
            return Nearness.UNKNOWN
        return Nearness.SAME_NODE if self.numa_node == other.numa_node else Nearness.OTHER_NODE


def device_place(address: str, devices: Path = _DEVICES) -> Place | None:
    """Return where the device with this address on the bus (`0000:3b:00.0`) sits, None where nothing says so."""
    name = address.lower()
    return _place(devices / name) if _ADDRESS.fullmatch(name) else None


def adapter_places(names: Iterable[str] = (), adapters: Path = _ADAPTERS) -> dict[str, Place]:
    """Return where each RDMA adapter sits, by its name; all of the machine's where no names are given."""
    wanted = set(names)
    found = sorted(adapters.iterdir()) if adapters.is_dir() else []
    places = {path.name: _place(path / "device") for path in found if not wanted or path.name in wanted}
    return {name: place for name, place in places.items() if place is not None}


def read_cpu_list(text: str) -> frozenset[int]:
    """Return the numbers in a list of the kernel (`0-15,64-79`), empty where it is none."""
    cpus: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, dash, last = part.partition("-")
        if not (_is_cpu(first) and (_is_cpu(last) if dash else True)):
            return frozenset()
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _is_cpu(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < _MOST_CPUS


def _place(path: Path) -> Place | None:
    try:
        real = path.resolve(strict=True)
        cpus = read_cpu_list((real / "local_cpulist").read_text(errors="replace"))
        node = (real / "numa_node").read_text(errors="replace").strip()
    except OSError:
        return None
    above = [part for part in real.parts[:-1] if part.startswith("pci") or _ADDRESS.fullmatch(part)]
    return Place(int(node) if _is_cpu(node) else None, cpus, tuple(above))
