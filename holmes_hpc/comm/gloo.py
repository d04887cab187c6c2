"""Gloo process groups on a chosen network interface.

`torch.distributed.new_group` silently ignores options for gloo, and the variable GLOO_SOCKET_IFNAME holds for
the whole process. So this module registers a backend of its own whose options carry the interface. Everything
that is private in torch stands here; `tests/test_comm_gloo.py` pins it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ProcessGroupGloo, Store

from holmes_hpc.comm.backends import Abilities, RankNode
from holmes_hpc.comm.causes import first_line
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.comm.streams import Streams
from holmes_hpc.errors import NetworkError
from holmes_hpc.values.backend_kinds import GLOO

BACKEND_NAME = "holmes_gloo"
THREAD_NAMES = ("gloo_tcp_loop", "pt_gloo_runloop")
"""The names that the kernel shows of gloo's threads, which move data and which run collectives."""


@dataclass(frozen=True)
class GlooOptions:
    """What one gloo group needs beside its members. `device` is gloo's handle of `interface`."""

    interface: str
    network: str
    threads: int
    timeout: timedelta
    device: Any


def register() -> None:
    """Register the backend `holmes_gloo` with torch; calling it again does nothing."""
    if not hasattr(dist.Backend, BACKEND_NAME.upper()):
        dist.Backend.register_backend(BACKEND_NAME, create, extended_api=True, devices=["cpu"])


def create(group: Any, options: GlooOptions) -> ProcessGroupGloo:
    """Build the gloo backend of one group; torch calls it with the group and our options."""
    gloo = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    gloo._timeout = options.timeout
    gloo._threads = options.threads
    gloo._devices = [options.device]
    gloo.global_ranks_in_group = list(group.global_ranks_in_group)
    gloo.group_name = group.group_id
    backend = ProcessGroupGloo(group.store, group.group_rank, group.group_size, gloo)
    # torch does this itself for its own "gloo", and its debug checks rely on it.
    backend._set_sequence_number_for_group()
    return backend


def open_device(interface: str, networks: NodeNetworks, network: str) -> Any:
    """Return gloo's device for `interface`.

    Raises NetworkError, with the interfaces that exist here, when it is missing or has no address.
    """
    try:
        return ProcessGroupGloo.create_device(interface=interface)
    except RuntimeError as error:
        present = ", ".join(name for _, name in socket.if_nameindex())
        raise NetworkError(
            f"network {network} on node {networks.node}: interface {interface!r} cannot be used "
            f"({first_line(error)}); interfaces of this node: {present}; "
            f"set {networks.setting(network)} to one of them that has an address"
        ) from None


ABILITIES = Abilities(torch_name=BACKEND_NAME, device="cpu", networks=None, has_tags=True, waits_on_host=True,
                      divides=False, swaps_pairs=True, uses_store_later=False, connects_late=False, receives_ahead=2)


def is_available() -> bool:
    """Return whether this machine can use it: every torch has it."""
    return True


def open_backend(node: RankNode) -> GlooBackend:
    """Return the backend of a rank on a node."""
    return GlooBackend(node.networks, node.gloo_threads)


class GlooBackend:
    """Makes gloo groups for one rank. Groups on one interface share its device, and so its thread."""

    name = GLOO.name
    abilities = ABILITIES
    streams: Streams | None = None

    def __init__(self, networks: NodeNetworks, threads: int = 2) -> None:
        register()
        self.networks = networks
        self.threads = threads
        self.device = torch.device("cpu")
        self._devices: dict[str, Any] = {}

    def start_world(
        self, store: Store, rank: int, world_size: int, network: str, timeout: timedelta
    ) -> ProcessGroup:
        """Make torch's default group, which is never bound to a GPU, and return it."""
        options = self._options(network, self.threads, timeout)
        dist.init_process_group(
            BACKEND_NAME, store=store, rank=rank, world_size=world_size, timeout=timeout, pg_options=options
        )
        world = dist.group.WORLD
        if world is None:
            raise NetworkError("torch.distributed made no default group")
        return world

    def new_group(
        self, ranks: Sequence[int], kind: str, network: str, timeout: timedelta
    ) -> ProcessGroup | None:
        """Make one group; every rank of the world calls it. Returns None on ranks outside the group."""
        is_member = dist.get_rank() in ranks
        # Transfers between two ranks do not pass through gloo's worker threads.
        threads = 1 if kind == "pipeline" else self.threads
        # torch before 2.13 can only sort the ranks, so ask for the plan's order only where it differs.
        order: dict[str, Any] = {} if list(ranks) == sorted(ranks) else {"sort_ranks": False}
        group = dist.new_group(
            list(ranks),
            backend=BACKEND_NAME,
            timeout=timeout,
            pg_options=self._options(network, threads, timeout) if is_member else None,
            group_desc=f"{kind} on {network}",
            **order,
        )
        return group if is_member else None

    def device_name(self) -> None:
        """Return nothing: ranks share the cores of a node."""

    def describe(self, network: str) -> str:
        """Return the words for messages: which interface carries `network` here."""
        return f"interface {self.networks.interfaces.get(network, 'none')}"

    def set_timeout(self, group: ProcessGroup, timeout: timedelta) -> None:
        """Change the timeout of later collectives. Transfers keep the old one: give theirs to `Work.wait`."""
        group._get_backend(self.device)._set_default_timeout(timeout)

    def yield_to_compute(self) -> None:
        """Let gloo's threads take the cores in batches where others compute on them; call it when all groups are made.

        They wake at every few packets, and as ordinary threads they would interrupt the forward or backward each time
        where a node has no core to spare. Where one is idle nothing changes.
        """
        for thread in Path("/proc/self/task").glob("*"):
            with contextlib.suppress(OSError):
                if (thread / "comm").read_text().strip() in THREAD_NAMES:
                    os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))

    def _options(self, network: str, threads: int, timeout: timedelta) -> GlooOptions:
        interface = self.networks.interface(network)
        if interface not in self._devices:
            self._devices[interface] = open_device(interface, self.networks, network)
        return GlooOptions(interface, network, threads, timeout, self._devices[interface])
