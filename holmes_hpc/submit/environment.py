"""The environment of a job for submitit's plug-in interface, which wants one beside the executor."""

from __future__ import annotations

from submitit.slurm.slurm import SlurmJobEnvironment


class HolmesJobEnvironment(SlurmJobEnvironment):
    """Never active: inside our jobs runs our own launcher, not submitit's."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the executor that this environment belongs to."""
        return "holmes"

    def activated(self) -> bool:
        """Return False, so that submitit's own environment answers in jobs that submitit started."""
        return False
