"""The runs of a sweep on Slurm: made, submitted as Slurm takes them, followed in one table, gone on with if cut off."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.slurm.states import is_final
from holmes_hpc.errors import FAILED, INTERRUPTED, HolmesError, LaunchImpossibleError
from holmes_hpc.launch.follow.interruption import InterruptedRunError, interruptible
from holmes_hpc.launch.slurm.job_plan import plan_for_job
from holmes_hpc.launch.slurm.run import say_what_nodes_do_not_see
from holmes_hpc.launch.train import check_before, fill_in_resume, make_folder, refuse_unsupported
from holmes_hpc.quoting import for_shell
from holmes_hpc.runs import RunFolder, read_result
from holmes_hpc.runs.lease import HeldError, Lease
from holmes_hpc.runs.sweeps import Sweep
from holmes_hpc.submit.board import Board, failure_lines, text
from holmes_hpc.submit.commands import SlurmCommandError
from holmes_hpc.submit.ending import exit_status_of, failure
from holmes_hpc.submit.job import set_aside, submitted_run, taken_job
from holmes_hpc.submit.lanes import Lanes
from holmes_hpc.submit.live import rows, show_until_over
from holmes_hpc.submit.lost import OwnStates, strangers
from holmes_hpc.submit.onward import slide_window
from holmes_hpc.submit.options import cluster_of
from holmes_hpc.submit.patience import patiently
from holmes_hpc.submit.states import JobStatus, read_states
from holmes_hpc.submit.succession import is_alike, take_up
from holmes_hpc.submit.sweep import Answer, Submitter, SweepRun
from holmes_hpc.submit.watch import NOT_SUBMITTED, NOT_YET, SubmittedRun, Watch, Watched
from holmes_hpc.submit.window import lanes_of, read_queue
from holmes_hpc.words import about, counted

LOG = logging.getLogger(__name__)

Outcome = tuple[int, float | None]

ROOM_SECONDS = 30.0
"""How often Slurm is asked for room where none of the sweep's own jobs has ended: others of the user may have."""
AGAIN_SECONDS = 2.0
"""Between two tries where none fits and jobs are about to end."""
_PATIENCE_SECONDS = 60.0


def run_sweep(sweep: Sweep, configs: Sequence[Any], clusters: Sequence[ClusterDescription], *, wait: bool,
              max_jobs: int | None) -> list[Outcome]:
    """Submit what of a sweep is missing or has failed, and follow all; return what became of each run.

    `max_jobs` of its jobs run at a time, None for as many as Slurm starts.
    SIGINT, SIGTERM and SIGHUP say what is queued and how to go on; where runs are still to be submitted SystemExit is
    raised then. Raises LaunchImpossibleError where another command submits them, SlurmCommandError where Slurm does not
    tell which of the sweep's jobs live.
    """
    with sweep.alone() as lease:
        sweep.max_jobs = max_jobs
        work = _Work(sweep, configs, clusters, lease)
        try:
            with interruptible():
                work.take_stock()
                work.make()
                work.submit()
                work.follow(wait=wait)
        except InterruptedRunError as signal_name:
            work.say_interrupted(str(signal_name))
        return [work.outcomes[number] for number in range(len(configs))]


def submit_waiting(sweep: Sweep, configs: Sequence[Any], clusters: Sequence[ClusterDescription],
                   patience_seconds: float, last_job: str | None = None) -> None:
    """Submit those runs of a sweep that wait for room in the queue, as many as fit, and follow none.

    Where none fits it is tried again for so long: jobs that end now still count. Then the job `last_job` of the sweep,
    which is about to end, goes on with one of them itself, since nobody would submit them after it. Raises
    LaunchImpossibleError where another command submits them, SlurmCommandError where Slurm does not tell whether it has
    taken one already.
    """
    with sweep.alone(stays=False, wait_seconds=patience_seconds) as lease:
        work, deadline = _Work(sweep, configs, clusters, lease), time.monotonic() + patience_seconds
        work.find_waiting()
        while not work.submit_a_waiting_run():
            if time.monotonic() >= deadline:
                if last_job is not None:
                    work.hand_on(last_job)
                return
            time.sleep(AGAIN_SECONDS)


