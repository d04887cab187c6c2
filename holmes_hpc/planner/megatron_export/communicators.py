"""Megatron's communicator file: `net_name` for each kind of group that it creates.

Megatron-core names its groups by kind (`parallel_state.initialize_model_parallel`), and every rank reads the file for
itself. So a kind has one network on all ranks of a fabric: Ethernet, if any group of the kind there leaves the fabric.
The members of a group always agree: all of those that leave a fabric use Ethernet, and the rest are of one fabric.
"""

from __future__ import annotations

from collections.abc import Mapping

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.nccl import NET_NAMES
from holmes_hpc.planner.megatron_export.mapping import Grid

ETHERNET = "ethernet"
_VARIES = {
    "dp": ("dp", "dp_cp", "ep_dp"),
    "tp": ("tp", "tp_cp", "ep_tp", "tp_ep_mp"),
    "pp": ("pp",),
    "tp-pp": ("mp", "tp_ep_pp"),
    "tp-dp": ("tp_dp", "tp_dp_cp"),
    "tp-dp-pp": ("intra_dist_opt_instance",),
}
"""Which of tensor, data and pipeline index varies in a group, to Megatron's names of such groups (without context
and expert parallelism)."""


def group_kinds(grid: Grid) -> dict[str, list[tuple[int, ...]]]:
    """Return Megatron's groups of two ranks and more by kind, of Slurm's ranks."""
    kinds = {name: grid.groups(varies) for varies, names in _VARIES.items() for name in names}
    if grid.pipeline > 1:
        kinds["embd"] = [(ranks[0], ranks[-1]) for ranks in kinds["pp"]]
    return {name: groups for name, groups in kinds.items() if len(groups[0]) > 1}


def kind_networks(grid: Grid, cluster: ClusterDescription, one_network: str | None
                  ) -> dict[str, dict[str, str]]:
    """Return, by fabric and kind of group, the network; kinds whose groups stay inside nodes are left out.

    `one_network` is that of a plan which uses one network for all groups.
    """
    networks: dict[str, dict[str, str]] = {fabric: {} for fabric in cluster.fabrics}
    for kind, groups in group_kinds(grid).items():
        for ranks in groups:
            shared = cluster.shared_network(ranks)
            if shared == "local":
                continue
            for fabric in {cluster.node_of(rank).fabric for rank in ranks}:
                known = networks[fabric].get(kind)
                networks[fabric][kind] = one_network or (ETHERNET if ETHERNET in (shared, known) else shared)
    return networks


def communicator_files(networks: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the text of the file of every fabric; kinds on networks without a name are left to NCCL."""
    return {fabric: _text(kinds) for fabric, kinds in networks.items()}


def _text(kinds: Mapping[str, str]) -> str:
    lines = []
    for kind, network in kinds.items():
        name = NET_NAMES[network]
        lines.append(f"{kind}: {{net_name: {name}}}" if name else f"# {kind}: {network}, left to NCCL's plugin")
    if not any(NET_NAMES[network] for network in kinds.values()):
        lines.append("{}")  # Megatron reads a mapping, not nothing
    return "\n".join(lines) + "\n"
