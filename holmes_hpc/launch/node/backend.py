"""Which communication library a run uses; on Slurm decided before torch is imported, once for all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_hpc.cluster import ClusterDescription, Node
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.node.node_report import NodeReport
from holmes_hpc.words import counted

AUTO, NCCL, GLOO = "auto", "nccl", "gloo"
_NO_GPU = "cpu"


def decide_backend(wanted: str, nodes: Sequence[tuple[Node, NodeReport]]) -> str:
    """Return `nccl` or `gloo` for `launch.backend` and the nodes, each described and as it reports itself.

    `auto` is NCCL where the cluster file gives all nodes GPUs and one of them has some: the others that have none are
    then named as mismatches, where ranks that each looked for themselves would wait for each other in two libraries.
    """
    if wanted != AUTO:
        return wanted
    described = all(node.gpu != _NO_GPU for node, _ in nodes)
    return NCCL if described and any(report.gpus for _, report in nodes) else GLOO


def backend_here(wanted: str, mode: str, cluster: ClusterDescription, gpus: int) -> str | None:
    """Return the library of an emulated or local run on this machine's `gpus`; None: NCCL, where torch has it.

    `auto` is gloo where the cluster file says that ranks compute on CPUs. Raises ConfigurationError where
    `launch.backend=nccl` cannot work: emulated ranks compute on the CPU. Local ones may use this machine's GPUs: NCCL
    wants one for each rank, and each node of a cluster counts its GPUs from 0.
    """
    if mode == "emulated":
        why = "the ranks of an emulated run compute on this machine's CPU, and NCCL is for GPUs"
    elif gpus < cluster.world_size or len(cluster.nodes) > 1:
        why = (f"NCCL needs a GPU for each rank, in a local run on one node; this machine has {counted(gpus, 'GPU')}, "
               f"and the cluster {counted(cluster.world_size, 'rank')} on {counted(len(cluster.nodes), 'node')}")
    elif wanted == AUTO:
        return GLOO if cluster.nodes[0].gpu == _NO_GPU else None
    else:
        return wanted
    if wanted == NCCL:
        raise ConfigurationError(f"launch.backend=nccl in {mode} mode: {why}. Set launch.backend=gloo or auto.")
    return GLOO
