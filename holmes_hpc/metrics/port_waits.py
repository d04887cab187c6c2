"""Whether data waits in RDMA adapters more than it usually does: what tells a slow one from one with little to do.

A port that sends at full rate waits as well, now and then, and how long a tick of its counter is nobody says. So ticks
for each byte are held against those of the same port at the beginning of the run.
"""

from __future__ import annotations

from statistics import median

from holmes_hpc.cluster.adapters import PortCount, Ports

FIRST_SAMPLES = 20
"""So many samples with data in them say what is usual."""
TIMES_USUAL = 4.0
"""More ticks for each byte than so many times what is usual are a wait."""


class PortWaits:
    """Looks at ports now and then; `wait` says whether data waited in one of them since the last look."""

    def __init__(self, ports: Ports) -> None:
        self._ports, self._before = ports, ports.counts()
        self._first: dict[str, list[float]] = {}

    def sent_bytes(self) -> int | None:
        """Return the bytes that all ports have sent, None where none counts them."""
        counts = self._ports.counts()
        return sum(each.sent_bytes for each in counts.values()) if counts else None

    def wait(self) -> bool:
        """Take a sample of all ports, and say whether data waited in one."""
        before, self._before = self._before, self._ports.counts()
        waiting = [name for name, now in self._before.items()
                   if name in before and self._waits(name, before[name], now)]
        return bool(waiting)

    def _waits(self, name: str, before: PortCount, now: PortCount) -> bool:
        sent = now.sent_bytes - before.sent_bytes
        if now.waited_ticks is None or before.waited_ticks is None:
            return False
        ticks = now.waited_ticks - before.waited_ticks
        if sent < 0 or ticks < 0 or not sent + ticks:  # set back, or idle
            return False
        first = self._first.setdefault(name, [])
        if len(first) < FIRST_SAMPLES:
            if sent:
                first.append(ticks / sent)
            return False
        return ticks > TIMES_USUAL * median(first) * sent
