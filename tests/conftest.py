"""Fixtures of all tests."""

from tests.slurm_cluster.fixture import each_slurm, make_each_slurm, make_slurm, slurm, slurm_accounting

__all__ = ["each_slurm", "make_each_slurm", "make_slurm", "slurm", "slurm_accounting"]
