"""Slurm's commands as a login node has them, without the caller's own Slurm variables."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from holmes_hpc.cluster.slurm import SlurmSettings, read_settings
from holmes_hpc.errors import RunFailedError

ANSWER_SECONDS = 2.0
"""How long a controller may take to answer before it counts as absent."""

_LEAKING = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_")
_KEPT = ("SLURM_CONF", "SLURM_JWT")


class SlurmCommandError(RunFailedError):
    """A Slurm command failed; the message holds its whole error output."""


def leaking_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the variables of a job that would change what a nested submission asks for; `SLURM_CONF` stays."""
    return sorted(name for name in environment if name.startswith(_LEAKING) and name not in _KEPT)


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a Slurm command."""
    leaking = set(leaking_variables(environment))
    kept = {name: value for name, value in environment.items() if name not in leaking}
    return {**kept, "SLURM_BITSTR_LEN": "0"}  # else squeue cuts the list of an array's waiting tasks


def run_command(words: Sequence[str], *, timeout_seconds: float = 60.0) -> str:
    """Run a Slurm command and return what it printed. Raises SlurmCommandError with its whole error output."""
    return _run(words, timeout_seconds).stdout


def run_command_aloud(words: Sequence[str]) -> str:
    """Run a Slurm command that answers on its error output, and return that. Raises as `run_command` does."""
    return _run(words, 60.0).stderr.strip()


def _run(words: Sequence[str], timeout_seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(list(words), capture_output=True, text=True, timeout=timeout_seconds, check=False,
                              env=clean_environment(os.environ), stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise SlurmCommandError(f"{words[0]}: not found here; load Slurm's module or use another node") from None
    except subprocess.TimeoutExpired:
        line = " ".join(words)
        raise SlurmCommandError(f"{line}: no answer within {timeout_seconds:.0f} s; is slurmctld up?") from None
    if done.returncode != 0:
        raise SlurmCommandError(f"{' '.join(words)} failed with status {done.returncode}: {done.stderr.strip()}")
    return done


def read_cluster_settings() -> SlurmSettings:
    """Return what `scontrol show config` says. Raises SlurmCommandError."""
    return read_settings(run_command(["scontrol", "show", "config"]))


def known_partitions() -> set[str] | None:
    """Return the partitions that a controller knows, or None where none answers in time."""
    try:
        answer = run_command(["sinfo", "--noheader", "--format=%R"], timeout_seconds=ANSWER_SECONDS)
    except SlurmCommandError:
        return None
    return {line.strip() for line in answer.splitlines() if line.strip()}


def nodes_of_job(job_id: str) -> int | None:
    """Return the number of nodes of a job, all components together, or None where no controller answers."""
    try:
        answer = run_command(["squeue", "--noheader", f"--jobs={job_id}", "--format=%D"],
                             timeout_seconds=ANSWER_SECONDS)
    except SlurmCommandError:
        return None
    return sum(int(count) for count in answer.split() if count.isdigit()) or None
