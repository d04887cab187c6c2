"""Traffic of others on a link: datagrams at a constant rate, which make way for nothing and which nobody reads."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

from holmes_hpc.emulation import system_calls

TICK_SECONDS = 0.002
_DISCARD_PORT = 9
_UDP_SEGMENT = 103
_HEADERS_BYTES = 42
"""Ethernet, IPv4 and UDP headers of a datagram, which take the link's time as well."""
_MOST_SEGMENTS = 10
_LATE_SECONDS = 0.05
"""Of what a busy machine kept from being sent in time, so much is made up for."""


@dataclass
class Stream:
    """Datagrams from one node to another, so many bits in a second, headers included."""

    sender: socket.socket
    sink: socket.socket
    payload_bytes: int
    bits_per_second: float = 0.0
    _due: float = 0.0

    @classmethod
    def between(cls, sending_network: int, receiving_network: int, source: str, address: str, mtu: int) -> Stream:
        """Make the sockets in the network namespaces of both nodes."""
        own = system_calls.own_network()
        try:
            system_calls.join_network(receiving_network)
            sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # the least there is: it is never read
            sink.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sink.bind((address, _DISCARD_PORT))
            system_calls.join_network(sending_network)
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sender.bind((source, 0))
            sender.connect((address, _DISCARD_PORT))
            sender.setblocking(False)
        finally:
            system_calls.join_network(own)
            os.close(own)
        return cls(sender, sink, mtu - 28)

    def send(self, now: float) -> None:
        """Send what is due by now."""
        if not self.bits_per_second:
            return
        each = 8 * (self.payload_bytes + _HEADERS_BYTES) / self.bits_per_second
        self._due = max(self._due, now - _LATE_SECONDS)
        while self._due <= now:
            count = min(_MOST_SEGMENTS, 1 + int((now - self._due) / each))
            with suppress(OSError):  # a full queue drops it
                self.sender.sendmsg([bytes(count * self.payload_bytes)],
                                    [(socket.SOL_UDP, _UDP_SEGMENT, struct.pack("H", self.payload_bytes))])
            self._due += count * each
