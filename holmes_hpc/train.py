"""`python -m holmes_hpc.train +cluster=NAME`: compose, plan, launch, train."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from omegaconf import DictConfig

from holmes_hpc import front


def act(config: DictConfig) -> front.Outcome:
    """Train, and return the exit status and the median tokens per second, which a sweeper can optimise."""
    from holmes_hpc.launch.train import train

    return train(config)


COMMAND = front.Command("train", "Plan one job over all partitions of the cluster, launch it, and train.", act)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return front.main(COMMAND, argv)


if __name__ == "__main__":
    sys.exit(main())
