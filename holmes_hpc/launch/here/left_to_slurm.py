"""Settings of `launch` that only a job of Slurm heeds: a run on this machine says which of those that were set."""

from __future__ import annotations

from typing import Any

from holmes_hpc.config.schema import Launch

LEFT_TO_SLURM = ("container", "container_kind", "container_args", "python", "setup", "sbatch", "srun_args", "templates",
                 "snapshot", "signal", "signal_seconds", "requeue", "wait", "on_mismatch", "max_jobs", "new_sweep")
"""Settings that say how a job is submitted, started and ended, or what is done about nodes unlike their description."""


def left_to_slurm(config: Any, mode: str) -> str:
    """Return what to say of settings that were set and play no part in a run here, `emulated` or `local`; else nothing.

    Ranks are processes of this very Python then, outside of any container that is not around the command itself.
    """
    usual = Launch()
    given = [f"launch.{name}={config.launch[name]}" for name in LEFT_TO_SLURM
             if config.launch[name] != getattr(usual, name)]
    return (f"{', '.join(given)}: no part of {mode} runs, whose ranks are processes of this Python "
            "as it is; only a job of Slurm heeds them (launch.mode=slurm)") if given else ""
