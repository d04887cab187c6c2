"""The side of the store that holds the values: one thread of rank 0, bound to one address.

It takes one connection of each rank, and listens no longer once it has them all.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from holmes_hpc.comm.store.channel import (
    PROOF_BYTES,
    Sealing,
    SecretError,
    challenge,
    channels,
    counter_proof,
    is_proof,
)
from holmes_hpc.comm.store.values import Values
from holmes_hpc.troubles import described

LOG = logging.getLogger(__name__)

PROOF_SECONDS = 10.0
"""How long a connection may take to prove that it knows the secret."""
MOST_UNPROVED = 64
"""Connections that may be without a proof at once; another one takes the place of the oldest."""
_CHUNK_BYTES = 2**16
_IDLE_SECONDS = 1.0
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Of what there may be too little to take a connection; trying again would not end."""


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    peer: str
    asked: bytes
    since: float
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    ways: tuple[Sealing, Sealing] | None = None
    waiting: tuple[Any, float] | None = None
    """A request that waits for keys, and until when."""


class StoreServer:
    """Serves the store at `host`, on a free port (`port`), until all of `ranks` connections are closed or `close`.

    Raises OSError where the address is none of this machine. `dropped` counts the connections that did not prove that
    they know the secret; the first is said in the log, and how many they were when the server closes. `error` is what
    kept it from taking connections, such as too few file descriptors; it has ended then.
    """

    def __init__(self, host: str, secret: bytes, ranks: int) -> None:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._listener = socket.socket(family, kind, protocol)
        try:
            self._listener.bind(address)
            self._listener.listen(max(128, min(ranks, 4096)))
        except OSError:
            self._listener.close()
            raise
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.dropped = 0
        self.error: OSError | None = None
        self._secret, self._ranks, self._proved = secret, ranks, 0
        self._values = Values()
        self._connections: list[_Connection] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close every connection and end the thread."""
        with suppress(OSError):
            self._wake.send(b".")
        self._thread.join()
        self._wake.close()

    @property
    def is_listening(self) -> bool:
        """Whether it takes further connections."""
        return self._listener.fileno() >= 0

    def _serve(self) -> None:
        try:
            while self._turn():
                pass
        except OSError as error:
            self.error = error
        except Exception as error:
            self.error = OSError(f"the store that ranks meet at failed: {described(error)}")
        finally:
            for connection in list(self._connections):
                self._forget(connection)
            self._stop_listening()
            self._woken.close()
            self._selector.close()
            if self.dropped > 1:
                LOG.warning("WARNING: %d connections to this run's store were dropped, since they did not prove that "
                            "they know its secret", self.dropped)

    def _turn(self) -> bool:
        for key, events in self._selector.select(self._pause()):
            if key.fileobj is self._woken:
                return False
            if key.fileobj is self._listener:
                self._accept()
            elif key.data in self._connections:
                self._talk(key.data, events)
        self._time_out()
        return True

    def _pause(self) -> float:
        ends = [each.waiting[1] for each in self._connections if each.waiting is not None]
        return max(0.0, min([_IDLE_SECONDS, *(end - time.monotonic() for end in ends)]))

    def _accept(self) -> None:
        try:
            accepted, address = self._listener.accept()
        except OSError as error:
            if error.errno not in _SHORT:
                return  # whoever connected has gone
            silent = [each for each in self._connections if each.ways is None]
            if not silent:
                raise
            self._drop(silent[0])  # the next turn tries again
            return
        accepted.setblocking(False)
        with suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(accepted, str(address[0]), challenge(), time.monotonic())
        unproved = [each for each in self._connections if each.ways is None]
        if len(unproved) >= MOST_UNPROVED:
            self._drop(unproved[0])
        self._connections.append(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        self._send(connection, connection.asked)

    def _talk(self, connection: _Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._send(connection, b"")
            if events & selectors.EVENT_READ:
                received = connection.socket.recv(_CHUNK_BYTES)
                if not received:
                    raise ConnectionError("closed by the other side")
                connection.received += received
                self._read(connection)
        except BlockingIOError:
            return
        except (OSError, ValueError, TypeError, KeyError, IndexError):
            self._leave(connection)

    def _read(self, connection: _Connection) -> None:
        if connection.ways is None:
            if len(connection.received) < PROOF_BYTES:
                return
            answer = bytes(connection.received[:PROOF_BYTES])
            del connection.received[:PROOF_BYTES]
            if self._proved >= self._ranks or not is_proof(self._secret, connection.asked, answer):
                raise SecretError("no proof")
            connection.ways = channels(self._secret, connection.asked, answer)
            self._proved += 1
            self._send(connection, counter_proof(self._secret, connection.asked, answer))
            if self._proved == self._ranks:
                self._stop_listening()
        while (request := connection.ways[0].opened(connection.received)) is not None:
            self._answer(connection, request)

    def _answer(self, connection: _Connection, request: Any) -> None:
        keys, seconds = self._values.awaited(request)
        if seconds > 0 and not self._values.has(keys):
            connection.waiting = (request, time.monotonic() + seconds)
            return
        self._reply(connection, request)
        if self._values.changed:
            self._values.changed = False
            for each in self._connections:
                if each.waiting is not None and self._values.has(self._values.awaited(each.waiting[0])[0]):
                    self._reply(each, each.waiting[0])

    def _reply(self, connection: _Connection, request: Any) -> None:
        connection.waiting = None
        if connection.ways is not None:
            self._send(connection, connection.ways[1].closed([self._values.answer(request)]))

    def _send(self, connection: _Connection, data: bytes) -> None:
        connection.unsent += data
        with suppress(OSError):  # one that broke is left when it is read from, and harms no other
            while connection.unsent:
                del connection.unsent[:connection.socket.send(connection.unsent)]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._selector.modify(connection.socket, wanted, connection)

    def _time_out(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections):
            if connection.waiting is not None and connection.waiting[1] <= now:
                self._reply(connection, connection.waiting[0])
            elif connection.ways is None and now - connection.since > PROOF_SECONDS:
                self._drop(connection)

    def _leave(self, connection: _Connection) -> None:
        """Close a connection; one that proved nothing is counted."""
        (self._drop if connection.ways is None else self._forget)(connection)

    def _drop(self, connection: _Connection) -> None:
        self.dropped += 1
        if self.dropped == 1:
            LOG.warning("WARNING: a connection to this run's store from %s was dropped: it did not prove that it knows "
                        "the run's secret; further ones are only counted", connection.peer)
        self._forget(connection)

    def _forget(self, connection: _Connection) -> None:
        self._connections.remove(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _stop_listening(self) -> None:
        if self.is_listening:
            self._selector.unregister(self._listener)
            self._listener.close()
            for connection in [each for each in self._connections if each.ways is None]:
                self._drop(connection)
