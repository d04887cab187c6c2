"""Puts the job that this process belongs to back into the queue, on other nodes where some are to be left out.

Runs in the batch script, outside of any container: there `scontrol` is found where ranks may lack it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holmes_hpc.cluster.hostlist import HostlistError, expand_hostlist
from holmes_hpc.cluster.slurm import SlurmOutputError, read_allocation
from holmes_hpc.cluster.slurm.nodes import read_scontrol_nodes
from holmes_hpc.cluster.slurm.records import read_records, value_of
from holmes_hpc.errors import RunFailedError
from holmes_hpc.submit.commands import SlurmCommandError, run_command
from holmes_hpc.submit.patience import patiently

PATIENCE_SECONDS = 120.0
"""How long a controller that is busy or restarts is asked before a job that was preempted is given up."""

_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "PREEMPTED", "NODE_FAIL")


class CancelledError(RunFailedError):
    """Somebody wants an end of this job."""


@dataclass(frozen=True)
class OwnComponent:
    """A component of this job: its id (`3+1`), state, nodes, and the nodes that it already goes without."""

    id: str
    state: str
    nodes: tuple[str, ...]
    excluded: tuple[str, ...]


def own_job_id(environment: Mapping[str, str]) -> str | None:
    """Return the id by which this job is requeued as a whole: the leader's, or `A_T`; None outside of a job."""
    try:
        return read_allocation(environment).requeue_id
    except SlurmOutputError:
        return environment.get("SLURM_JOB_ID")


def own_components(job_id: str) -> tuple[OwnComponent, ...]:
    """Return the components of a job. Raises SlurmCommandError where Slurm does not tell."""
    records = read_records(run_command(["scontrol", "show", "job", job_id]), "JobId")
    return tuple(OwnComponent(_id(record), record.get("JobState", ""), _nodes(record, "NodeList"),
                              _nodes(record, "ExcNodeList")) for record in records)


def requeued_by_slurm(job_id: str) -> bool:
    """Say whether Slurm itself has put the job back into the queue already, as after a node failed."""
    try:
        return any(component.state in _WAITING for component in own_components(job_id))
    except SlurmCommandError:
        return False


def cancelled_components(components: Sequence[OwnComponent]) -> list[str]:
    """Return the ids of components that somebody cancelled while this script's own goes on.

    Slurm preempts and requeues a job as a whole; only a user ends one component alone. Until its nodes are free it
    counts as completing.
    """
    if not components or components[0].state != "RUNNING":
        return []
    return [component.id for component in components if component.state in ("CANCELLED", "COMPLETING")]


def failed_nodes(names: Iterable[str]) -> list[str]:
    """Return those of some nodes that Slurm counts as down. Raises SlurmCommandError where Slurm does not tell."""
    listed = ",".join(names)
    found = read_scontrol_nodes(run_command(["scontrol", "show", "node", listed])) if listed else ()
    return [node.name for node in found if not node.usable]


def requeue(job_id: str, exclude: Iterable[str] = ()) -> str:
    """Requeue this job, without the nodes `exclude` from now on; return what was done in words.

    A controller that is busy or restarts is asked again. Raises SlurmCommandError where Slurm refuses or `scontrol` is
    missing, CancelledError where somebody has cancelled a component.
    """
    excluded = set(exclude)
    components = patiently(lambda left: own_components(job_id), PATIENCE_SECONDS)
    cancelled = cancelled_components(components)
    if cancelled:
        raise CancelledError(f"its component {', '.join(cancelled)} was cancelled")
    # From here on Slurm ends this script, but the nodes are still to be told.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    patiently(lambda left: _ask_to_requeue(job_id), PATIENCE_SECONDS)
    for component in components:
        if excluded & set(component.nodes):
            without = ",".join(sorted(excluded | set(component.excluded)))
            words = ["scontrol", "update", f"JobId={component.id}", f"ExcNodeList={without}"]
            patiently(lambda left, words=words: run_command(words), PATIENCE_SECONDS)  # type: ignore[misc]
    return f"job {job_id} is queued again" + (f" without {', '.join(sorted(excluded))}" if excluded else "")


def _ask_to_requeue(job_id: str) -> None:
    try:
        run_command(["scontrol", "requeue", job_id])
    except SlurmCommandError:
        if not requeued_by_slurm(job_id):  # by itself, or by a request whose answer was lost
            raise


def _id(record: Mapping[str, str]) -> str:
    return f"{record['HetJobId']}+{record['HetJobOffset']}" if "HetJobId" in record else record["JobId"]


def _nodes(record: Mapping[str, str], key: str) -> tuple[str, ...]:
    try:
        return tuple(expand_hostlist(value_of(record, key) or ""))
    except HostlistError:
        return ()
