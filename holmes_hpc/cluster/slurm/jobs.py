"""Jobs as `squeue`, `sacct` and `scontrol show job` tell of them, heterogeneous and array jobs included."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holmes_hpc.cluster.hostlist import expand_hostlist
from holmes_hpc.cluster.slurm.records import SlurmOutputError, read_table, reads
from holmes_hpc.cluster.slurm.states import combined_state, read_job_state
from holmes_hpc.foreign import parse_json

JOB_FORMAT = "%i|%A|%T|%P|%N|%r|%j"
"""for `squeue --format`, read by `read_squeue`"""

ACCOUNTING_FIELDS = "JobID,JobIDRaw,State,ExitCode,Partition,NodeList"
"""for `sacct --parsable2 --format`, read by `read_sacct`; 22.05 has no field for restarts"""

_ID = re.compile(r"(?P<job>[0-9]+)(?:\+(?P<component>[0-9]+)|_(?P<task>[0-9]+|\[.*\]))?(?:\.(?P<step>.+))?")
_BITMAP = re.compile("0[xX][0-9a-fA-F]+")


@dataclass(frozen=True)
class JobId:
    """A job's id in Slurm's notation: `7`, `3+1` (component 1), `12_4` (array task), `12_[0-3,7%2]`, with `.step`."""

    job: int
    component: int | None = None
    task: str | None = None
    step: str | None = None

    def __str__(self) -> str:
        component = "" if self.component is None else f"+{self.component}"
        task = "" if self.task is None else f"_{self.task}"
        return f"{self.job}{component}{task}" + ("" if self.step is None else f".{self.step}")

    @property
    def whole(self) -> str:
        """The id for `scontrol requeue` and `scancel`: of the whole job, but of the one task of an array."""
        return f"{self.job}" if self.task is None else f"{self.job}_{self.task}"

    @property
    def wholes(self) -> tuple[str, ...]:
        """`whole` of each task, where the id stands for several tasks of an array: `12_[0-1,5%2]`."""
        if self.task is None or not self.task.startswith("["):
            return (self.whole,)
        return tuple(f"{self.job}_{number}" for number in read_task_numbers(self.task))


@dataclass(frozen=True)
class SlurmJob:
    """One job, or one component or array task of it."""

    id: JobId
    state: str
    own_id: int | None = None
    """Slurm's number of this very component or task"""
    partition: str | None = None
    nodes: tuple[str, ...] = ()
    reason: str | None = None
    name: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    restarts: int | None = None


def read_job_id(text: str) -> JobId:
    """Return a job id's parts. Raises SlurmOutputError for a text that is none."""
    match = _ID.fullmatch(text.strip())
    if match is None:
        raise SlurmOutputError(f"{text!r} is no job id of Slurm; valid are forms such as 7, 3+1, 12_4 and 3+0.batch")
    component = match["component"]
    return JobId(int(match["job"]), None if component is None else int(component), match["task"], match["step"])


