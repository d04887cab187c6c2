"""Slurm's commands as a login node has them, without the caller's own Slurm variables."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

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
    return {name: value for name, value in environment.items() if name not in leaking}


def run_command(words: Sequence[str], *, timeout_seconds: float = 60.0) -> str:
    """Run a Slurm command and return what it printed. Raises SlurmCommandError with its whole error output."""
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
    return done.stdout


def known_partitions() -> set[str] | None:
    """Return the partitions that a controller knows, or None where none answers in time."""
    try:
        answer = run_command(["sinfo", "--noheader", "--format=%R"], timeout_seconds=ANSWER_SECONDS)
    except SlurmCommandError:
        return None
    return {line.strip() for line in answer.splitlines() if line.strip()}
