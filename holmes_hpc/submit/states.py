"""The state of submitted jobs, heterogeneous ones folded into one, with and without accounting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holmes_hpc.cluster.slurm import SlurmJob, read_sacct, read_squeue, states_of_jobs
from holmes_hpc.cluster.slurm.jobs import ACCOUNTING_FIELDS, JOB_FORMAT
from holmes_hpc.submit.commands import SlurmCommandError, run_command, understood

_PASSING = frozenset({None, "None", "Resources", "Priority", "BeginTime", "Dependency"})
"""Reasons for waiting that go by themselves; of a job's components another one says more."""


ACCOUNTING_SECONDS = 15.0
"""How long the accounting is waited for, which adds to what the queue and the run folders tell."""

_LIMITS = "it asks for more than its partition gives a job: lower the number of nodes, or name another partition"
_STANDING = {
    "PartitionTimeLimit": "its time limit is above that of its partition: lower cluster.partitions.<label>.time_limit",
    "PartitionNodeLimit": _LIMITS,
    "PartitionConfig": _LIMITS,
    "PartitionDown": "its partition is closed: it starts once the site opens that one, or name another partition",
    "PartitionInactive": "its partition is closed: it starts once the site opens that one, or name another partition",
    "BadConstraints": "no nodes have what it asks for: look at the constraint of cluster.partitions.<label>",
    "DependencyNeverSatisfied": "the job that launch.sbatch.dependency waits for ended otherwise than is asked there",
    "InvalidAccount": "its account is none any more: set cluster.partitions.<label>.account",
    "InvalidQOS": "its QOS is none any more: set cluster.partitions.<label>.qos",
    "ReservationDeleted": "its reservation is gone: leave launch.sbatch.reservation out",
}
"""Reasons for waiting (squeue(1), "JOB REASON CODES") that no end of another job mends, and what does."""
_TOO_MUCH = re.compile(r"(Assoc|QOS)(Max|Min)\w*(PerJob|PerNode|WallDuration)\w*|(Assoc|QOS)GrpWall\w*")


@dataclass(frozen=True)
class JobStatus:
    """A job's state in Slurm's long word, and why it waits, where it does."""

    state: str
    reason: str | None = None

    @property
    def held(self) -> bool:
        """Whether the job waits until somebody releases it, as after a prolog failed."""
        return self.state == "PENDING" and "held" in (self.reason or "").casefold()

    @property
    def obstacle(self) -> str | None:
        """What has to be changed before the job can start; None where waiting is enough, or it is held."""
        if self.state != "PENDING" or self.reason is None:
            return None
        if _TOO_MUCH.match(self.reason):
            return f"it asks for more than a limit of its account or QOS ({self.reason}) allows a job: ask for less"
        return _STANDING.get(self.reason)

    def __str__(self) -> str:
        return f"{self.state} ({self.reason})" if self.reason and self.state == "PENDING" else self.state


def read_states(job_ids: Sequence[str], *, say: bool = False, queue_seconds: float = 60.0) -> dict[str, JobStatus]:
    """Return the states of jobs: from the queue, and for those that left it from accounting where there is one.

    `7;west` is job 7 of the cluster west. One call asks for all jobs of a cluster, however many there are. A job that
    neither knows is missing from the answer. Raises SlurmCommandError when the controller does not answer, or in
    no form that is known. With `say` who waits is told; the queue is waited for at most `queue_seconds`.
    """
    by_cluster: dict[str, set[str]] = {}
    for job_id in job_ids:
        job, _, cluster = job_id.partition(";")
        by_cluster.setdefault(cluster, set()).add(job)
    return {f"{job};{cluster}" if cluster else job: status for cluster, wanted in by_cluster.items()
            for job, status in _read_states(wanted, cluster or None, say, queue_seconds).items()}


def _read_states(wanted: set[str], cluster: str | None, say: bool, queue_seconds: float) -> dict[str, JobStatus]:
    words = ["squeue", "--me", "--states=all", f"--format={JOB_FORMAT}"]
    with understood(words[:1]):
        found = statuses(read_squeue(run_command(words, cluster=cluster, timeout_seconds=queue_seconds, say=say)))
    gone = sorted({job.partition("_")[0] for job in wanted - found.keys()})
    if gone:
        words = ["sacct", "--parsable2", f"--format={ACCOUNTING_FIELDS}", f"--jobs={','.join(gone)}"]
        try:
            with understood(words[:1]):
                told = run_command(words, cluster=cluster, timeout_seconds=ACCOUNTING_SECONDS, say=say)
                found = statuses(read_sacct(told)) | found
        except SlurmCommandError:
            pass  # no accounting here, or none that answers: the run folder's result has to do
    return {job: status for job, status in found.items() if job in wanted}


def statuses(jobs: Iterable[SlurmJob]) -> dict[str, JobStatus]:
    """Return the status of each whole job or array task."""
    listed = list(jobs)
    reasons: dict[str, str | None] = {}
    for job in sorted((job for job in listed if job.id.step is None), key=lambda job: job.reason in _PASSING):
        for whole in job.id.wholes:
            reasons.setdefault(whole, job.reason)
    return {whole: JobStatus(state, reasons.get(whole)) for whole, state in states_of_jobs(listed).items()}