class _Work:
    """The runs of one sweep in the hands of one command, by their numbers."""

    def __init__(self, sweep: Sweep, configs: Sequence[Any], clusters: Sequence[ClusterDescription], lease: Lease
                 ) -> None:
        self._sweep, self._configs, self._clusters, self._lease = sweep, configs, clusters, lease
        self.outcomes: dict[int, Outcome] = {}
        self._submitted: dict[int, SubmittedRun] = {}
        self._again: list[int] = []
        self._living: set[int] = set()
        self._submitter: Submitter | None = None
        self._watch: Watch | None = None
        self._states = OwnStates(())
        self._asked_at = 0.0

    def take_stock(self) -> None:
        """Find out which runs of an earlier command are complete, live, or are to be submitted again."""
        known = dict(self._sweep.folders)
        for number, folder in known.items():
            run = submitted_run(folder) or self._taken(number, folder)
            if run is not None:
                self._submitted[number] = run
        own = [run for run in self._submitted.values() if not run.gone_on]
        states = patiently(lambda left: read_states([run.known_as for run in own]), _PATIENCE_SECONDS)
        others = patiently(lambda left: strangers(own), _PATIENCE_SECONDS) if states else set()
        for number, folder in known.items():
            mine = self._submitted.get(number)
            complete = (read_result(folder) or {}).get("status") == "completed"
            if (mine is not None and not mine.gone_on and not complete and _lives(states.get(mine.known_as))
                    and mine.known_as not in others):
                self._living.add(number)
            elif not complete:
                set_aside(folder)
                self._submitted.pop(number, None)
                self._again.append(number)
        if known:
            done = len(self._submitted) - len(self._living)
            LOG.info("going on with the sweep in %s: of %d runs %d are complete, %d in the queue, %d to submit",
                     self._sweep.place, len(self._configs), done, len(self._living),
                     len(self._configs) - len(self._submitted))

    def find_waiting(self) -> None:
        """Find the runs that nobody has given to Slurm, and no others: what failed stays as it is."""
        for number in self._sweep.waiting:
            run = self._taken(number, self._sweep.folders[number])
            if run is None:
                self._again.append(number)
            else:
                self._submitted[number] = run

    def submit_a_waiting_run(self) -> bool:
        """Submit what Slurm takes now; say whether there was anything, or nothing is left."""
        before = self._queued()
        if self._submitter is None:
            self._submitter = self._make_submitter()
        self._submit_more()
        return self._queued() > before or not self._waiting()

    def hand_on(self, job_id: str) -> None:
        """Let a job whose run has ended go on with one that waits and is alike, or say that somebody has to."""
        ended = next((number for number, folder in self._sweep.folders.items()
                      if (run := submitted_run(folder)) and not run.gone_on and run.job_id == job_id), None)
        alike = [number for number in self._waiting()
                 if ended is not None and is_alike(self._configs[ended], self._configs[number])]
        if ended is not None and alike and take_up(self._configs[alike[0]], self._sweep.folders[alike[0]],
                                                   self._sweep.folders[ended], job_id, self._sweep.place):
            LOG.info("the limit on submitted jobs has no room for another job beside this one, so job %s is queued "
                     "again and goes on with %s", job_id, self._sweep.words[alike[0]])
            return
        LOG.warning("%s of the sweep to be submitted, and no job of it is left that would do it: `holmes sweep %s "
                    "--resume` does", counted(len(self._waiting()), "run"), self._place)

    def make(self) -> None:
        """Plan the runs that have no folder yet, and write each down in the sweep's file as it is made."""
        for number, config in enumerate(self._configs):
            if number in self._sweep.folders:
                continue
            try:
                check_before(config)
                chosen = plan_for_job(config, self._clusters[number])
                refuse_unsupported(config)
                fill_in_resume(config)
                self._sweep.folders[number] = make_folder(config, chosen)
            except HolmesError as error:
                LOG.error("%s", about(self._sweep.words[number], error))
                self.outcomes[number] = (error.exit_status, None)
                continue
            self._again.append(number)
            self._sweep.save()

    def submit(self) -> None:
        """Submit what is to be submitted, as far as Slurm takes it now."""
        self._submitter = self._make_submitter()
        if self._submitter is not None:
            say_what_nodes_do_not_see(self._configs[self._again[0]])
        self._submit_more()
        LOG.info("submitted %s; %s", counted(self._queued(), "job"), self._later())

    def follow(self, *, wait: bool) -> None:
        """Show the table, until all are over where `wait`, and submit the rest as jobs end."""
        runs = {**self._submitted, **{number: SubmittedRun(NOT_YET, self._sweep.folders[number])
                                      for number in self._waiting()}}
        if not runs:
            return
        numbers = sorted(runs)
        self._states = OwnStates(self._submitted.values())
        self._watch = Watch([runs[number] for number in numbers], self._states)
        board = Board({runs[number].folder.path: self._sweep.words[number] for number in numbers})
        if not wait:
            self._watch.poll()
            sys.stderr.write(text(rows(self._watch, board)))
            if self._waiting():
                LOG.warning("%s to be submitted as there is room%s: %s", counted(len(self._waiting()), "run"),
                            self._by_jobs(), self._ways_on())
            alone = not any(not watched.over for watched in self._watch.runs if watched.run.job_id != NOT_YET)
            self.outcomes = {**dict.fromkeys(self._waiting(), (FAILED if alone else 0, None)), **self.outcomes}
            self.outcomes = {**dict.fromkeys(numbers, (0, None)), **self.outcomes}
            return
        show_until_over(self._watch, board, sys.stderr, self._as_jobs_end)
        for number, watched in zip(numbers, self._watch.runs, strict=True):
            self._end(number, watched)

    def say_interrupted(self, signal_name: str) -> None:
        """Say what is queued and how to follow, cancel or go on; raise SystemExit where runs are still to be submitted.

        The submission that was cut off is looked up, whether Slurm took it.
        """
        asked = self._submitter.next_unit if self._submitter else []
        for number, folder in self._sweep.folders.items():
            if number in self._submitted:
                continue
            # Of an array whose jobs are written down, some may not have been told of when the signal came.
            run = self._recover(number, folder) if number in asked else submitted_run(folder)
            if run is not None:
                self._submitted[number] = run
        with suppress(HolmesError):
            self._sweep.save()
        open_runs = len(self._configs) - len(self._submitted) - len(self.outcomes.keys() - self._submitted.keys())
        queued = self._queued()
        LOG.warning("%s: no longer following the sweep in %s. %d of its %d runs are submitted%s%s; %s",
                    signal_name, self._sweep.place, queued, len(self._configs), ", and go on" if queued else "",
                    f"; {open_runs} are not submitted yet{self._by_jobs()}" if open_runs else "",
                    self._ways_on() if open_runs else self._later())
        if open_runs:
            raise SystemExit(INTERRUPTED)
        self.outcomes = {**dict.fromkeys(self._submitted, (0, None)), **self.outcomes}

    def _as_jobs_end(self, changed: Sequence[Watched]) -> None:
        submitter, ended = self._submitter, any(watched.over for watched in changed)
        if ended and self._sweep.max_jobs is not None:
            self._slide()
        if submitter is None or not submitter.waiting:
            return
        if not ended and time.monotonic() - self._asked_at < ROOM_SECONDS:
            return
        for number in submitter.drop(lambda number: read_result(self._sweep.folders[number]) is not None):
            self._take(Answer(number, SubmittedRun(NOT_SUBMITTED, self._sweep.folders[number])))  # cancelled meanwhile
            self.outcomes[number] = (1, None)
        self._submit_more()

    def _slide(self) -> None:
        """Let jobs start in the places of those that have ended; jobs do so themselves where nothing killed them."""
        try:
            slide_window(self._sweep, self._cluster)
        except (HolmesError, HeldError) as error:
            LOG.warning("jobs that wait are not moved up now: %s", error)

    def _submit_more(self) -> None:
        submitter = self._submitter
        if submitter is None:
            return
        said, self._asked_at = submitter.limit, time.monotonic()
        for answer in submitter.submit():
            self._take(answer)
        if self._sweep.for_room != bool(submitter.limit):
            self._sweep.for_room = bool(submitter.limit)
            self._sweep.save()
        if submitter.limit and not said:
            LOG.info("Slurm takes no more jobs now (%s); %s to be submitted as jobs end",
                     (submitter.limit.splitlines() or [""])[0], counted(len(submitter.waiting), "run"))

    def _take(self, answer: Answer) -> None:
        folder, words = self._sweep.folders[answer.number], self._sweep.words[answer.number]
        if isinstance(answer.run, SubmittedRun):
            run = answer.run
            LOG.info("job %s: %s (%d of %d)", run.job_id, words, len(self._submitted) + 1, len(self._configs))
        else:  # it stays in the table, and its result.json says why
            LOG.error("%s: %s", words, answer.run)
            run = SubmittedRun(NOT_SUBMITTED, folder)
            self.outcomes[answer.number] = (answer.run.exit_status, None)
        self._submitted[answer.number] = run
        self._sweep.save()
        if self._watch is not None:
            self._states.add(run)
            self._watch.replace(folder, run)

    def _taken(self, number: int, folder: RunFolder) -> SubmittedRun | None:
        """Return the job of a submission that was cut off between Slurm's taking it and its being written down."""
        return patiently(lambda left: taken_job(self._configs[number], folder, self._sweep.place), _PATIENCE_SECONDS)

    def _recover(self, number: int, folder: RunFolder) -> SubmittedRun | None:
        """Return that job, at the end of an interrupted command, which does not wait for a controller."""
        try:
            return submitted_run(folder) or taken_job(self._configs[number], folder, self._sweep.place)
        except SlurmCommandError as error:
            LOG.warning("whether Slurm took %s is not known now: %s", self._sweep.words[number], error)
            return None

    def _make_submitter(self) -> Submitter | None:
        wanted = {number: SweepRun(self._configs[number], self._sweep.folders[number], self._sweep.words[number])
                  for number in sorted(self._again)}
        return Submitter(wanted, self._sweep.place, self._lanes, self._stay_alone) if wanted else None

    def _lanes(self) -> Lanes | None:
        """Return the lanes behind the sweep's jobs that live, as Slurm tells of them: jobs move up meanwhile."""
        count = self._sweep.max_jobs
        if count is None:
            return None
        runs = [run for folder in self._sweep.folders.values() if (run := submitted_run(folder))]
        queue = patiently(lambda left: read_queue([run.job_id for run in runs], self._cluster), _PATIENCE_SECONDS)
        return lanes_of(queue, count)

    def _stay_alone(self) -> None:
        if not self._lease.still_mine():
            raise LaunchImpossibleError(f"another command goes on with the sweep in {self._sweep.place}, which this "
                                        "one did not hold for a while, as when it was stopped")

    @property
    def _cluster(self) -> str | None:
        return cluster_of(self._configs[0].launch)

    @property
    def _place(self) -> str:
        """The folder of the sweep as a word of a command."""
        return for_shell(str(self._sweep.place))

    def _waiting(self) -> list[int]:
        return self._submitter.waiting if self._submitter else []

    def _queued(self) -> int:
        """Return how many runs have a job."""
        return sum(run.job_id not in (NOT_SUBMITTED, NOT_YET) for run in self._submitted.values())

    def _by_jobs(self) -> str:
        return ", and the sweep's jobs submit them as they end" if self._sweep.for_room and self._queued() else ""

    def _later(self) -> str:
        if not self._queued():
            return f"`holmes jobs {self._place}` shows the sweep"
        return (f"`holmes jobs {self._place}` shows them, with --watch until all are over; cancel them: `holmes "
                f"cancel {self._place}`")

    def _ways_on(self) -> str:
        return (f"the same command again, or `holmes sweep {self._place} --resume`, submits the rest and "
                f"follows; {self._later()}")

    def _end(self, number: int, watched: Watched) -> None:
        if watched.run.job_id == NOT_SUBMITTED:
            return
        if watched.run.known_as in self._states.lost:
            watched.status = None
        status = exit_status_of(watched)
        result = read_result(watched.run.folder) or {}
        self.outcomes[number] = (status, result.get("tokens_per_second_median") if status == 0 else None)
        if status != 0:
            LOG.error("job %s (%s): %s", watched.run.job_id, self._sweep.words[number], failure(watched))
            sys.stderr.write("\n".join(failure_lines(watched.run.folder)[1:] + [""]))


def _lives(status: JobStatus | None) -> bool:
    return status is not None and not is_final(status.state, requeue=True)
