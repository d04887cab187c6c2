"""Bytes that this node sent and memory that this process uses."""

from __future__ import annotations

from pathlib import Path

import torch

from holmes_hpc.cluster.adapters import Ports
from holmes_hpc.emulation.counters import sent_bytes
from holmes_hpc.metrics.backlog import Backlog
from holmes_hpc.metrics.port_waits import PortWaits
from holmes_hpc.metrics.step import NOT_MEASURED


class Usage:
    """Reads the kernel's counters; `ethernet` and `fabric` are interfaces of this node, None where there is none.

    `ports` are those of the adapters that stand for the fabric's interface where groups use them instead. Only the rank
    that counts for its node is given interfaces, so that bytes are counted once, with their `headers` or without.
    """

    def __init__(self, ethernet: str | None, fabric: str | None, ports: Ports | None = None, *,
                 headers: bool = True) -> None:
        self._headers = headers
        self._adapters = PortWaits(ports) if ports else None
        self._interfaces = (ethernet, None if ports else fabric)
        self._before = self._read()
        self._backlog = Backlog(self._interfaces, adapters=self._adapters)
        if self._interfaces != (None, None) or ports:
            self._backlog.start()

    def sent_since_last(self) -> tuple[float, float]:
        """Return the bytes sent by Ethernet and by the fabric NIC since the last call."""
        before, self._before = self._before, self._read()
        ethernet, fabric = (
            NOT_MEASURED if now is None or then is None else float(now - then)
            for now, then in zip(self._before, before, strict=True)
        )
        return ethernet, fabric

    def busy_since_last(self) -> tuple[float, float]:
        """Return for how long bytes waited in the Ethernet and the fabric NIC since the last call."""
        ethernet, fabric = self._backlog.busy_since_last()
        return ethernet, fabric

    def _read(self) -> list[int | None]:
        counters = {} if self._interfaces == (None, None) else sent_bytes(headers=self._headers)
        ethernet, fabric = (None if name is None else counters.get(name) for name in self._interfaces)
        return [ethernet, fabric if self._adapters is None else self._adapters.sent_bytes()]


def memory_gib() -> float:
    """Return the most memory that this rank used: on a GPU what torch reserved, else the resident size (GiB)."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_reserved() / 2**30
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**20
    return 0.0
