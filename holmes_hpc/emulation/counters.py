"""Byte counters of the kernel for the caller's own network namespace."""

from __future__ import annotations

from pathlib import Path

_SENT_COLUMN = 8
_RECEIVED_COLUMN = 0


def sent_bytes() -> dict[str, int]:
    """Return the bytes that each interface of the caller's network namespace has sent, headers included."""
    return _column(_SENT_COLUMN)


def received_bytes() -> dict[str, int]:
    """Return the bytes that each interface of the caller's network namespace has received."""
    return _column(_RECEIVED_COLUMN)


def _column(column: int) -> dict[str, int]:
    counts = {}
    # /proc/thread-self, not /proc/self: a thread may stand in another namespace than the main thread.
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        counts[name.strip()] = int(numbers.split()[column])
    return counts
