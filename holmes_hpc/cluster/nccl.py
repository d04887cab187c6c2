"""What NCCL is told of a node by the environment, and which of its GPUs a rank takes.

NCCL reads these variables once in a process, so they are set before torch is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


_OF_A_NODE = {"NCCL_IB_HCA": "hca", "NCCL_IB_GID_INDEX": "gid_index", "NCCL_SOCKET_IFNAME": "interface",
              "NCCL_OOB_NET_IFNAME": "interface"}
"""Variables that name what a node has, each with the key of a label that says it for the nodes of that label."""


def check_environment(environment: Mapping[str, str], fabrics: Sequence[str] = ()) -> None:
    """Raise ConfigurationError when `environment` would override the network of every group.

    `fabrics` are those of the cluster's nodes. Where there are several, no variable may name adapters or interfaces:
    all ranks have the environment in which the job was submitted, and their nodes are unlike. Where there is one, what
    it names is taken as told.
    """
    if "NCCL_NET" in environment:
        raise ConfigurationError(
            f"NCCL_NET={environment['NCCL_NET']} is set: NCCL lets it override the network of every "
            "process group, so groups inside a fabric and groups across fabrics could not differ; "
            "unset it (look also at launch.setup, module files and the container)"
        )
    if "NCCL_COMM_ID" in environment:
        raise ConfigurationError(
            f"NCCL_COMM_ID={environment['NCCL_COMM_ID']} is set: all process groups would meet at this one address; "
            "unset it"
        )
    named = [name for name in _OF_A_NODE if name in environment]
    if named and len(fabrics) > 1:
        raise ConfigurationError(
            f"{named[0]}={environment[named[0]]} is set for all ranks, and the cluster has nodes of several fabrics "
            f"({', '.join(fabrics)}): it would choose for every process group; unset it (look also at launch.setup, "
            "module files and the container), and say what the nodes of each label have by "
            f"cluster.partitions.<label>.{_OF_A_NODE[named[0]]}"
        )
    if environment.get("NCCL_LAUNCH_ORDER_IMPLICIT", "0") != "0":
        raise ConfigurationError(
            f"NCCL_LAUNCH_ORDER_IMPLICIT={environment['NCCL_LAUNCH_ORDER_IMPLICIT']} is set: every operation would "
            "wait for those of other process groups that were issued before it, and ranks of a pipeline would wait for "
            "each other for ever; unset it"
        )
    _check_queues(environment)
    if environment.get("NCCL_IB_DISABLE", "0") != "0":
        raise ConfigurationError(
            f"NCCL_IB_DISABLE={environment['NCCL_IB_DISABLE']} is set: groups that the plan puts on "
            "InfiniBand or RoCE could not start; unset it, or describe the nodes with an Ethernet nic"
        )


_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
_FEWEST_QUEUES, _USUAL_QUEUES = 4, 8

DEFAULTS: Mapping[str, str] = {_QUEUES: "32"}
"""What is set where the environment says nothing of it: as many hardware queues as CUDA knows, since streams that share
one wait for each other."""


def hardware_queues(environment: Mapping[str, str]) -> int:
    """Return over how many hardware queues CUDA spreads the streams of a process: 8 where it is told nothing."""
    text = environment.get(_QUEUES, "").strip()
    return int(text) if text.isdigit() else _USUAL_QUEUES


def _check_queues(environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError where process groups would share too few of the GPU's hardware queues.

    An operation that waits for another rank holds up whatever else is in its queue. Megatron-LM asks for one queue,
    since it has one pipeline transfer at a time.
    """
    name, text = _QUEUES, environment.get(_QUEUES, "")
    if text.strip().isdigit() and int(text) < _FEWEST_QUEUES:
        raise ConfigurationError(
            f"{name}={text} is set: the process groups of a rank would share so few hardware queues that ranks of a "
            f"pipeline wait for each other for ever; unset it (8 queues then), or set {_FEWEST_QUEUES} to 32 (look "
            "also at launch.setup, module files and the container)"
        )


_SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"


def may_share_gpus(environment: Mapping[str, str]) -> bool:
    """Say whether NCCL was told to let ranks share a GPU, which releases from 2.30 on can, for trials."""
    return environment.get(_SHARING, "0").strip() not in ("", "0")


def device_index(local_rank: int, visible: int, tasks: int, *, shared: bool = False) -> int:
    """Return the GPU of a rank: of those that it sees (`visible`), by its number among the `tasks` of its node.

    Where ranks may share one (`shared`), they take turns.

    Where Slurm shows each task its own GPU alone (`--gpus-per-task`, `--gpu-bind`), that one is number 0 whatever the
    rank's number. Raises ConfigurationError where there are fewer GPUs than ranks.
    """
    if visible == 1 and tasks >= 1:
        return 0
    if shared and visible:
        return local_rank % visible
    if visible < tasks or local_rank >= visible:
        raise ConfigurationError(
            f"local rank {local_rank} of {tasks} on this node sees {visible} GPUs; ask Slurm for {tasks} on each node "
            "(cluster.partitions.<label>.gpus_per_node or gres), and look at CUDA_VISIBLE_DEVICES in launch.setup"
        )
    return local_rank
