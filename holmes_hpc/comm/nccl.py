"""NCCL process groups, each with its own network. Not yet run on NCCL.

Inside a process the choice per group is only which network NCCL uses (`net_name` in that group's own
options). Which HCA, which GID and which interface is the same for all groups of a node, and NCCL reads it
once, so it goes into the environment before torch is imported (`cluster/nccl.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from holmes_hpc.cluster.nccl import NET_NAMES, check_environment, node_environment
from holmes_hpc.comm.backends import Abilities, RankNode
from holmes_hpc.comm.devices import DeviceName, gpu_name
from holmes_hpc.comm.streams import CudaStreams, Streams
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.values.backend_kinds import NCCL

if TYPE_CHECKING:
    from holmes_hpc.comm.networks import NodeNetworks

__all__ = ["NET_NAMES", "NcclBackend", "check_environment", "group_options", "new_options", "node_environment"]

OptionsFactory = Callable[[], Any]


def new_options() -> Any:
    """Return fresh `ProcessGroupNCCL.Options`. Raises ConfigurationError when torch has no NCCL."""
    if not dist.is_nccl_available():
        raise ConfigurationError(
            "launch.backend=nccl: this torch was built without NCCL; install a CUDA build of torch, or set "
            "launch.backend=gloo"
        )
    return dist.ProcessGroupNCCL.Options()


EDGE_CTAS = 16
"""The most blocks that a transfer between stages takes of a GPU: receives wait for their senders in some, beside those
of the other groups and the computation, and must not fill it (a GPU has some 80 to 150)."""


def group_options(network: str, factory: OptionsFactory = new_options, *, kind: str = "",
                  timeout: timedelta | None = None) -> Any:
    """Return the options of one group on `network`.

    They are fresh for each group, because torch writes into them. The transfers of a `pipeline` go before other kernels
    and take few of the GPU's blocks. Raises ConfigurationError for a network that has no NCCL name.
    """
    if network not in NET_NAMES:
        raise ConfigurationError(f"network {network!r}: NCCL knows {', '.join(NET_NAMES)}")
    options = factory()
    net_name = NET_NAMES[network]
    if net_name is not None:
        options.config.net_name = net_name
    # A communicator that shares its parent's resources must also use the parent's network.
    options.config.split_share = 0
    if timeout is not None:
        options._timeout = timeout  # torch warns on each rank where it differs from new_group's
    if kind == "pipeline":
        options.is_high_priority_stream = True
        options.config.max_ctas = EDGE_CTAS
    return options


# NCCL ignores tags and runs the transfers of a pair one after another. Its watchdog asks the store for other ranks'
# errors as long as groups exist. From 2.22 on it connects each algorithm at its first use, on the host. Two receives
# ahead hold up the sends behind them where communicators share a hardware queue; one suffices for every schedule.
ABILITIES = Abilities(torch_name="nccl", device="cuda", networks=tuple(NET_NAMES), has_tags=False, waits_on_host=False,
                      divides=True, swaps_pairs=False, uses_store_later=True, connects_late=True, receives_ahead=1)


def is_available() -> bool:
    """Return whether torch has it and this machine has GPUs for it."""
    return torch.cuda.is_available() and bool(dist.is_nccl_available())


def open_backend(node: RankNode) -> NcclBackend:
    """Return the backend of a rank on a node, on its GPU or on the current one."""
    return NcclBackend(node.networks, node.device or torch.device("cuda", torch.cuda.current_device()),
                       queues=node.device_queues)


class NcclBackend:
    """Makes NCCL groups for one rank on its GPU. Not yet run on NCCL.

    The world group is gloo's and no NCCL communicator spans the world: one over unlike NICs could not be
    built. torch's default group is therefore never bound to a GPU; each NCCL group is, which connects it at
    once instead of splitting it from a parent.
    """

    name = NCCL.name
    abilities = ABILITIES

    def __init__(
        self, networks: NodeNetworks, device: torch.device, factory: OptionsFactory = new_options, *, queues: int = 8
    ) -> None:
        self.networks = networks
        self.device = device
        self.streams: Streams | None = CudaStreams(device, queues)
        self._factory = factory

    def new_group(
        self, ranks: Sequence[int], kind: str, network: str, timeout: timedelta
    ) -> ProcessGroup | None:
        """Make one group; every rank of the world calls it. Returns None on ranks outside the group."""
        order: dict[str, Any] = {} if list(ranks) == sorted(ranks) else {"sort_ranks": False}
        group = dist.new_group(
            list(ranks),
            backend=ABILITIES.torch_name,
            timeout=timeout,
            pg_options=group_options(network, self._factory, kind=kind, timeout=timeout),
            group_desc=f"{kind} on {network}",
            device_id=self.device,
            **order,
        )
        return group if dist.get_rank() in ranks else None

    def device_name(self) -> DeviceName:
        """Return what the driver calls this rank's GPU."""
        return gpu_name(self.device)

    def describe(self, network: str) -> str:
        """Return the words for messages: what NCCL was told for `network` here."""
        told = [f"net_name {NET_NAMES.get(network) or 'unset'}"]
        told += [f"{name}={value}" for name, value in self.networks.nccl_environment.items()]
        return ", ".join(told)

    def set_timeout(self, group: ProcessGroup, timeout: timedelta) -> None:
        """Change the timeout of later operations."""
        group._get_backend(self.device)._set_default_timeout(timeout)
