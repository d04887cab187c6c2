"""The plan of a job of Slurm, wherever one is made: at the submission, in a site's own step, anew on other nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.planner import plan
from holmes_hpc.values import Plan


def plan_for_job(config: Any, cluster: ClusterDescription,
                 progress: Callable[[str], None] | None = None) -> Plan:
    """Return the plan for a job that holds all nodes of `cluster`; it and `progress` are as in `plan`.

    Raises ConfigurationError where the plan leaves nodes out (`parallel.leave_nodes_out`): the job would hold them for
    nothing, and its step have ranks on them that the plan knows nothing of. Else as `plan` does.
    """
    chosen = plan(config, mode="slurm", cluster=cluster, progress=progress)
    used = {place.slot for place in chosen.ranks}
    idle = [node.slot for node in cluster.nodes if node.slot not in used]
    if idle:
        raise ConfigurationError(f"the plan leaves out {', '.join(idle)}, which the job would hold for nothing. Lower "
                                 "cluster.partitions.LABEL.nodes by them, or set parallel.leave_nodes_out=false.")
    return chosen
