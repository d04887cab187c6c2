"""The options of sbatch: ours, a site's own beside them, and those that exclude each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.quoting import for_sbatch

MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
"""Slurm refuses a job that names two of these."""

HEAD = ("job-name", "output", "open-mode", "chdir", "signal", "requeue", "no-requeue", "dependency", "clusters")
"""Options of the whole job, written once; all others belong to a component."""

_RESERVED = {
    "partition": "cluster.partitions.<label>.partition",
    "nodes": "cluster.partitions.<label>.nodes",
    "ntasks": "cluster.partitions.<label>.nodes and gpus_per_node",
    "ntasks-per-node": "cluster.partitions.<label>.gpus_per_node",
    "cpus-per-task": "cluster.partitions.<label>.cpus_per_task",
    "output": "the run folder, which holds the log (logs/batch.log)",
    "error": "the run folder, which holds the log (logs/batch.log)",
    "array": "the sweep (-m), which makes the arrays",
    "signal": "launch.signal and launch.signal_seconds",
    "requeue": "launch.requeue",
    "no-requeue": "launch.requeue",
    "hetjob": "cluster.shape",
    "wrap": "launch.setup",
    "parsable": "nothing: the job's id is read anyway",
}
_CLUSTER = re.compile(r"[A-Za-z0-9_.-]+")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


def option_name(name: str) -> str:
    """Return a name as sbatch writes it: `mem_per_cpu` and `--mem-per-cpu` are `mem-per-cpu`, `cluster` `clusters`."""
    plain = str(name).removeprefix("--").replace("_", "-")
    return "clusters" if plain == "cluster" else plain


def cluster_of(launch: Any) -> str | None:
    """Return the cluster that `launch.sbatch.clusters` submits to, where a site has several; None: this machine's own.

    Raises ConfigurationError for several names: which one Slurm chose would not be known to who follows the job.
    """
    named = next((value for name, value in launch.sbatch.items() if option_name(name) == "clusters"), None)
    if named is None:
        return None
    if not _CLUSTER.fullmatch(str(named)) or named == "all":
        raise ConfigurationError(f"launch.sbatch.clusters={named}: expected the name of one cluster, such as "
                                 "launch.sbatch.clusters=west")
    return str(named)


def site_options(options: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return further options under sbatch's names. Raises ConfigurationError for one that another setting decides.

    A null is always allowed: it leaves out one of ours.
    """
    named = {option_name(name): value for name, value in options.items()}
    for name, value in named.items():
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"{path}.{name}: no name of an option of sbatch, which is made of letters, digits "
                                     "and `-`; write the name without its value")
        if name == "clusters" and path != "launch.sbatch":
            raise ConfigurationError(f"{path}.{name}={value}: a job is on one cluster; set launch.sbatch.clusters")
        if value is not None and name in _RESERVED:
            raise ConfigurationError(f"{path}.{name}={value}: that is decided by {_RESERVED[name]}; set it there "
                                     f"({path}.{name}=null leaves the option out)")
    return named


def check_memory(options: Mapping[str, Any], label: str) -> None:
    """Refuse two of the three options of memory, which exclude each other."""
    named = [name for name in MEMORY if options.get(name) is not None]
    if len(named) > 1:
        raise ConfigurationError(
            f"cluster.partitions.{label}: {' and '.join(f'--{name}' for name in named)} exclude each other in Slurm; "
            f"keep one of {', '.join(MEMORY)} in launch.sbatch and cluster.partitions.{label}.sbatch"
        )


def option_lines(options: Mapping[str, Any]) -> list[str]:
    """Return options as they stand after `#SBATCH `: True stands alone, None and False are left out."""
    lines = []
    for name, value in options.items():
        if value is True:
            lines.append(f"--{name}")
        elif value is not None and value is not False:
            lines.append(f"--{name}={for_sbatch(str(value), f'the value of --{name}')}")
    return lines


def file_name(path: str) -> str:
    """Return a path for `--output`, in which sbatch would replace `%j` and the like."""
    return path.replace("%", "%%")
