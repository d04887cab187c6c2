"""Starts ranks, or is one."""

from holmes_hpc.launch.train import train

__all__ = ["train"]
