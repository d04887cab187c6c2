"""Packets that the kernel itself drops: programs of classic BPF for `tc`, which needs neither netem nor a compiler.

A program looks at a packet with its Ethernet header. Only IPv4 is judged: addresses are always resolved.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Mapping, Sequence

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, constant: `struct sock_filter` of linux/filter.h."""

_LOAD_HALF, _LOAD_WORD = 0x28, 0x20
_IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x15, 0x35, 0x06
_ETHER_TYPE, _SOURCE, _DESTINATION = 12, 26, 30
_IPV4 = 0x0800
_RANDOM = 0xFFFFF000 + 56
"""SKF_AD_OFF + SKF_AD_RANDOM: a random word."""
_GO_ON, _DROP = 0xFFFFFFFF, 2
"""TC_ACT_UNSPEC and TC_ACT_SHOT."""
_WHOLE = 0xFFFFFFFF
MOST_ADDRESSES = 250
"""A jump of classic BPF passes over 255 instructions at most."""


def losing(shares: Mapping[str, float]) -> list[Instruction]:
    """Return a program that drops a random share of the packets from each source address."""
    program = _only_ipv4(_SOURCE)
    for address, share in shares.items():
        program += [(_IF_EQUAL, 0, 4, _number(address)), (_LOAD_WORD, 0, 0, _RANDOM),
                    (_IF_AT_LEAST, 1, 0, round(share * 2**32)), (_RETURN, 0, 0, _DROP), (_RETURN, 0, 0, _GO_ON)]
    return [*program, (_RETURN, 0, 0, _GO_ON)]


def dropping_to(addresses: Sequence[str]) -> list[Instruction]:
    """Return a program for `tc` that drops what is for these addresses."""
    return _matching(addresses, _DROP, _GO_ON)


def taking_to(addresses: Sequence[str]) -> list[Instruction]:
    """Return a program for a packet socket that takes what is for these addresses, whole, and nothing else."""
    return _matching(addresses, _WHOLE, 0)


def _matching(addresses: Sequence[str], found: int, other: int) -> list[Instruction]:
    if len(addresses) > MOST_ADDRESSES:
        raise ValueError(f"a filter takes {MOST_ADDRESSES} addresses at most, not {len(addresses)}")
    count = len(addresses)
    program: list[Instruction] = [(_LOAD_HALF, 0, 0, _ETHER_TYPE), (_IF_EQUAL, 0, count + 1, _IPV4),
                                  (_LOAD_WORD, 0, 0, _DESTINATION)]
    program += [(_IF_EQUAL, count - number, 0, _number(address)) for number, address in enumerate(addresses)]
    return [*program, (_RETURN, 0, 0, other), (_RETURN, 0, 0, found)]


def _only_ipv4(offset: int) -> list[Instruction]:
    return [(_LOAD_HALF, 0, 0, _ETHER_TYPE), (_IF_EQUAL, 1, 0, _IPV4), (_RETURN, 0, 0, _GO_ON),
            (_LOAD_WORD, 0, 0, offset)]


def _number(address: str) -> int:
    found: int = struct.unpack("!I", socket.inet_aton(address))[0]
    return found


def for_tc(program: Iterable[Instruction]) -> str:
    """Return a program as `tc filter ... bpf bytecode` takes it."""
    lines = [f"{code} {true} {false} {constant}" for code, true, false, constant in program]
    return ",".join([str(len(lines)), *lines])


def for_socket(program: Iterable[Instruction]) -> bytes:
    """Return a program as an array of `struct sock_filter`."""
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)
