"""Packets that arrive later: a relay in user space, since a kernel without netem cannot hold them back.

What a node sends is taken from the switch's end of its link, where `tc` drops the original, and put on the bridge when
its time has come. So it has passed the sender's rate before the wait and passes the receiver's after it. Packets of a
pair of nodes keep their order, so that a delay never looks like a loss. Frames travel with the kernel's header of
offloads: what the sender left whole stays whole.
"""

from __future__ import annotations

import ctypes
import random
import socket
import struct
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from holmes_hpc.emulation.packet_filters import for_socket, taking_to

_ALL_PROTOCOLS = 3
_SOL_PACKET = 263
_PACKET_STATISTICS, _PACKET_VNET_HEADER, _PACKET_IGNORE_OUTGOING = 6, 15, 23
_SO_ATTACH_FILTER, _SO_RECEIVE_BUFFER_FORCE = 26, 33
_BUFFER_BYTES = 64 << 20
_MOST_BYTES = 1 << 17
_HEADER_BYTES = 10
"""`struct virtio_net_hdr`, before each frame."""
_DESTINATION_AT = _HEADER_BYTES + 30


@dataclass(frozen=True)
class Lateness:
    """How much later packets arrive: a constant, and up to `jitter_seconds` anew for every packet."""

    seconds: float
    jitter_seconds: float

    def draw(self) -> float:
        """Return the lateness of one packet."""
        return self.seconds + random.uniform(0.0, self.jitter_seconds)  # noqa: S311 - no secret


@dataclass
class Relay:
    """Holds back what one node sends over one network; `late` says how much by the receiver's address."""

    interface: str
    bridge: str
    late: Mapping[str, Lateness]
    _waiting: dict[bytes, deque[tuple[float, bytes]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_address = {socket.inet_aton(address): late for address, late in self.late.items()}
        self._taken, self._put = _packet_socket(), _packet_socket()
        try:
            self._taken.setsockopt(socket.SOL_SOCKET, _SO_RECEIVE_BUFFER_FORCE, _BUFFER_BYTES)
        except PermissionError:  # only the real root may have more than net.core.rmem_max
            self._taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        _attach(self._taken, list(self.late))
        self._taken.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        self._taken.bind((self.interface, _ALL_PROTOCOLS))
        self._taken.setblocking(False)
        self._put.bind((self.bridge, 0))

    def fileno(self) -> int:
        """Return the descriptor that is readable when packets wait."""
        return self._taken.fileno()

    def take(self, now: float) -> None:
        """Take all packets that are there, each to be put on the bridge in its time."""
        while True:
            try:
                frame = self._taken.recv(_MOST_BYTES)
            except BlockingIOError:
                return
            to = frame[_DESTINATION_AT:_DESTINATION_AT + 4]
            waiting = self._waiting.setdefault(to, deque())
            due = now + self._by_address[to].draw()
            waiting.append((max(due, waiting[-1][0]) if waiting else due, frame))

    def put(self, now: float) -> float | None:
        """Put on the bridge what is due; return when the next packet will be, None where none waits."""
        following: float | None = None
        for waiting in self._waiting.values():
            while waiting and waiting[0][0] <= now:
                with suppress(OSError):  # a queue that is full drops a packet, as queues do
                    self._put.send(waiting.popleft()[1])
            if waiting and (following is None or waiting[0][0] < following):
                following = waiting[0][0]
        return following

    def lost(self) -> int:
        """Return how many packets the kernel dropped since the last call because the relay was too slow."""
        found: int = struct.unpack("II", self._taken.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))[1]
        return found

    def close(self) -> None:
        """Put everything on the bridge at once, and take no more."""
        self.put(float("inf"))
        self._taken.close()
        self._put.close()


def _packet_socket() -> socket.socket:
    """Return a packet socket that takes nothing yet, and whose frames begin with the header of offloads."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.setsockopt(_SOL_PACKET, _PACKET_VNET_HEADER, 1)
    return made


def _attach(taken: socket.socket, addresses: list[str]) -> None:
    program = for_socket(taking_to(addresses))
    buffer = ctypes.create_string_buffer(program)
    taken.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER,
                     struct.pack("HP", len(program) // 8, ctypes.addressof(buffer)))
