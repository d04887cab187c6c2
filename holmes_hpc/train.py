"""`python -m holmes_hpc.train +cluster=NAME`: compose, plan, launch, train. A script calls `holmes_hpc.train(...)`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from omegaconf import DictConfig

from holmes_hpc import api, front


def act(config: DictConfig) -> front.Outcome:
    """Train, and return the exit status and the median tokens per second, which a sweeper can optimise."""
    from holmes_hpc.launch.follow.console import lasting_output
    from holmes_hpc.launch.train import train

    with lasting_output():
        return train(config)


def sweep(configs: Sequence[DictConfig], words: Sequence[str], place: Path) -> list[front.Outcome] | None:
    """Submit all jobs of a sweep to Slurm at once, or run them here one after another; None for dry runs."""
    from holmes_hpc.launch.follow.console import lasting_output
    from holmes_hpc.launch.sweep import sweep as submit_all

    with lasting_output():
        return submit_all(configs, words, place)


COMMAND = front.Command("train", "Plan one job over all partitions of the cluster, launch it, and train.", act,
                        sweep=sweep)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return front.main(COMMAND, argv)


class _CalledAsFunction(ModuleType):
    """This module: `holmes_hpc.train` is its name, whoever imported it, and is called as a function too."""

    def __call__(self, settings: api.Settings, *, show: bool = False) -> api.Result:
        """See `api.train`."""
        return api.train(settings, show=show)


sys.modules[__name__].__class__ = _CalledAsFunction

if __name__ == "__main__":
    sys.exit(main())
