"""What NCCL is told of a node by the environment, and which of its GPUs a rank takes.

NCCL reads these variables once in a process, so they are set before torch is imported.
"""

from __future__ import annotations

from collections.abc import Mapping

from holmes_hpc.errors import ConfigurationError

# NCCL calls both InfiniBand and RoCE "IB". None leaves the choice to NCCL: inside a node it takes NVLink or
# shared memory anyway; EFA, Slingshot and Omni-Path need an external plugin, which NCCL prefers to its own
# networks and whose name changed between versions ("AWS Libfabric", "Libfabric").
NET_NAMES: Mapping[str, str | None] = {
    "local": None,
    "ib": "IB",
    "roce": "IB",
    "ethernet": "Socket",
    "efa": None,
    "slingshot": None,
    "opa": None,
}


def node_environment(hca: str | None, gid_index: int | None, interface: str | None) -> dict[str, str]:
    """Return the NCCL variables of every rank on one node, to be set before torch is imported.

    The leading `=` asks for exact names: without it `mlx5_1` would also select `mlx5_10`.
    """
    environment = {}
    if hca:
        environment["NCCL_IB_HCA"] = "=" + ",".join(name.strip() for name in hca.lstrip("=").split(","))
    if gid_index is not None:
        environment["NCCL_IB_GID_INDEX"] = str(gid_index)
    if interface:
        environment["NCCL_SOCKET_IFNAME"] = f"={interface.lstrip('=')}"
    return environment


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError when `environment` would override the network of every group."""
    if "NCCL_NET" in environment:
        raise ConfigurationError(
            f"NCCL_NET={environment['NCCL_NET']} is set: NCCL lets it override the network of every "
            "process group, so groups inside a fabric and groups across fabrics could not differ; "
            "unset it (look also at launch.setup, module files and the container)"
        )
    if environment.get("NCCL_IB_DISABLE", "0") != "0":
        raise ConfigurationError(
            f"NCCL_IB_DISABLE={environment['NCCL_IB_DISABLE']} is set: groups that the plan puts on "
            "InfiniBand or RoCE could not start; unset it, or describe the nodes with an Ethernet nic"
        )


def device_index(local_rank: int, visible: int, tasks: int) -> int:
    """Return the GPU of a rank: of those that it sees (`visible`), by its number among the `tasks` of its node.

    Where Slurm shows each task its own GPU alone (`--gpus-per-task`, `--gpu-bind`), that one is number 0 whatever the
    rank's number. Raises ConfigurationError where there are fewer GPUs than ranks.
    """
    if visible == 1 and tasks >= 1:
        return 0
    if visible < tasks or local_rank >= visible:
        raise ConfigurationError(
            f"local rank {local_rank} of {tasks} on this node sees {visible} GPUs; ask Slurm for {tasks} on each node "
            "(cluster.partitions.<label>.gpus_per_node or gres), and look at CUDA_VISIBLE_DEVICES in launch.setup"
        )
    return local_rank
