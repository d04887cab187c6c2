"""Decides where a run goes, and hands it to Slurm."""

from holmes_hpc.submit.mode import Decision, decide_mode

__all__ = ["Decision", "decide_mode"]
