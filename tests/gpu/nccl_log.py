"""What NCCL's own log (`NCCL_DEBUG=INFO`) says of the networks that its communicators use."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_NETWORK = re.compile(r"NCCL INFO Using network (\S+)")
_CHANNEL = re.compile(r"NCCL INFO Channel \S+ : \S+ -> \S+ .*?via (NET/[A-Za-z_]+|P2P|SHM)")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")


def networks(lines: Iterable[str]) -> Counter[str]:
    """Count the communicators by the network that they say they use."""
    return Counter(found.group(1) for line in lines if (found := _NETWORK.search(line)))


def transports(lines: Iterable[str]) -> Counter[str]:
    """Count the channels by what carries them: `NET/IB`, `NET/Socket`, `P2P`, `SHM`."""
    return Counter(found.group(1) for line in lines if (found := _CHANNEL.search(line)))


def version(lines: Iterable[str]) -> tuple[int, ...] | None:
    """Return NCCL's version, None where the log does not say it."""
    for line in lines:
        if found := _VERSION.search(line):
            return tuple(map(int, found.group(1).split(".")))
    return None
