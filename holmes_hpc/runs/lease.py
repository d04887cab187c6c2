"""Holds a thing for one process at a time, whichever machine it runs on.

A lock of the file system keeps others out where it reaches them. Over machines it often does not, so the holder keeps a
lease besides: a file whose time it renews. One that is not renewed any more belongs to whoever takes it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from holmes_hpc.foreign import read_object, whole_number
from holmes_hpc.runs.job import process_start
from holmes_hpc.troubles import Troubles

BEAT_SECONDS = 5.0
"""How often a holder renews its lease."""
LEASE_SECONDS = 30.0
"""How long a lease lasts that is not renewed."""

_LOOK_SECONDS = 0.2


class HeldError(Exception):
    """Another process holds it; the message says which one."""


class LeasedError(HeldError):
    """A lease says so, and no lock: a process of another machine, or one that was killed there."""


class Lease:
    """A lease that this process holds. `still_mine` says whether it does, after it was stopped for a while."""

    def __init__(self, path: Path) -> None:
        self._path, self._token = path, secrets.token_hex(8)
        self._end = threading.Event()

    def take(self, *, stays: bool = False) -> None:
        """Take the lease. Raises LeasedError where another process has it, OSError where it cannot be written."""
        content = json.dumps({"token": self._token, "host": socket.gethostname(), "pid": os.getpid(),
                              "start": process_start(os.getpid()), "stays": stays})
        own = self._path.with_name(f".{self._path.name}.{self._token}")
        own.write_text(content)  # linked when it is whole, so that nobody reads half of it
        try:
            for _ in range(3):
                with suppress(FileExistsError):
                    _link(own, self._path)
                    threading.Thread(target=self._renew, name="lease", daemon=True).start()
                    return
                self._remove_if_over()
        finally:
            own.unlink(missing_ok=True)
        raise LeasedError(holder(self._path))

    def release(self) -> None:
        """Give the lease back, where it is still this process's."""
        self._end.set()
        if self.still_mine():
            self._path.unlink(missing_ok=True)

    def still_mine(self) -> bool:
        """Say whether nobody has taken the lease over."""
        return _token(self._path) == self._token

    def _renew(self) -> None:
        troubles = Troubles(f"renewing {self._path}")
        while not self._end.wait(BEAT_SECONDS):
            with troubles.said(), suppress(OSError):
                if self.still_mine():
                    os.utime(self._path)

    def _remove_if_over(self) -> None:
        """Take away a lease that nobody renews. Raises LeasedError where somebody does."""
        token = _token(self._path)
        if is_held(self._path):
            raise LeasedError(holder(self._path))
        aside = self._path.with_name(f".{self._path.name}.over-{self._token}")
        with suppress(FileNotFoundError):
            self._path.rename(aside)
            if _token(aside) != token:  # of one who took it between the two looks: it is put back
                with suppress(FileExistsError):
                    _link(aside, self._path)
            aside.unlink(missing_ok=True)


def is_held(path: Path) -> bool:
    """Say whether somebody holds the lease: it was renewed lately, and not by a process of this machine that is dead.

    Times are those of the file system, not of this machine.
    """
    age = _age_seconds(path)
    return age is not None and age < LEASE_SECONDS and not _is_dead(read_object(path) or {})


def is_renewed(path: Path) -> bool:
    """Watch a lease until it is renewed, given back or over; say whether somebody renewed it."""
    first, deadline = _changed(path), time.monotonic() + LEASE_SECONDS
    while is_held(path):
        if _changed(path) != first:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return False


def holder(path: Path) -> str:
    """Return which process holds a lease, as far as its file tells."""
    told = read_object(path) or {}
    return f"process {told.get('pid')} on {told.get('host')}" if told else "another process"


@contextmanager
def held(path: Path, wait_seconds: float = 0.0, *, stays: bool = False) -> Iterator[Lease]:
    """Hold `path` (a name, beside which files are made) meanwhile; wait for others at most so long.

    `stays` is told to who reads the lease: that its holder keeps it until all is done.
    Raises HeldError where another process holds it then, OSError where nothing can be written there.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            descriptor, lease = _take(path, stays=stays)
            break
        except HeldError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK_SECONDS)
    try:
        yield lease
    finally:
        with suppress(OSError):
            lease.release()
        os.close(descriptor)


def lease_path(path: Path) -> Path:
    """Return the file of the lease that `held(path)` takes."""
    return path.with_name(f"{path.name}.lease")


def _take(path: Path, *, stays: bool) -> tuple[int, Lease]:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeldError(holder(lease_path(path))) from None
        except OSError:
            pass  # a file system without locks: the lease has to do
        lease = Lease(lease_path(path))
        lease.take(stays=stays)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, lease


def _link(source: Path, path: Path) -> None:
    """Show a file under another name, which nobody may have yet; a copy where the file system knows no links."""
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "w") as file:
            file.write(source.read_text())


def _token(path: Path) -> Any:
    return (read_object(path) or {}).get("token")


def _is_dead(told: dict[str, Any]) -> bool:
    pid = whole_number(told.get("pid"), 1)
    return told.get("host") == socket.gethostname() and pid is not None and process_start(pid) != told.get("start")


def _changed(path: Path) -> int | None:
    """Return when a file was changed; it is opened, since a network file system remembers times of others."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)


def _age_seconds(path: Path) -> float | None:
    """Return how long ago a file was changed, by the clock of its file system; None where it is gone."""
    probe = path.with_name(f".{path.name}.now-{secrets.token_hex(4)}")
    try:
        probe.touch()
        now = _changed(probe)
    finally:
        probe.unlink(missing_ok=True)
    changed = _changed(path)
    return None if changed is None or now is None else (now - changed) / 1e9
