"""Keeps `launch.max_jobs` a sliding window: as a job ends another one starts, whichever job that is.

Slurm keeps lanes by itself (`submit/lanes.py`), so nobody has to look on. But a long job holds up its lane. Who sees a
job end, at the end of its own script or as a follower, lets the first job that waits for a longer one wait for the
ended one instead. Where nobody sees it, as after a node died, the lanes go on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from holmes_hpc.cluster.slurm.jobs import read_job_id
from holmes_hpc.cluster.slurm.states import is_final, read_job_state
from holmes_hpc.submit.commands import run_command, understood
from holmes_hpc.submit.lanes import Lanes

_FORMAT = "%i|%T|%E"
_TERM = re.compile(r"(?P<kind>[a-z]+):(?P<job>[0-9]+(?:_[0-9*]+)?(?:\+[0-9]+)?)(?:\([a-z]+\))?")


@dataclass(frozen=True)
class Queued:
    """A job or array of the window that lives: which of its tasks do, how many may run, and what it waits for.

    `throttle` is 0 where the array, or what is left of it, has none. `besides` is what it waits for beyond the window,
    in sbatch's words.
    """

    job: str
    tasks: frozenset[str]
    throttle: int = 0
    waits_for: frozenset[str] = frozenset()
    besides: str = ""

    @property
    def width(self) -> int:
        """How many places of the window it takes where it waits for nothing."""
        return min(len(self.tasks), self.throttle) if self.throttle else len(self.tasks)

    def without(self, gone: Collection[str]) -> Queued:
        """Return it once these jobs and tasks have gone."""
        return Queued(self.job, self.tasks - set(gone), self.throttle, self.waits_for - set(gone), self.besides)


@dataclass(frozen=True)
class Change:
    """What is changed of a job: what it waits for from now on (None: as before), how many of its tasks run at once."""

    job: str
    dependency: str | None = None
    throttle: int = 0

    def words(self) -> list[str]:
        """Return the command that does it."""
        throttle = [f"ArrayTaskThrottle={self.throttle}"] if self.throttle else []
        dependency = [] if self.dependency is None else [f"Dependency={self.dependency}"]
        return ["scontrol", "update", f"JobId={self.job}", *throttle, *dependency]


def read_queue(job_ids: Collection[str], cluster: str | None = None) -> list[Queued]:
    """Return those of some jobs and tasks (`7`, `8_0`) that live, the oldest first.

    Raises SlurmCommandError where Slurm does not tell, or nothing that is understood.
    """
    words = ["squeue", "--me", "--noheader", f"--format={_FORMAT}"]
    with understood(words[:1]):
        return _read_queue(run_command(words, cluster=cluster), job_ids)


def _read_queue(listed: str, job_ids: Collection[str]) -> list[Queued]:
    window = {job_id.partition("_")[0] for job_id in job_ids}
    found: dict[str, Queued] = {}
    for line in (line for line in listed.splitlines() if line.count("|") > 1):  # and no banner of the site
        text, state, dependency = (part.strip() for part in line.split("|", 2))
        identity = read_job_id(text)
        tasks = frozenset(identity.wholes) & set(job_ids)
        if not tasks or is_final(read_job_state(state)):
            continue
        throttle, job = re.search(r"%([0-9]+)\]", text), str(identity.job)
        terms = [(match["kind"], match["job"].removesuffix("_*")) for match in _TERM.finditer(dependency)]
        before = found.get(job, Queued(job, frozenset()))
        found[job] = Queued(
            job, before.tasks | tasks, int(throttle[1]) if throttle else before.throttle,
            before.waits_for | {name for _, name in terms if name.partition("_")[0] in window},
            ",".join(f"{kind}:{name}" for kind, name in terms if name.partition("_")[0] not in window))
    living = {name for queued in found.values() for name in (queued.job, *queued.tasks)}
    return [Queued(queued.job, queued.tasks, queued.throttle, queued.waits_for & living, queued.besides)
            for queued in sorted(found.values(), key=lambda queued: int(queued.job))]


def lanes_of(queue: Sequence[Queued], max_jobs: int) -> Lanes:
    """Return the lanes of a window for jobs that are still to be submitted behind those that live."""
    ends = []
    for queued in queue:
        behind = sum(min(queued.width, other.width) for other in queue
                     if other.waits_for & {queued.job, *queued.tasks})
        if queued.width > behind:
            ends.append((queued.job, queued.width - behind))
    return Lanes(max_jobs, ends)


def slide(queue: Sequence[Queued], max_jobs: int, ended: Collection[str], behind: str = "") -> list[Change]:
    """Return what to change so that `max_jobs` of a window run once the jobs and tasks `ended` have gone.

    Jobs that may start now are let wait for `behind`, which is about to end; "": for none.
    """
    gone = {*ended, *(queued.job for queued in queue if queued.tasks <= set(ended))}
    queue = [rest for queued in queue if (rest := queued.without(gone)).tasks]
    room = max_jobs - sum(queued.width for queued in queue if not queued.waits_for)
    changes = []
    for queued in queue:
        if room <= 0:
            break
        if queued.waits_for:
            width = min(len(queued.tasks), room)
            terms = [f"afterany:{behind}"] if behind else []
            changes.append(Change(queued.job, ",".join([*terms, *([queued.besides] if queued.besides else [])]),
                                  width if len(queued.tasks) > 1 else 0))
            room -= width
        elif len(queued.tasks) > queued.width:
            width = min(len(queued.tasks) - queued.width, room)
            changes.append(Change(queued.job, None, queued.throttle + width))
            room -= width
    return changes
