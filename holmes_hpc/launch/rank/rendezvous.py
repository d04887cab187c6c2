"""Opens the store that the ranks of a run meet at: rank 0 holds it and publishes its address in the run folder."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import TCPStore

from holmes_hpc.errors import NetworkError
from holmes_hpc.launch.rank.settings import RankSettings


def open_store(settings: RankSettings, timeout_seconds: float) -> TCPStore:
    """Return the store, on rank 0 a new one on a free port, on others that of rank 0.

    Raises NetworkError that says who waited for whom, where and how long: with that, a failure of rank 0's own comes
    first in what the run ends with.
    """
    if settings.rank == 0:
        with _naming(settings, settings.host, timeout_seconds):
            store = _open(settings, settings.host, 0, timeout_seconds)
        settings.folder.write_json(settings.rendezvous_path, {"host": settings.host, "port": store.port})
        return store
    host, port = _published(settings, timeout_seconds)
    with _naming(settings, f"{host}, port {port}", timeout_seconds):
        return _open(settings, host, port, timeout_seconds)


def _open(settings: RankSettings, host: str, port: int, timeout_seconds: float) -> TCPStore:
    return TCPStore(host, port, settings.plan.world_size, is_master=settings.rank == 0, wait_for_workers=False,
                    timeout=timedelta(seconds=timeout_seconds))


def _published(settings: RankSettings, timeout_seconds: float) -> tuple[str, int]:
    """Wait for rank 0's address and return it."""
    path, deadline = settings.rendezvous_path, time.monotonic() + timeout_seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise NetworkError(
                f"{_who(settings)} waited {timeout_seconds:g} s for rank 0 on node {_first_node(settings)} to publish "
                f"its address in {path}; is the run folder (run.folder) on a file system that all nodes share? If rank "
                f"0 is only slow to start, raise train.start_timeout_seconds (now {timeout_seconds:g})")
        time.sleep(0.01)
    address = json.loads(path.read_text())
    return str(address["host"]), int(address["port"])


@contextmanager
def _naming(settings: RankSettings, address: str, timeout_seconds: float) -> Iterator[None]:
    """Turn torch's errors about the store into ours."""
    try:
        yield
    except RuntimeError as error:
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
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
