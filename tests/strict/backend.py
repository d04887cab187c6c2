"""The strict backend, which stands where NCCL's stands and states the same abilities."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from holmes_hpc.comm import backends, nccl
from holmes_hpc.comm.backends import RankNode
from holmes_hpc.comm.devices import DeviceName
from holmes_hpc.comm.gloo import GlooBackend
from holmes_hpc.values.backend_kinds import BACKEND_KINDS, BackendKind
from tests.strict.ahead import run_ahead
from tests.strict.communicator import Communicator
from tests.strict.device import Device
from tests.strict.rules import Rules

NAME = "strict"
ABILITIES = dataclasses.replace(nccl.ABILITIES, torch_name=NAME, device="cpu", networks=None, uses_store_later=False)
KIND = BackendKind(NAME, "the strict backend", "NCCL's rules over gloo")


def abilities(rules: Rules) -> backends.Abilities:
    """Return NCCL's abilities, but for what the rules say."""
    return dataclasses.replace(ABILITIES, has_tags=rules.one_group_an_edge)


class StrictBackend:
    """Makes strict communicators for one rank."""

    name = NAME

    def __init__(self, node: RankNode, rules: Rules, folder: Path) -> None:
        self._gloo = GlooBackend(node.networks, 1)
        self.device = torch.device("cpu")
        self.abilities = abilities(rules)
        self._rules, self._folder = rules, folder
        self.strict_device: Device | None = None
        self._described = ""
        if rules.ahead:
            self.strict_device = Device(rules, folder)
        self.streams = self.strict_device.queues if self.strict_device is not None else None
        if self.streams is not None:
            run_ahead(self.streams)
        if not hasattr(dist.Backend, NAME.upper()):
            dist.Backend.register_backend(NAME, self._create, extended_api=True, devices=["cpu"])

    def _create(self, given: Any, options: Any) -> ProcessGroup:
        if self.strict_device is None:
            self.strict_device = Device(self._rules, self._folder)
        self.strict_device.belongs_to(dist.get_rank())
        return Communicator(given, options, self.strict_device, self._described)

    def new_group(self, ranks: Sequence[int], kind: str, network: str, timeout: timedelta) -> ProcessGroup | None:
        """Make one group; every rank of the world calls it. Returns None on ranks outside the group."""
        member = dist.get_rank() in ranks
        order: dict[str, Any] = {} if list(ranks) == sorted(ranks) else {"sort_ranks": False}
        self._described = f"{kind} ({network})"
        group = dist.new_group(
            list(ranks), backend=NAME, timeout=timeout, group_desc=f"{kind} on {network}",
            pg_options=self._gloo._options(network, 1, timeout) if member else None, **order)
        return group if member else None

    def device_name(self) -> DeviceName | None:
        """Return the GPU that the rules give this rank."""
        names = self._rules.devices
        return DeviceName(*names[dist.get_rank()]) if names else None

    def describe(self, network: str) -> str:
        """Return the words for messages."""
        return f"strict over {network}"

    def set_timeout(self, group: ProcessGroup, timeout: timedelta) -> None:
        """Keep the timeout of later operations."""
        group.limit = timeout  # type: ignore[attr-defined]


@contextmanager
def strict_backend(rules: Rules, folder: Path) -> Iterator[None]:
    """Let `launch.backend=strict` be known meanwhile, with these rules; ranks forked inside find it."""
    module = type(sys)("holmes_hpc.comm.strict")
    module.ABILITIES = abilities(rules)  # type: ignore[attr-defined]
    module.open_backend = lambda node: StrictBackend(node, rules, folder)  # type: ignore[attr-defined]
    module.is_available = lambda: True  # type: ignore[attr-defined]
    kinds = {**BACKEND_KINDS, NAME: KIND}
    backends._by_torch_name.cache_clear()
    sys.modules[module.__name__] = module
    try:
        with mock.patch.object(backends, "BACKEND_KINDS", kinds):
            yield
    finally:
        del sys.modules[module.__name__]
        backends._by_torch_name.cache_clear()