def read_task_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of `[0-3,7%2]`, `[1-7:2]` or `[0x3FF%2]`, in which bit i stands for task i.

    The last is what `sacct --json` says of tasks that wait. Raises SlurmOutputError for a text that is none.
    """
    listed = text.strip("[]").partition("%")[0]
    if _BITMAP.fullmatch(listed):
        bits = int(listed, 16)
        return tuple(number for number in range(bits.bit_length()) if bits >> number & 1)
    numbers: list[int] = []
    for part in listed.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?", part)
        if match is None:
            raise SlurmOutputError(f"{text!r} is no list of an array's tasks such as [0-3,7%2]; set "
                                   "SLURM_BITSTR_LEN=0 where it is cut short")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
    return tuple(numbers)


@reads("the output of squeue")
def read_squeue(text: str) -> tuple[SlurmJob, ...]:
    """Return the jobs of `squeue`: a table with header in the default or in JOB_FORMAT, or `--json`."""
    if text.lstrip().startswith("{"):
        return tuple(_of_json(job) for job in parse_json(text, "squeue or sacct")["jobs"])
    return tuple(_of_row(row) for row in _squeue_rows(text))


def _squeue_rows(text: str) -> list[dict[str, str]]:
    # `%i` and `%A` have the same heading.
    return read_table(re.sub("^JOBID\\|JOBID", "JOBID|OWNID", text, count=1, flags=re.MULTILINE))


def _of_row(row: Mapping[str, str]) -> SlurmJob:
    # The last column of the default is the list of nodes, or in parentheses the reason.
    nodes, reason = row.get("NODELIST", ""), row.get("REASON")
    if "NODELIST(REASON)" in row:
        mixed = row["NODELIST(REASON)"]
        nodes, reason = ("", mixed.strip("()")) if mixed.startswith("(") else (mixed, None)
    return SlurmJob(id=read_job_id(row["JOBID"]), state=read_job_state(row.get("STATE") or row.get("ST", "")),
                    own_id=int(row["OWNID"]) if "OWNID" in row else None, partition=row.get("PARTITION"),
                    nodes=tuple(expand_hostlist(nodes)), reason=None if reason == "None" else reason,
                    name=row.get("NAME"))


def _of_json(job: Mapping[str, Any]) -> SlurmJob:
    own, leader = int(job["job_id"]), _plain(job.get("het_job_id"))
    array, task = _plain(job.get("array_job_id")), _plain(job.get("array_task_id"))
    if leader:
        identity = JobId(leader, _plain(job["het_job_offset"]) or 0)
    elif array:
        pending = job.get("array_task_string")
        identity = JobId(array, task=str(task) if task is not None else f"[{pending}]" if pending else None)
    else:
        identity = JobId(own)
    state = job["job_state"] if isinstance(job["job_state"], str) else job["job_state"][0]
    reason = job.get("state_reason")
    return SlurmJob(id=identity, state=read_job_state(state), own_id=own, partition=job.get("partition"),
                    nodes=tuple(expand_hostlist(job.get("nodes") or "")), name=job.get("name"),
                    reason=None if reason == "None" else reason, restarts=_plain(job.get("restart_cnt")))


def _plain(value: Any) -> int | None:
    """Return a number that newer releases wrap: {"set": true, "infinite": false, "number": 3}."""
    if isinstance(value, Mapping):
        return int(value["number"]) if value.get("set") else None
    return None if value is None else int(value)


@reads("the output of sacct")
def read_sacct(text: str) -> tuple[SlurmJob, ...]:
    """Return the jobs and steps of `sacct --parsable2` (a header and `|`), or `sacct --json`.

    With `--duplicates` a requeued job comes once for each of its runs, the latest last.
    """
    if text.lstrip().startswith("{"):
        return tuple(_of_accounting(job) for job in parse_json(text, "squeue or sacct")["jobs"])
    jobs = []
    for row in read_table(text):
        code, _, signal = row.get("ExitCode", "").partition(":")
        raw = row.get("JobIDRaw", "")
        jobs.append(SlurmJob(
            id=read_job_id(row["JobID"]), state=read_job_state(row["State"]),
            own_id=int(raw) if raw.isdigit() else None, partition=row.get("Partition") or None,
            nodes=_accounted_nodes(row.get("NodeList")), name=row.get("JobName"),
            exit_code=int(code) if code else None, signal=int(signal) if signal else None,
            restarts=int(row["Restarts"]) if row.get("Restarts") else None))
    return tuple(jobs)


def _of_accounting(job: Mapping[str, Any]) -> SlurmJob:
    leader, array = _plain(job["het"].get("job_id")), _plain(job["array"].get("job_id"))
    current = job["state"]["current"]
    if leader:
        identity = JobId(leader, _plain(job["het"].get("job_offset")) or 0)
    elif array:
        task, waiting = _plain(job["array"].get("task_id")), job["array"].get("task")
        identity = JobId(array, task=str(task) if task is not None else f"[{waiting}]" if waiting else None)
    else:
        identity = JobId(int(job["job_id"]))
    return SlurmJob(
        id=identity, state=read_job_state(current if isinstance(current, str) else current[0]),
        own_id=int(job["job_id"]), partition=job.get("partition"), nodes=_accounted_nodes(job.get("nodes")),
        name=job.get("name"),
        exit_code=_plain(job["exit_code"].get("return_code")), restarts=_plain(job.get("restart_cnt")))


def _accounted_nodes(text: str | None) -> tuple[str, ...]:
    return () if text in (None, "", "None assigned") else tuple(expand_hostlist(str(text)))


def states_of_jobs(jobs: Iterable[SlurmJob]) -> dict[str, str]:
    """Return the state of each whole job or array task: {"3": "RUNNING"} for 3+0 and 3+1. Steps are left out.

    Tasks that wait together (`12_[0-3]`) are listed one by one. Where a component is listed twice
    (`sacct --duplicates`) its last run counts.
    """
    latest = {job.id: job for job in jobs if job.id.step is None}
    states: dict[str, list[str]] = {}
    for job in latest.values():
        for whole in job.id.wholes:
            states.setdefault(whole, []).append(job.state)
    return {whole: combined_state(found) for whole, found in states.items()}
