"""Hands a job to Slurm once, however often sbatch has to be asked.

sbatch may fail although the controller took the job: then only the answer was lost. Before it is asked again the queue
is searched for a job whose script lies in the folder of this submission, which no other job has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from holmes_hpc.cluster.slurm import SlurmOutputError, read_job_id
from holmes_hpc.submit.commands import SlurmCommandError, TransientSlurmError, run_command
from holmes_hpc.submit.patience import patiently
from holmes_hpc.submit.states import ACCOUNTING_SECONDS

QUEUE_SECONDS = 20.0
"""How long the queue is waited for: who asks may have been told to end."""

LOG = logging.getLogger(__name__)

SUBMISSION_FILE = "submission_file_"
"""In the name of a script that submitit gives to sbatch, by which ours are told from others."""

PATIENCE_SECONDS = 300.0
"""How long a controller that fails in a way that passes is asked for a submission."""


def submit_once(ask: Callable[[], str], place: Path, cluster: str | None = None) -> str:
    """Return the id of the job that `ask` submits by a script in the folder `place`.

    Where `ask` raises TransientSlurmError it is called again after growing waits, each time only once Slurm was seen
    not to have the job. Raises TransientSlurmError when the patience is over, else what `ask` raises.
    """
    asked = 0

    def attempt(left_seconds: float) -> str:
        nonlocal asked
        if asked and (taken := find_jobs(place, cluster)):
            LOG.info("Slurm had taken job %s, and only its answer was lost", taken[0])
            return taken[0]
        asked += 1
        return ask()

    try:
        job_id = patiently(attempt, PATIENCE_SECONDS)
    except TransientSlurmError as error:
        raise TransientSlurmError(f"{error}\nSlurm was asked for {PATIENCE_SECONDS:g} s. Whether it took the job after "
                                  f"all is not known: look with `{queue_of(cluster)}` before you submit it "
                                  "again") from error
    return _only(job_id, place, cluster) if asked > 1 else job_id


def queue_of(cluster: str | None) -> str:
    """Return the line by which a user looks for jobs."""
    return "squeue --me" if cluster is None else f"squeue --clusters={cluster} --me"


def find_jobs(place: Path, cluster: str | None = None) -> list[str]:
    """Return the ids of the jobs whose scripts lie in a folder, the oldest first.

    Raises SlurmCommandError where the queue cannot be read. A job that it has forgotten already is looked for in the
    accounting, where there is one.
    """
    listed = run_command(["squeue", "--me", "--states=all", "--noheader", "--format=%i|%o"], cluster=cluster,
                         timeout_seconds=QUEUE_SECONDS, say=True)
    found = _ids_of(listed, place)
    if not found:
        try:
            listed = run_command(["sacct", "--allocations", "--noheader", "--parsable2", "--starttime=now-1hours",
                                  "--format=JobID,SubmitLine"], cluster=cluster, timeout_seconds=ACCOUNTING_SECONDS,
                                 say=True)
        except SlurmCommandError:
            return []
        found = _ids_of(listed, place)
    return [str(number) for number in sorted(found)]


def _ids_of(listed: str, place: Path) -> set[int]:
    """Return the numbers of whole jobs in lines `ID|words with the script's path`."""
    end = "/".join(place.parts[-3:])  # the folder may have been reached by a link
    return {job for job, words in jobs_and_words(listed) if f"/{end}/" in words}


def jobs_and_words(listed: str) -> Iterator[tuple[int, str]]:
    """Yield the number of the whole job, and the rest, of lines `ID|words`; others, such as a banner, are passed by."""
    for line in listed.splitlines():
        job, _, words = line.partition("|")
        with suppress(SlurmOutputError):
            yield read_job_id(job.strip()).job, words


def _only(job_id: str, place: Path, cluster: str | None) -> str:
    """Cancel all but the oldest of the jobs of one submission: Slurm may have taken one late, after it was searched."""
    try:
        oldest, *others = find_jobs(place, cluster) or [job_id]
        for other in others:
            LOG.info("Slurm took this submission twice; job %s is cancelled, and %s is kept", other, oldest)
            run_command(["scancel", other], cluster=cluster)
    except SlurmCommandError as error:
        LOG.warning("whether Slurm took job %s twice could not be looked up: %s", job_id, error)
        return job_id
    return oldest
