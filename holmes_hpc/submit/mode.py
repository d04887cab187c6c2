"""Where a run goes: `launch.mode`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.emulation.namespaces import namespaces_available
from holmes_hpc.errors import LaunchImpossibleError
from holmes_hpc.submit.commands import known_partitions


@dataclass(frozen=True)
class Decision:
    """The mode and a line that says why.

    `rank`: this process is one rank of a step that srun started; `srun`: start a step in the allocation that this
    process runs in; `slurm`: submit; `emulated` and `local`: here.
    """

    mode: str
    reason: str


@dataclass(frozen=True)
class Probes:
    """How to find out what this machine offers; tests give their own."""

    partitions: Callable[[], set[str] | None] = known_partitions
    namespaces: Callable[[], tuple[bool, str]] = namespaces_available


def decide_mode(config: Any, cluster: ClusterDescription, environment: Mapping[str, str],
                probes: Probes | None = None) -> Decision:
    """Return where a run goes.

    `auto` tries in this order: a rank of a step with as many tasks as the cluster has GPUs; a step inside an
    allocation; Slurm, where a controller answers and knows every partition of the cluster file; the emulated cluster;
    plain local processes. Raises LaunchImpossibleError when a forced mode cannot work here.
    """
    probes = probes or Probes()
    wanted = str(config.launch.mode)
    if wanted == "local":
        return Decision("local", "plain local processes, as launch.mode=local says; NICs are not emulated")
    if wanted in ("auto", "slurm"):
        decision = _slurm(config, cluster, environment, probes)
        if decision.mode != "none":
            return decision
        if wanted == "slurm":
            raise LaunchImpossibleError(f"launch.mode=slurm is impossible here: {decision.reason}; "
                                        "use launch.mode=auto, emulated or local")
    available, reason = probes.namespaces()
    if available:
        return Decision("emulated", "emulated cluster on this machine (network namespaces)")
    if wanted == "emulated":
        raise LaunchImpossibleError(f"launch.mode=emulated is impossible here: {reason}; or use launch.mode=local")
    return Decision("local", f"plain local processes, NICs are not emulated: {reason}")


def _slurm(config: Any, cluster: ClusterDescription, environment: Mapping[str, str], probes: Probes) -> Decision:
    if is_rank(environment, cluster.world_size):
        return Decision("rank", f"rank {environment['SLURM_PROCID']} of step {environment['SLURM_STEP_ID']} of job "
                                f"{environment.get('SLURM_JOB_ID', '?')}")
    if environment.get("SLURM_JOB_ID") and not _is_alone(environment):
        return Decision("srun", f"a step inside the allocation {environment['SLURM_JOB_ID']}")
    if not cluster_names_partitions(config):
        return Decision("none", "the cluster's short form names no Slurm partition; write cluster.partitions")
    known = probes.partitions()
    if known is None:
        return Decision("none", "no Slurm controller answers (sinfo); check SLURM_CONF, or run on a login node")
    wanted = {str(part.partition or label) for label, part in config.cluster.partitions.items()}
    unknown = sorted(wanted - known)
    if unknown:
        return Decision("none", f"Slurm knows no partition {', '.join(unknown)}; it knows {', '.join(sorted(known))}; "
                                "set cluster.partitions.<label>.partition")
    return Decision("slurm", f"Slurm, partitions {', '.join(sorted(wanted))}")


def is_rank(environment: Mapping[str, str], world_size: int) -> bool:
    """Say whether a site's own srun started this process as one of `world_size` ranks.

    A step under a pseudo-terminal (`srun --pty`, as notebooks are started) or with another number of tasks is not ours.
    """
    return ("SLURM_STEP_ID" in environment and "SLURM_PTY_PORT" not in environment
            and environment.get("SLURM_STEP_NUM_TASKS") == str(world_size))


def cluster_names_partitions(config: Any) -> bool:
    """Say whether the cluster file has labels, which stand for Slurm partitions."""
    return bool(config.cluster.partitions)


def _is_alone(environment: Mapping[str, str]) -> bool:
    """Say whether this is one task of a step of another size: a step started from here could not get its nodes."""
    return "SLURM_STEP_ID" in environment and "SLURM_PTY_PORT" not in environment
