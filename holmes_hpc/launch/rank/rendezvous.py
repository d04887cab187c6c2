"""Opens the store that the ranks of a run meet at: rank 0 holds it and publishes its address in the run folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from holmes_hpc.comm.activity import Activity
from holmes_hpc.comm.causes import first_line
from holmes_hpc.comm.store.channel import SecretError
from holmes_hpc.comm.store.client import RunStore
from holmes_hpc.comm.store.server import StoreServer
from holmes_hpc.errors import NetworkError
from holmes_hpc.foreign import ForeignError, read_json
from holmes_hpc.launch.rank.patience import Patience
from holmes_hpc.launch.rank.settings import RankSettings
from holmes_hpc.runs.files import storage_error
from holmes_hpc.runs.private import make_secret, read_secret
from holmes_hpc.values.doing import MEETING


def open_store(settings: RankSettings, timeout_seconds: float, activity: Activity | None = None) -> RunStore:
    """Return the store, on rank 0 a new one on a free port of its address, on others that of rank 0.

    Ranks wait for rank 0 as long as its signs of life tell of progress, each time for `timeout_seconds`. Only who knows
    the run's secret is let in. Raises NetworkError that says who waited for whom, where and how long: with that, a
    failure of rank 0's own comes first in what the run ends with; ConfigurationError where the secret cannot be kept
    from others.
    """
    timeout = timedelta(seconds=timeout_seconds)
    if settings.rank == 0:
        secret = _new_secret(settings)
        with _naming(settings, settings.host, timeout_seconds):
            server = StoreServer(settings.host, secret, settings.plan.world_size)
            try:
                store = RunStore(settings.host, server.port, secret, timeout, server)
            except OSError:
                server.close()
                raise
        settings.folder.write_json(settings.rendezvous_path, {"host": settings.host, "port": server.port})
        return store
    (activity or Activity()).begin(f"{MEETING}: rank 0 has no address yet")
    host, port = _published(settings, timeout_seconds)
    secret = settings.secret or _secret(settings)
    with _naming(settings, f"{host}, port {port}", timeout_seconds):
        return RunStore(host, port, secret, timeout)


def secret_path(rendezvous_path: Path) -> Path:
    """Return the file of the secret that belongs to an address."""
    return rendezvous_path.with_suffix(".secret")


def _new_secret(settings: RankSettings) -> bytes:
    """Return the secret that was given, or make one for the other ranks to read before the address appears."""
    if settings.secret is not None:
        return settings.secret
    path = secret_path(settings.rendezvous_path)
    try:
        return make_secret(path)
    except OSError as error:
        raise storage_error(path, error) from error


def _secret(settings: RankSettings) -> bytes:
    path = secret_path(settings.rendezvous_path)
    try:
        return read_secret(path)
    except OSError as error:
        raise NetworkError(f"{_who(settings)} cannot read the secret of this start in {path} ({error.strerror}); is "
                           "the run folder (run.folder) on a file system that all nodes share?") from error


def _published(settings: RankSettings, timeout_seconds: float) -> tuple[str, int]:
    """Wait for rank 0's address and return it."""
    path, patience = settings.rendezvous_path, Patience(settings.folder, 0, timeout_seconds)
    while not path.exists():
        if patience.is_over():
            said = f", which has been {patience.said} all the time" if patience.said else ""
            raise NetworkError(
                f"{_who(settings)} waited {timeout_seconds:g} s for rank 0 on node {_first_node(settings)} to publish "
                f"its address in {path}{said}; is the run folder (run.folder) on a file system that all nodes share? "
                f"If rank 0 is only slow to start, raise train.start_timeout_seconds (now {timeout_seconds:g})")
        time.sleep(0.01)
    try:
        address = read_json(path)
        return str(address["host"]), int(address["port"])
    except (ForeignError, TypeError, KeyError, ValueError) as error:
        raise NetworkError(f"{_who(settings)} finds no address of rank 0 in {path} ({_first_line(error)}); something "
                           "else wrote there: start the run again") from error


@contextmanager
def _naming(settings: RankSettings, address: str, timeout_seconds: float) -> Iterator[None]:
    """Turn errors about the store into ours."""
    try:
        yield
    except SecretError as error:
        raise NetworkError(
            f"{_who(settings)} was not let in at {address}, where the ranks of this run meet: {error}; another run or "
            f"program took the address that {settings.rendezvous_path} names, or the file is of another start: start "
            "the run again") from error
    except (RuntimeError, OSError) as error:
        whom = "its own store" if settings.rank == 0 else f"rank 0 on node {_first_node(settings)}"
        raise NetworkError(
            f"{_who(settings)} did not reach {whom} at {address} within {timeout_seconds:g} s, where the ranks meet at "
            f"the start ({_first_line(error)}); check that this name or address leads to node {_first_node(settings)} "
            "and that no firewall is between the nodes (`python -m holmes_hpc.doctor`); if a node is only slow to "
            f"start, raise train.start_timeout_seconds (now {timeout_seconds:g})") from error


def _who(settings: RankSettings) -> str:
    return f"rank {settings.rank} on node {settings.node}"


def _first_node(settings: RankSettings) -> str:
    place = settings.plan.ranks[0]
    return str(place.node or place.slot)


def _first_line(error: BaseException) -> str:
    return first_line(error).rstrip(".")
