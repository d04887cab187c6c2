"""A rank's side of the store, which torch uses like a store of its own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, Store

from holmes_hpc.comm.store.channel import (
    CHALLENGE_BYTES,
    GREETING,
    SEAL_BYTES,
    BrokenChannelError,
    Sealing,
    SecretError,
    channels,
    is_counter_proof,
    proof,
)
from holmes_hpc.comm.store.server import StoreServer

_SLICE_SECONDS = 0.25
"""How long one request waits for a key: between two, other threads of the rank have their turn."""
_PAUSE_SECONDS = 0.02
TRIES = 5
"""How often a rank that is turned away tries: where strangers connect by the hundred, the oldest unproved one is."""
_LATE_SECONDS = 60.0
"""How long an answer may take beyond what the request waits: the rank that serves may have been stopped."""
_CHUNK_BYTES = 2**16


class RunStore(Store):  # type: ignore[misc, unused-ignore]
    """One rank's connection to the store at `host` and `port`.

    Keep it as long as process groups exist: torch holds only its own half of it. Raises OSError where nobody answers
    within `timeout`, SecretError where somebody does who does not know the secret. `server` is what this rank serves
    itself, which closes with it.
    """

    timeout: timedelta
    """torch's own: how long a value is waited for where nothing else is said."""

    def __init__(self, host: str, port: int, secret: bytes, timeout: timedelta,
                 server: StoreServer | None = None) -> None:
        super().__init__()
        self.set_timeout(timeout)
        self._lock = threading.Lock()
        self._server = server
        self._received = bytearray()
        self._socket: socket.socket | None = None
        deadline = time.monotonic() + timeout.total_seconds()
        for tries_left in reversed(range(TRIES)):
            try:
                self._out, self._in = self._meet(host, port, secret, deadline)
                return
            except (BrokenChannelError, ConnectionResetError, BrokenPipeError) as error:
                self._hang_up()
                if server is not None and server.error is not None:
                    raise server.error from error
                if not tries_left:
                    raise SecretError("the store there did not take this rank for one of its run") from error
                time.sleep(_PAUSE_SECONDS)
            except OSError:
                self._hang_up()
                raise

    def _meet(self, host: str, port: int, secret: bytes, deadline: float) -> tuple[Sealing, Sealing]:
        """Connect, let both sides prove that they know the secret, and return the two ways."""
        self._received.clear()
        self._socket = _connect(host, port, deadline, self._server)
        asked = self._read(CHALLENGE_BYTES)
        if not asked.startswith(GREETING):
            raise SecretError("whoever answers there is no store of this toolkit")
        answer = proof(secret, asked)
        self._socket.sendall(answer)
        if not is_counter_proof(secret, asked, answer, self._read(SEAL_BYTES)):
            raise SecretError("whoever answers there does not know the secret of this run")
        return channels(secret, asked, answer)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._ask("set", [key], [_text(value)])

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Write several values."""
        self._ask("set", list(keys), [_text(value) for value in values])

    def append(self, key: str, value: str | bytes) -> None:
        """Add to the end of a value."""
        self._ask("append", key, _text(value))

    def get(self, key: str) -> bytes:
        """Return a value, once there is one. Raises DistStoreError where there is none within the timeout."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return several values, once all are there. Raises DistStoreError as `get` does."""
        found: list[str] = self._await("get", keys, self.timeout)
        return [value.encode("latin-1") for value in found]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until every key is there. Raises DistStoreError where they are not within the timeout."""
        self._await("wait", keys, self.timeout if timeout is None else timeout)

    def appears(self, key: str, seconds: float) -> bool:
        """Wait for a key, at most so long; say whether it is there."""
        return self._waited("wait", [key], seconds) is not None

    def check(self, keys: Sequence[str]) -> bool:
        """Say whether every key is there now; of a closed store none is."""
        return self._socket is not None and bool(self._ask("check", list(keys)))

    def add(self, key: str, value: int) -> int:
        """Add to a number, which begins at 0, and return the sum."""
        return int(self._ask("add", key, value))

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Write a value where the old one is as expected; return what is there then."""
        held: str = self._ask("compare_set", key, _text(expected_value), _text(desired_value))
        return held.encode("latin-1")

    def delete_key(self, key: str) -> bool:
        """Remove a key; return whether it was there."""
        return bool(self._ask("delete", key))

    def num_keys(self) -> int:
        """Return how many keys there are."""
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """Return all keys."""
        return list(self._ask("keys"))

    def has_extended_api(self) -> bool:
        """Say that several values can be read at once, which torch then does."""
        return True

    def clone(self) -> RunStore:
        """Return this store: its connection serves all threads of the rank."""
        return self

    def close(self) -> None:
        """Close the connection, and the store itself on the rank that serves it."""
        with self._lock:
            self._hang_up()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _await(self, name: str, keys: Sequence[str], timeout: timedelta) -> Any:
        answer = self._waited(name, keys, timeout.total_seconds())
        if answer is None:
            shown = ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
            raise DistStoreError(f"wait timeout after {timeout.total_seconds() * 1000:.0f}ms, keys: {shown}")
        return answer

    def _waited(self, name: str, keys: Sequence[str], seconds: float) -> Any | None:
        """Return the answer to a request that waits for keys, None where they are not there in time."""
        end = time.monotonic() + seconds
        while True:
            answer = self._ask(name, list(keys), min(_SLICE_SECONDS, max(0.0, end - time.monotonic())))
            if answer is not None and answer is not False:
                return answer
            if time.monotonic() >= end:
                return None

    def _ask(self, *request: Any) -> Any:
        with self._lock:
            if self._socket is None:
                raise DistStoreError("the store of this start is closed: all ranks have met")
            try:
                self._socket.settimeout(_LATE_SECONDS)
                self._socket.sendall(self._out.closed(list(request)))
                while (answer := self._in.opened(self._received)) is None:
                    self._receive()
            except OSError as error:
                raise DistStoreError(f"the connection to the store of rank 0 broke ({error})") from error
            return answer[0]

    def _read(self, count: int) -> bytes:
        while len(self._received) < count:
            self._receive()
        found = bytes(self._received[:count])
        del self._received[:count]
        return found

    def _receive(self) -> None:
        chunk = self._socket.recv(_CHUNK_BYTES) if self._socket is not None else b""
        if not chunk:
            raise BrokenChannelError("rank 0 closed it")
        self._received += chunk


def _connect(host: str, port: int, deadline: float, server: StoreServer | None) -> socket.socket:
    """Return a connection, once somebody answers. Raises the last OSError after the deadline.

    Where this rank's own `server` has failed nobody will, and its error is raised at once.
    """
    while True:
        left = deadline - time.monotonic()
        try:
            connection = socket.create_connection((host, port), timeout=max(0.001, left))
        except OSError as error:
            if server is not None and server.error is not None:
                raise server.error from error
            if left <= _PAUSE_SECONDS:
                raise
            time.sleep(_PAUSE_SECONDS)
            continue
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _text(value: str | bytes) -> str:
    return (value.encode() if isinstance(value, str) else bytes(value)).decode("latin-1")
