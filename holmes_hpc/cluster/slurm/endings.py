"""Why Slurm ended a job or step, from the lines that slurmstepd writes into the job's output."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENDING = re.compile(r"\*\*\* (?P<what>JOB|STEP) (?P<id>[0-9]+(?:\.[0-9a-z]+)?(?:\+[0-9]+)?) ON (?P<node>\S+) "
                     r"CANCELLED AT (?P<time>\S+)(?: DUE TO (?P<cause>.*?))?"
                     r"(?:, SEE SLURMCTLD LOG FOR DETAILS)? \*\*\*")


@dataclass(frozen=True)
class Ending:
    """A job or step that Slurm ended.

    `cause` is `preemption`, `job requeue`, `node failure`, `time limit`, or None where somebody cancelled it.
    """

    job: int
    step: str | None
    node: str
    time: str
    cause: str | None

    @property
    def starts_again(self) -> bool:
        """Whether Slurm itself puts such a job back into the queue, where the job allows it."""
        return self.cause in ("preemption", "job requeue", "node failure")


def read_endings(output: str) -> tuple[Ending, ...]:
    """Return the endings that a job's output tells of, in its order."""
    endings = []
    for match in _ENDING.finditer(output):
        job, _, step = match["id"].partition(".")
        cause = match["cause"]
        endings.append(Ending(int(job.partition("+")[0]), step or None, match["node"], match["time"],
                              cause.lower() if cause else None))
    return tuple(endings)
