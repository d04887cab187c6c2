"""Jobs that a controller lost and whose numbers it gave to others: once killed, it counts on from what it had saved.

What has such a number is another job, of this tool or not: it is not shown, counted or cancelled in the run's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from holmes_hpc.foreign import read_object
from holmes_hpc.submit.commands import run_command
from holmes_hpc.submit.once import SUBMISSION_FILE, jobs_and_words
from holmes_hpc.submit.states import JobStatus, read_states
from holmes_hpc.submit.succession import places_of
from holmes_hpc.submit.watch import SubmittedRun

QUEUE_SECONDS = 15.0
"""How long the queue is waited for by who shows runs meanwhile: their steps are not seen until it answers."""


class OwnStates:
    """Asks for the states of runs as `read_states` does, but for jobs that only have their numbers (`lost`).

    Whose a job is is looked up when it is first seen, and whenever its state is another one: a controller may be
    killed while somebody looks on. Raises SlurmCommandError.
    """

    def __init__(self, runs: Iterable[SubmittedRun], *, say: bool = False) -> None:
        """`say`: who waits for Slurm is told."""
        self._say = say
        self._runs = {run.known_as: run for run in runs if not run.gone_on}
        self._looked_up: dict[str, str] = {}
        self.lost: set[str] = set()

    def add(self, run: SubmittedRun) -> None:
        """Ask for this run too from now on."""
        self._runs[run.known_as] = run
        self._looked_up.pop(run.known_as, None)
        self.lost.discard(run.known_as)

    def __call__(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return the states by job id."""
        states = read_states(job_ids, say=self._say, queue_seconds=QUEUE_SECONDS)
        changed = {known_as: status.state for known_as, status in states.items()
                   if known_as in self._runs and self._looked_up.get(known_as) != status.state}
        if changed:
            self.lost |= strangers(self._runs[known_as] for known_as in changed)
            self._looked_up |= changed
        return {job_id: status for job_id, status in states.items() if job_id not in self.lost}


def strangers(runs: Iterable[SubmittedRun]) -> set[str]:
    """Return the ids of those runs whose job in the queue has a script of something else.

    A controller that was killed gives the numbers of jobs that it lost once more, to whatever is submitted next. Raises
    SlurmCommandError where the queue cannot be read.
    """
    by_cluster: dict[str | None, list[SubmittedRun]] = {}
    for run in runs:
        by_cluster.setdefault(run.cluster, []).append(run)
    found = set()
    for cluster, mine in by_cluster.items():
        listed = run_command(["squeue", "--me", "--states=all", "--noheader", "--format=%i|%o"], cluster=cluster,
                             timeout_seconds=QUEUE_SECONDS)
        scripts = {str(job): script for job, script in jobs_and_words(listed) if script}
        for run in mine:
            script = scripts.get(run.job_id.partition("_")[0])
            if script is not None and not _may_be_of(run, script):
                found.add(run.known_as)
    return found


def _may_be_of(run: SubmittedRun, script: str) -> bool:
    """Say whether a run's job may have this script; its folder may have another path here than at the submission."""
    sweep = (read_object(run.folder.job_path) or {}).get("sweep")
    places = [*places_of(run.folder), *([Path(sweep)] if isinstance(sweep, str) else [])]
    if any(f"/{_named(place)}/" in script for place in places):
        return True
    # A run inside of somebody's own batch script has that one's number. Jobs without a script, such as those of
    # salloc and `sbatch --wrap`, are `(null)` or a command's name; what this tool submits has always one.
    ours = isinstance(sweep, str) or any(run.folder.path.glob("submission*"))
    return not ours and SUBMISSION_FILE not in script


def _named(place: Path) -> str:
    """Return the end of a path that no other has: the name and the id of a run, or of a sweep."""
    return "/".join(place.parts[-2:])
