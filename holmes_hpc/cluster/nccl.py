"""What NCCL calls networks, and the environment that it needs on a node. Needs neither NCCL nor torch."""

from __future__ import annotations

from collections.abc import Mapping

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
    """Return the NCCL variables of every rank on one node, to be set before the ranks start.

    The leading `=` asks for exact names: without it `mlx5_1` would also select `mlx5_10`.
    """
    environment = {}
    if hca:
        environment["NCCL_IB_HCA"] = f"={hca.lstrip('=')}"
    if gid_index is not None:
        environment["NCCL_IB_GID_INDEX"] = str(gid_index)
    if interface:
        environment["NCCL_SOCKET_IFNAME"] = f"={interface.lstrip('=')}"
    return environment
