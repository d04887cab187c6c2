"""A connection between two who both know a secret: each proves it first, and every message carries a seal.

The secret itself is never sent. HMAC-SHA256 of both sides' random numbers proves that it is known; keys made of secret
and numbers seal what follows, one for each way, with the message's number in the seal, so that nobody in between can
add, change, repeat or leave out a message. What is said is not hidden.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
from dataclasses import dataclass, field
from typing import Any

GREETING = b"holmes_hpc 1\0\0\0\0"
NUMBER_BYTES = 32
SEAL_BYTES = 32
CHALLENGE_BYTES = len(GREETING) + NUMBER_BYTES
PROOF_BYTES = NUMBER_BYTES + SEAL_BYTES
MOST_MESSAGE_BYTES = 64 * 2**20
_LENGTH = struct.Struct("!I")


class SecretError(ConnectionError):
    """The other side does not know the secret, or somebody changed a message on its way."""


class BrokenChannelError(ConnectionError):
    """The other side closed the connection."""


def challenge() -> bytes:
    """Return what a server sends first: who it is, and a random number."""
    return GREETING + secrets.token_bytes(NUMBER_BYTES)


def proof(secret: bytes, asked: bytes) -> bytes:
    """Return a client's answer to a challenge: a random number of its own and the proof that it knows the secret."""
    own = secrets.token_bytes(NUMBER_BYTES)
    return own + _seal(secret, b"client", asked, own)


def is_proof(secret: bytes, asked: bytes, answer: bytes) -> bool:
    """Say whether an answer proves that its sender knows the secret."""
    own, seal = answer[:NUMBER_BYTES], answer[NUMBER_BYTES:]
    return hmac.compare_digest(_seal(secret, b"client", asked, own), seal)


def counter_proof(secret: bytes, asked: bytes, answer: bytes) -> bytes:
    """Return a server's proof to a client that it knows the secret, too."""
    return _seal(secret, b"server", asked, answer)


def is_counter_proof(secret: bytes, asked: bytes, answer: bytes, given: bytes) -> bool:
    """Say whether a server's proof is one."""
    return hmac.compare_digest(counter_proof(secret, asked, answer), given)


def channels(secret: bytes, asked: bytes, answer: bytes) -> tuple[Sealing, Sealing]:
    """Return the two ways of a proved connection: from client to server, and back."""
    return (Sealing(_seal(secret, b"to server", asked, answer)), Sealing(_seal(secret, b"to client", asked, answer)))


@dataclass
class Sealing:
    """One way of a connection: makes or opens its messages, which are JSON values, in order."""

    key: bytes = field(repr=False)
    number: int = 0

    def closed(self, message: Any) -> bytes:
        """Return the bytes of the next message. Raises ValueError for one that is too large."""
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > MOST_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(body):,} bytes; at most {MOST_MESSAGE_BYTES:,} are sent")
        return _LENGTH.pack(len(body)) + body + self._next(body)

    def opened(self, received: bytearray) -> Any | None:
        """Take the next whole message from the front of what was received; None where it is not whole yet.

        Raises SecretError where its seal is wrong.
        """
        if len(received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(received)
        end = _LENGTH.size + length + SEAL_BYTES
        if length > MOST_MESSAGE_BYTES:
            raise SecretError(f"a message of {length:,} bytes; at most {MOST_MESSAGE_BYTES:,} are read")
        if len(received) < end:
            return None
        body = bytes(received[_LENGTH.size:_LENGTH.size + length])
        seal = bytes(received[end - SEAL_BYTES:end])
        if not hmac.compare_digest(self._next(body), seal):
            raise SecretError("a message whose seal is wrong")
        del received[:end]
        return json.loads(body)

    def _next(self, body: bytes) -> bytes:
        seal = _seal(self.key, struct.pack("!Q", self.number), body)
        self.number += 1
        return seal


def _seal(key: bytes, *parts: bytes) -> bytes:
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        digest.update(_LENGTH.pack(len(part)) + part)
    return digest.digest()
