"""Where in a job a process runs, and the job's components, from its environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from holmes_hpc.cluster.hostlist import expand_hostlist
from holmes_hpc.cluster.slurm.records import SlurmOutputError, reads

_MOST_NODES, _MOST_DIGITS = 2**20, 10
"""Of a job; what is larger was not written by Slurm, and would fill the memory."""
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")

OUTSIDE, ALLOCATION, BATCH, INTERACTIVE, STEP = "outside", "allocation", "batch", "interactive", "step"

# Slurm's numbers for the batch script and the shell of salloc, where it calls these steps.
_BATCH_STEPS = frozenset({"4294967291", "batch"})
_INTERACTIVE_STEPS = frozenset({"4294967290", "interactive"})


@dataclass(frozen=True)
class Component:
    """A component of a heterogeneous job, or the whole of a plain one. What the environment leaves out is None."""

    index: int
    job_id: int
    nodes: tuple[str, ...]
    partition: str | None
    tasks_per_node: tuple[int, ...] | None


@dataclass(frozen=True)
class Allocation:
    """The job that a process runs in."""

    place: str
    """`allocation` (salloc's shell), `batch` (the script), `interactive` (srun --pty), `step`"""
    job_id: int
    """the leader's, for a heterogeneous job"""
    components: tuple[Component, ...]
    """empty where a heterogeneous job does not tell its components"""
    heterogeneous: bool
    restart_count: int
    array_job_id: int | None
    array_task_id: int | None

    @property
    def requeue_id(self) -> str:
        """The id for `scontrol requeue`: one task of an array, else the whole job."""
        if self.array_job_id is not None and self.array_task_id is not None:
            return f"{self.array_job_id}_{self.array_task_id}"
        return str(self.job_id)


def read_place(environment: Mapping[str, str]) -> str:
    """Return where a process with this environment runs: `outside` of Slurm, or one of Allocation.place."""
    if not environment.get("SLURM_JOB_ID"):
        return OUTSIDE
    step = environment.get("SLURM_STEP_ID")
    if not step:
        return BATCH if "SLURM_PROCID" in environment else ALLOCATION
    if step in _BATCH_STEPS:
        return BATCH
    return INTERACTIVE if step in _INTERACTIVE_STEPS or "SLURM_PTY_PORT" in environment else STEP


@reads("Slurm's environment")
def read_allocation(environment: Mapping[str, str]) -> Allocation:
    """Return the job that a process runs in.

    Raises SlurmOutputError outside of a job, or where Slurm's variables are malformed or incomplete.
    """
    if read_place(environment) == OUTSIDE:
        raise SlurmOutputError("this process runs in no Slurm job: SLURM_JOB_ID is not set; start it with sbatch, "
                               "salloc or srun")
    size = environment.get("SLURM_HET_SIZE") or environment.get("SLURM_PACK_SIZE")
    components = (tuple(_component(environment, index) for index in range(integer(environment, "SLURM_HET_SIZE", size)))
                  if size and _group(environment, "JOB_NODELIST", 0) is not None
                  else () if size else (_plain(environment),))
    return Allocation(
        place=read_place(environment), job_id=integer(environment, "SLURM_JOB_ID"), components=components,
        heterogeneous=bool(size), restart_count=integer(environment, "SLURM_RESTART_COUNT", "0"),
        array_job_id=_optional(environment, "SLURM_ARRAY_JOB_ID"),
        array_task_id=_optional(environment, "SLURM_ARRAY_TASK_ID"))


def _component(environment: Mapping[str, str], index: int) -> Component:
    nodes = _group(environment, "JOB_NODELIST", index)
    if nodes is None:
        raise SlurmOutputError(f"SLURM_JOB_NODELIST_HET_GROUP_{index} is not set, though the job has "
                               f"{environment.get('SLURM_HET_SIZE')} components; pass Slurm's variables on")
    tasks = _group(environment, "TASKS_PER_NODE", index)
    return Component(index=index, job_id=int(_group(environment, "JOB_ID", index) or environment["SLURM_JOB_ID"]),
                     nodes=tuple(expand_hostlist(nodes)), partition=_group(environment, "JOB_PARTITION", index),
                     tasks_per_node=read_counts(tasks) if tasks else None)


def _group(environment: Mapping[str, str], name: str, index: int) -> str | None:
    """A variable of one component, also under its name of before Slurm 20.02."""
    return environment.get(f"SLURM_{name}_HET_GROUP_{index}") or environment.get(f"SLURM_{name}_PACK_GROUP_{index}")


def _plain(environment: Mapping[str, str]) -> Component:
    nodes = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    if not nodes:
        raise SlurmOutputError("SLURM_JOB_NODELIST is not set, though SLURM_JOB_ID is; pass Slurm's variables on to "
                               "this process (a container may need them named)")
    tasks = environment.get("SLURM_TASKS_PER_NODE")
    return Component(index=0, job_id=integer(environment, "SLURM_JOB_ID"), nodes=tuple(expand_hostlist(nodes)),
                     partition=environment.get("SLURM_JOB_PARTITION"),
                     tasks_per_node=read_counts(tasks) if tasks else None)


def read_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of `2(x2),1(x2)`: 2, 2, 1, 1. Raises SlurmOutputError for a malformed text."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            raise SlurmOutputError(f"{text[:80]!r} is no list of Slurm such as 2(x3),1")
        if max(len(match[1]), len(match[2] or "")) > _MOST_DIGITS or len(counts) + int(match[2] or 1) > _MOST_NODES:
            raise SlurmOutputError(f"{text[:80]!r} lists more than {_MOST_NODES:,} numbers, or larger ones than Slurm "
                                   "has; pass Slurm's variables on unchanged")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def integer(environment: Mapping[str, str], name: str, default: str | None = None) -> int:
    """Return a variable as a number. Raises SlurmOutputError where it is missing or no number."""
    text = environment.get(name, default)
    if text is None or not text.isdigit():
        raise SlurmOutputError(f"{name} is {text!r}, where Slurm sets a number; pass Slurm's variables on unchanged")
    return int(text)


def _optional(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    return int(text) if text and text.isdigit() else None
