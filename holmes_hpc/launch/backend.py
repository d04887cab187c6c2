"""Which communication library a run on Slurm uses, decided before torch is imported, once for all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_hpc.cluster import Node
from holmes_hpc.launch.node_report import NodeReport

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
