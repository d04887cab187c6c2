"""What of the caller's environment comes to the ranks of a job, and is refused before the job waits for hours.

The ranks refuse it too, since module files, containers and batch scripts set variables as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.node.backend import AUTO, check_environment, told_of_node
from holmes_hpc.submit.options import option_name
from holmes_hpc.values.backend_kinds import BACKEND_KINDS, BackendKind, preferred_backends

_NO_GPU = "cpu"


def check_travelling(config: Any, cluster: ClusterDescription, environment: Mapping[str, str], *,
                     submitted: bool) -> None:
    """Raise ConfigurationError for a variable that would come to the ranks and break the run.

    `submitted`: by a job of its own, whose options (`export`) say what comes along; else by srun alone, in a job that
    is there already. What the cluster file sets for the ranks itself is no matter, and neither is what `launch.setup`
    unsets.
    """
    kind = _backend(str(config.launch.backend), cluster)
    if kind.environment is None:
        return
    travels = exported(environment, _of_sbatch(config) if submitted else None)
    travels = exported(travels, _of_srun(config.launch.srun_args))
    if submitted:
        travels = {name: value for name, value in travels.items() if not _unset(name, config.launch.setup)}
    fabrics = list(dict.fromkeys(node.fabric for node in cluster.nodes))
    told = {frozenset(told_of_node(kind, node)) for node in cluster.nodes}
    try:
        for names in told:
            check_environment(kind, {name: value for name, value in travels.items() if name not in names}, fabrics)
    except ConfigurationError as error:
        raise ConfigurationError(f"in the environment of this command, which the ranks get: {error}") from error


def exported(environment: Mapping[str, str], told: str | None) -> dict[str, str]:
    """Return what of an environment Slurm's option `--export` hands on: `ALL`, `NONE`, `NIL`, or names and `A=1`."""
    if told is None:
        return dict(environment)
    words = [word.strip() for word in told.split(",")]
    kept = dict(environment) if "ALL" in {word.upper() for word in words} else {}
    for word in words:
        name, sign, value = word.partition("=")
        if sign:
            kept[name] = value
        elif name in environment:
            kept[name] = environment[name]
    return kept


def _backend(wanted: str, cluster: ClusterDescription) -> BackendKind:
    """Return the backend that the ranks will take as far as the cluster file tells."""
    if wanted != AUTO:
        return BACKEND_KINDS[wanted]
    has_gpus = all(node.gpu != _NO_GPU for node in cluster.nodes)
    return next(kind for kind in preferred_backends() if has_gpus or not kind.needs_gpus)


def _of_sbatch(config: Any) -> str | None:
    """Return `--export` of the job's first component, in which the batch script runs."""
    first = next(iter(config.cluster.partitions.values()), None)
    for options in (first.sbatch if first is not None else {}, config.launch.sbatch):
        for name, value in options.items():
            if option_name(name) == "export":
                return None if value is None else str(value)
    return None


def _of_srun(arguments: Sequence[str]) -> str | None:
    found = None
    for number, word in enumerate(map(str, arguments)):
        if word.startswith("--export="):
            found = word.partition("=")[2]
        elif word == "--export" and number + 1 < len(arguments):
            found = str(arguments[number + 1])
    return found


def _unset(name: str, setup: Sequence[str]) -> bool:
    return any(re.search(rf"\bunset\b[^;&|#]*\b{re.escape(name)}\b", str(line)) for line in setup)
