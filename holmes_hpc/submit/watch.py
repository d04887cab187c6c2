"""Watches submitted runs until they are over, without loading the controller; a requeued job is watched on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holmes_hpc.cluster.slurm.states import is_final
from holmes_hpc.runs import RunFolder, read_result
from holmes_hpc.runs.job import note_final_state
from holmes_hpc.runs.life import Life
from holmes_hpc.submit.commands import SlowSlurmError, SlurmCommandError
from holmes_hpc.submit.states import JobStatus, read_states

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
WAIT_FACTOR = 1.4
PATIENCE_SECONDS = 30.0
"""How long a job may be unknown to Slurm, or preempted and not yet back in the queue, before it counts as gone."""

SAID_AFTER = 3
"""After so many questions in a row that Slurm did not answer, who follows is told."""
LIFELESS_SECONDS = 900.0
"""How long a run that Slurm does not tell of may give no sign of life before it is followed no longer."""

NOT_SUBMITTED = "-"
"""In place of the job id of a run that Slurm did not take."""
NOT_YET = "..."
"""In place of the job id of a run that is still to be submitted."""

LOG = logging.getLogger(__name__)

Ask = Callable[[Sequence[str]], Mapping[str, JobStatus]]


@dataclass(frozen=True)
class SubmittedRun:
    """A run in Slurm's hands, or one that Slurm did not take (NOT_SUBMITTED), which is over."""

    job_id: str
    folder: RunFolder
    requeue: bool = True
    cluster: str | None = None
    """the cluster that the job was submitted to, where it is not this machine's own"""
    gone_on: bool = False
    """whether the run is over, and its job has gone on with another one"""

    @property
    def known_as(self) -> str:
        """The job's id with its cluster, as `sbatch --parsable` prints it: `7;west`."""
        return f"{self.job_id};{self.cluster}" if self.cluster else self.job_id

    def command(self, program: str, *words: str) -> str:
        """Return the line by which a user asks Slurm about this job, or acts on it, on the cluster where it is."""
        where = [f"--clusters={self.cluster}"] if self.cluster else []
        return " ".join([program, *where, *words, self.job_id])


@dataclass
class Watched:
    """What is known of one run. `since` is when its status began, or when Slurm last knew it.

    `lost`: it is over for who watches, since neither Slurm nor its ranks have told of it for long; nobody knows how it
    is.
    """

    run: SubmittedRun
    since: float
    status: JobStatus | None = None
    failed: bool = False
    over: bool = False
    lost: bool = False
    life: Life | None = None
    completing_since: float | None = None
    """since when Slurm waits for the end of its nodes: an epilog, or processes that cannot be killed"""

    def completing_seconds(self, now: float) -> float:
        """Return for how long Slurm waits for the end of the job's nodes; 0 where it does not."""
        return 0.0 if self.completing_since is None else now - self.completing_since


