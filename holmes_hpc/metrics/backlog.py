"""How long bytes wait in this node's NICs to be sent: what tells a slow NIC from one that has little to do."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from holmes_hpc.cluster.link_state import address_of
from holmes_hpc.metrics.port_waits import PortWaits
from holmes_hpc.troubles import Troubles

SAMPLE_SECONDS = 0.5
_CONNECTIONS = Path("/proc/thread-self/net/tcp")
"""Not /proc/self: a thread may stand in another namespace than the main thread."""


def unsent_bytes(table: str) -> dict[str, int]:
    """Return the bytes that wait to be sent or to be confirmed, by the sender's address; `table` is /proc/net/tcp."""
    found: dict[str, int] = {}
    for line in table.splitlines()[1:]:
        words = line.split()
        address = socket.inet_ntoa(struct.pack("=I", int(words[1].partition(":")[0], 16)))
        found[address] = found.get(address, 0) + int(words[4].partition(":")[0], 16)
    return found


class Backlog:
    """Looks at the queues of some interfaces now and then, on a thread of its own once it is started.

    Queues are those of TCP; what an adapter sends by itself (RDMA) has none there, and `adapters` say whether data
    waits in it, for the last of the interfaces.
    """

    def __init__(self, interfaces: tuple[str | None, ...],
                 read: Callable[[], Mapping[str, int]] = lambda: unsent_bytes(_CONNECTIONS.read_text()),
                 adapters: PortWaits | None = None) -> None:
        self._interfaces, self._adapters, self._read = interfaces, adapters, read
        self._lock = threading.Lock()
        self._busy_seconds = [0.0] * len(interfaces)

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="backlog", daemon=True).start()

    def look(self, seconds: float) -> None:
        """Look once, for the time since the last look."""
        try:
            queues = self._read()
        except (OSError, ValueError, IndexError):
            queues = {}
        waits = self._adapters is not None and self._adapters.wait()
        addresses = [None if name is None else address_of(name) for name in self._interfaces]
        with self._lock:
            for index, address in enumerate(addresses):
                if address is not None and queues.get(address, 0) > 0:
                    self._busy_seconds[index] += seconds
            if waits:
                self._busy_seconds[-1] += seconds

    def busy_since_last(self) -> list[float]:
        """Return for how long bytes waited in each interface since the last call."""
        with self._lock:
            busy, self._busy_seconds = self._busy_seconds, [0.0] * len(self._interfaces)
        return busy

    def _run(self) -> None:
        before = time.monotonic()
        troubles = Troubles("looking at the queues of the NICs")
        while True:
            time.sleep(SAMPLE_SECONDS)
            now = time.monotonic()
            with troubles.said():
                self.look(now - before)
            before = now
