"""The communication backends that there are: what settings and launchers need to know of each before torch is loaded.

To add one, write its row here and its module `comm/NAME.py`, which states what it can do with groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BackendKind:
    """One backend: its name in settings, what people call it, and a line of help.

    With `needs_gpus` every rank needs a GPU, and the automatic choice takes it before others where there are some. With
    `uses_adapters` it reaches a fast network by the node's adapters, otherwise by interfaces with an address. One that
    `knows_nodes` finds its own way inside and between the nodes of a group; for others the plan says it.
    `environment` is the module, without torch, whose `check_environment(environment, fabrics)` refuses variables that
    would break a run and whose `node_environment(hca, gid_index, interface)` returns those of a node's ranks;
    `variables` is how their names begin.
    """

    name: str
    title: str
    help: str
    needs_gpus: bool = False
    uses_adapters: bool = False
    knows_nodes: bool = False
    environment: str | None = None
    variables: str = ""


GLOO = BackendKind("gloo", "gloo", "over the interfaces of the nodes, for ranks that compute on CPUs")
NCCL = BackendKind("nccl", "NCCL", "over the adapters of the nodes, for ranks that compute on GPUs", needs_gpus=True,
                   uses_adapters=True, knows_nodes=True, environment="holmes_hpc.cluster.nccl", variables="NCCL_")

BACKEND_KINDS: Mapping[str, BackendKind] = {kind.name: kind for kind in (GLOO, NCCL)}


def preferred_backends() -> tuple[BackendKind, ...]:
    """Return the backends in the order in which the automatic choice looks at them: those for GPUs first."""
    return tuple(sorted(BACKEND_KINDS.values(), key=lambda kind: not kind.needs_gpus))
