"""The state of jobs, heterogeneous ones folded into one, with and without accounting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holmes_hpc.submit.commands import SlurmCommandError, run_command

ACTIVE = frozenset({"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD",
                    "REQUEUE_FED", "RESIZING", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED"})
"""States of a job that is not over; PREEMPTED is over only where nothing follows it."""

# The worst state of its components is the job's.
_ORDER = ("FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "TIMEOUT", "CANCELLED", "PREEMPTED",
          "PENDING", "CONFIGURING", "REQUEUED", "COMPLETING", "RUNNING", "COMPLETED")


def plain_state(text: str) -> str:
    """Return the bare state of what Slurm prints: `CANCELLED by 1000` and `OUT_OF_ME+` lose what follows."""
    word = text.split()[0] if text.split() else "UNKNOWN"
    cut = word.rstrip("+")
    if word.endswith("+"):
        return next((state for state in (*_ORDER, *ACTIVE) if state.startswith(cut)), cut)
    return cut


def leader_of(job_id: str) -> str:
    """Return the id of the whole job: `66` for `66+1`."""
    return job_id.split("+")[0]


def fold(states: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return one state for each job from (id, state) pairs of its components."""
    folded: dict[str, str] = {}
    for job_id, text in states:
        job, state = leader_of(job_id), plain_state(text)
        known = folded.get(job)
        folded[job] = state if known is None else min(known, state, key=_severity)
    return folded


def fold_accounting(text: str) -> dict[str, str]:
    """Return the state of every job in `sacct --parsable2` output with a header; steps are left out."""
    lines = text.splitlines()
    if len(lines) < 2:
        return {}
    names = lines[0].split("|")
    rows = [dict(zip(names, line.split("|"), strict=False)) for line in lines[1:]]
    jobs = [(row["JobID"], row["State"]) for row in rows if "." not in row["JobID"]]
    # A requeued job has a row for each start; the last one counts.
    latest = dict(jobs)
    return fold(latest.items())


def read_states(job_ids: Sequence[str]) -> dict[str, str]:
    """Return the states of jobs: from the queue, and for those that left it from accounting where there is one.

    One call asks for all jobs. A job that neither knows is missing from the answer.
    """
    wanted = {leader_of(job_id) for job_id in job_ids}
    if not wanted:
        return {}
    states = {job: state for job, state in _queued().items() if job in wanted}
    gone = sorted(wanted - set(states))
    if gone:
        try:
            text = run_command(["sacct", "--parsable2", "--format=JobID,State", f"--jobs={','.join(gone)}"])
            states.update({job: state for job, state in fold_accounting(text).items() if job in wanted})
        except SlurmCommandError:
            pass  # no accounting here: the run folder's result has to do
    return states


def _queued() -> dict[str, str]:
    text = run_command(["squeue", "--noheader", "--me", "--states=all", "--format=%i|%T"])
    pairs = [line.strip().split("|", 1) for line in text.splitlines() if "|" in line]
    return fold((re.sub(r"\s", "", pair[0]), pair[1]) for pair in pairs)


def _severity(state: str) -> int:
    return _ORDER.index(state) if state in _ORDER else len(_ORDER)
