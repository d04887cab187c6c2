"""Puts the job that this process belongs to back into the queue, on other nodes where some are to be left out.

Runs in the batch script, outside of any container: there `scontrol` is found where ranks may lack it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holmes_hpc.cluster.hostlist import HostlistError, expand_hostlist
from holmes_hpc.cluster.slurm import SlurmOutputError, read_allocation
from holmes_hpc.cluster.slurm.records import read_records, value_of
from holmes_hpc.submit.commands import SlurmCommandError, run_command

_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "PREEMPTED", "NODE_FAIL")


@dataclass(frozen=True)
class OwnComponent:
    """A component of this job: its own number, state, nodes, and the nodes that it already goes without."""

    own_id: str
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
    return tuple(OwnComponent(record["JobId"], record.get("JobState", ""), _nodes(record, "NodeList"),
                              _nodes(record, "ExcNodeList")) for record in records)


def requeued_by_slurm(job_id: str) -> bool:
    """Say whether Slurm itself has put the job back into the queue already, as after a node failed."""
    try:
        return any(component.state in _WAITING for component in own_components(job_id))
    except SlurmCommandError:
        return False


def requeue(job_id: str, exclude: Iterable[str] = ()) -> str:
    """Requeue this job, without the nodes `exclude` from now on; return what was done in words.

    Raises SlurmCommandError where Slurm refuses or `scontrol` is missing.
    """
    excluded = set(exclude)
    components = own_components(job_id) if excluded else ()
    # From here on Slurm ends this script, but the nodes are still to be told.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        run_command(["scontrol", "requeue", job_id])
    except SlurmCommandError:
        if not requeued_by_slurm(job_id):
            raise
    for component in components:
        if excluded & set(component.nodes):
            without = sorted(excluded | set(component.excluded))
            run_command(["scontrol", "update", f"JobId={component.own_id}", f"ExcNodeList={','.join(without)}"])
    return f"job {job_id} is queued again" + (f" without {', '.join(sorted(excluded))}" if excluded else "")


def _nodes(record: Mapping[str, str], key: str) -> tuple[str, ...]:
    try:
        return tuple(expand_hostlist(value_of(record, key) or ""))
    except HostlistError:
        return ()
