"""Byte counters of the kernel for the caller's own network namespace."""

from __future__ import annotations

from pathlib import Path

_COUNTERS = Path("/proc/thread-self/net/dev")
"""Not /proc/self: a thread may stand in another namespace than the main thread."""
_SENT_COLUMN = 8
HEADERS_BYTES = 14 + 20 + 32
"""Of every packet of TCP over IPv4 on Ethernet, time stamps included."""


def sent_bytes(*, headers: bool = True) -> dict[str, int]:
    """Return the bytes that each interface of the caller's network namespace has sent; without headers, TCP's contents.
    """
    counts = {}
    for line in _COUNTERS.read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        counted = numbers.split()
        total, packets = int(counted[_SENT_COLUMN]), int(counted[_SENT_COLUMN + 1])
        counts[name.strip()] = total if headers else total - packets * HEADERS_BYTES
    return counts
