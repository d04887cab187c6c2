"""In which state an interface of this node is: what the kernel says, in the caller's network namespace."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from fcntl import ioctl

UP = "up"

_FLAGS, _ADDRESS = 0x8913, 0x8915  # SIOCGIFFLAGS, SIOCGIFADDR
_IS_UP, _IS_RUNNING = 0x1, 0x40
_NAME_BYTES = 15


def link_states(interfaces: Iterable[str]) -> dict[str, str]:
    """Return the state of each interface: `up` and its address, or what it lacks.

    Those of /sys would be those of the namespace in which it was mounted.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            return {name: _state(any_socket.fileno(), name) for name in interfaces}
    except OSError:
        return {}


def is_well(state: str) -> bool:
    """Say whether a state, as `link_states` returns it, is that of a link which can be used as it should."""
    return state.startswith(f"{UP}, ") and not state.startswith(f"{UP}, but")


def address_of(interface: str) -> str | None:
    """Return the IPv4 address of an interface, None where it has none."""
    request = struct.pack("256s", interface.encode()[:_NAME_BYTES])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            return socket.inet_ntoa(ioctl(any_socket.fileno(), _ADDRESS, request)[20:24])
    except OSError:
        return None


def _state(descriptor: int, name: str) -> str:
    request = struct.pack("256s", name.encode()[:_NAME_BYTES])
    try:
        flags = struct.unpack("H", ioctl(descriptor, _FLAGS, request)[16:18])[0]
    except OSError:
        return "missing"
    if not flags & _IS_UP:
        return "down"
    if not flags & _IS_RUNNING:
        return "up, but has no carrier"
    try:
        return f"{UP}, {socket.inet_ntoa(ioctl(descriptor, _ADDRESS, request)[20:24])}"
    except OSError:
        return "up, but has no IPv4 address"