class Watch:
    """Asks for all runs that are not over in one call, less and less often while nothing changes."""

    def __init__(self, runs: Sequence[SubmittedRun], ask: Ask = read_states,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self.runs = [Watched(run, clock(), over=run.job_id == NOT_SUBMITTED or run.gone_on) for run in runs]
        self._wait_seconds = FIRST_WAIT_SECONDS
        self._due = clock()
        self._unanswered, self._said = 0, False
        self.silence = ""
        """why Slurm did not answer the last question"""

    @property
    def over(self) -> bool:
        """Whether every run is over."""
        return all(watched.over for watched in self.runs)

    def replace(self, folder: RunFolder, run: SubmittedRun) -> None:
        """Watch a run that was still to be submitted by the job that it has now, and look soon."""
        for watched in self.runs:
            if watched.run.folder == folder:
                watched.run, watched.since, watched.over = run, self._clock(), run.job_id == NOT_SUBMITTED
                watched.status = None if watched.over else JobStatus("PENDING")
        self._wait_seconds, self._due = FIRST_WAIT_SECONDS, min(self._due, self._clock() + FIRST_WAIT_SECONDS)

    def take(self, run: SubmittedRun) -> None:
        """Watch one more run, or the job that a run has now which was still to be submitted."""
        if all(watched.run.folder != run.folder for watched in self.runs):
            self.runs.append(Watched(run, self._clock()))
        if run.job_id != NOT_YET:
            self.replace(run.folder, run)

    def poll(self) -> list[Watched]:
        """Look again, and return the runs whose status changed or that are over since the last call."""
        changed = []
        for watched in self.runs:
            result = None if watched.over else _result(watched.run)
            if result == "completed":
                watched.over = True
                changed.append(watched)
            elif result == "failed" and not watched.failed:
                watched.failed = True  # unless Slurm requeues it, as after a node died: ask soon
                self._wait_seconds, self._due = FIRST_WAIT_SECONDS, min(self._due, self._clock() + FIRST_WAIT_SECONDS)
        if self._clock() >= self._due:
            told = self._ask_slurm()
            self._wait_seconds = FIRST_WAIT_SECONDS if told else min(self._wait_seconds * WAIT_FACTOR,
                                                                    LONGEST_WAIT_SECONDS)
            self._due = self._clock() + self._wait_seconds
            changed += told
        return changed

    def _ask_slurm(self) -> list[Watched]:
        open_runs = [watched for watched in self.runs if not watched.over and watched.run.job_id != NOT_YET]
        try:
            answer = self._ask([watched.run.known_as for watched in open_runs])
        except SlurmCommandError as error:
            self._unanswered += SAID_AFTER if isinstance(error, SlowSlurmError) else 1  # that one took long
            self.silence = str(error)
            if self._unanswered >= SAID_AFTER and not self._said:
                self._said = True
                LOG.warning("Slurm does not tell of the jobs (%s); going by what the ranks write until it does", error)
            return [watched for watched in open_runs if self._goes_without(watched)]
        if self._said:
            LOG.info("Slurm tells of the jobs again")
        self._unanswered, self._said, self.silence = 0, False, ""
        return [watched for watched in open_runs if self._take(watched, answer.get(watched.run.known_as))]

    def _goes_without(self, watched: Watched) -> bool:
        """Say whether a run is over as far as its folder tells, while Slurm tells nothing."""
        result, now = _result(watched.run), self._clock()
        watched.life = watched.life or Life(watched.run.folder, self._clock)
        silent = watched.life.silent_seconds()
        if result == "failed":  # Slurm may still requeue it; then a new start takes the result away
            watched.over = silent > PATIENCE_SECONDS
        else:
            watched.over = watched.lost = silent > LIFELESS_SECONDS
        watched.since = now  # it is the controller that is away, not the job
        return watched.over

    def _take(self, watched: Watched, status: JobStatus | None) -> bool:
        before, now = (watched.status, watched.over), self._clock()
        if status is not None and status != watched.status:
            watched.status, watched.since = status, now
        completing = status is not None and status.state == "COMPLETING"
        watched.completing_since = (watched.completing_since or now) if completing else None
        if completing and _result(watched.run) == "failed" and watched.completing_seconds(now) > PATIENCE_SECONDS:
            watched.over = True  # the batch script has decided that; its nodes are no matter any more
        elif status is not None and not is_final(status.state):
            watched.since = now
        elif status is not None and is_final(status.state, requeue=watched.run.requeue):
            watched.over = True
            note_final_state(watched.run.folder, status.state)
        elif status is None and _result(watched.run) == "failed":
            watched.over = True  # the queue has forgotten it
        else:  # not known, or Slurm should put it back into the queue
            watched.over = now - watched.since > PATIENCE_SECONDS
        return (watched.status, watched.over) != before


def _result(run: SubmittedRun) -> str | None:
    result = read_result(run.folder)
    return None if result is None else str(result["status"])
