"""What a communication backend can do with process groups: each states it in its own module, of its name.

`values/backend_kinds.py` lists the backends, with what is to know of them before torch is loaded.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from holmes_hpc.comm.devices import DeviceName
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.comm.streams import Streams
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.values.backend_kinds import BACKEND_KINDS, preferred_backends


@dataclass(frozen=True)
class Abilities:
    """What a backend can do.

    `torch_name` is what torch calls its groups, `device` the type of the tensors that travel, `networks` the families
    that a group can be put on (None: all that a node has an interface for).

    With `has_tags` messages of one pair are matched by their tags. Without, they are received in the order in which
    they are sent, and a receive that waits holds up the send behind it: an edge then needs a second group, for its way
    back. With `waits_on_host` waiting for an operation stops this thread, at most for the timeout; otherwise the GPU's
    stream alone waits. `divides` says that its reduce-scatter moves and adds up the parts alone, not all of a buffer
    for every rank; otherwise parts are exchanged and summed here. With `swaps_pairs` two ranks exchange parts faster by
    messages than by a collective. `uses_store_later` says that it asks the store after its groups have proved to work.
    One that `connects_late` sets up each kind of operation at its first use and holds the host until all members are
    there, so all kinds are used once before the training. `receives_ahead` are posted before their turn for each
    neighbour, so that a message can travel under compute.
    """

    torch_name: str
    device: str
    networks: tuple[str, ...] | None
    has_tags: bool
    waits_on_host: bool
    divides: bool
    swaps_pairs: bool
    uses_store_later: bool
    connects_late: bool
    receives_ahead: int


class Backend(Protocol):
    """What makes the groups of a rank. `streams` are the queues of its device, None where the host waits itself."""

    name: str
    abilities: Abilities
    device: torch.device
    streams: Streams | None

    def new_group(
        self, ranks: tuple[int, ...], kind: str, network: str, timeout: timedelta
    ) -> ProcessGroup | None:
        """Make one group; every rank of the world calls it. Returns None on ranks outside the group."""

    def device_name(self) -> DeviceName | None:
        """Return what the driver calls the device that its tensors lie on; None where ranks may share it."""

    def describe(self, network: str) -> str:
        """Return the words for messages: what carries `network` here."""

    def set_timeout(self, group: ProcessGroup, timeout: timedelta) -> None:
        """Change the timeout of later operations."""


@dataclass(frozen=True)
class RankNode:
    """What a backend is opened with: the networks of this rank's node, its GPU if it has one, and gloo's threads.

    `device_queues`: over how many hardware queues of the GPU its streams are spread.
    """

    networks: NodeNetworks
    device: torch.device | None
    gloo_threads: int
    device_queues: int = 8


def open_backend(name: str, node: RankNode) -> Backend:
    """Return the backend of a name, ready to make groups. Raises ConfigurationError for one that is not known."""
    if name not in BACKEND_KINDS:
        raise ConfigurationError(f"launch.backend={name}: unknown; valid: {', '.join(BACKEND_KINDS)}")
    backend: Backend = _module(name).open_backend(node)
    return backend


def available_backend() -> str:
    """Return the first backend that torch has and this machine can use, those for GPUs first."""
    return next(kind.name for kind in preferred_backends() if _module(kind.name).is_available())


def abilities_of(group: ProcessGroup) -> Abilities:
    """Return what the backend of a group can do."""
    return _by_torch_name()[dist.get_backend(group)]


@functools.cache
def _by_torch_name() -> dict[str, Abilities]:
    return {each.torch_name: each for each in (_module(name).ABILITIES for name in BACKEND_KINDS)}


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"holmes_hpc.comm.{name}")
