"""Which ports of RDMA adapters a rank's groups go by."""

from __future__ import annotations

from holmes_hpc.cluster.adapters import Ports
from holmes_hpc.cluster.nics import NICS
from holmes_hpc.launch.rank.settings import RankSettings
from holmes_hpc.values.backend_kinds import BACKEND_KINDS


def ports_of(settings: RankSettings) -> Ports | None:
    """Return the ports of the adapters that this rank's node uses, None where its groups go by interfaces."""
    node = settings.cluster.node_of(settings.rank)
    if settings.backend is None or not BACKEND_KINDS[settings.backend].uses_adapters or not NICS[node.nic].rdma:
        return None
    return Ports(adapters_of(settings)) or None


def adapters_of(settings: RankSettings) -> list[str]:
    """Return the names of the adapters that the cluster file gives this rank's node, none where it leaves them open."""
    hca = settings.cluster.node_of(settings.rank).hca
    return [name.strip().partition(":")[0].lstrip("=") for name in (hca or "").split(",") if name.strip()]
