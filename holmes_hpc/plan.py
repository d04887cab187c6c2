"""`python -m holmes_hpc.plan +cluster=NAME`: print the plan and the rejected alternatives, launch nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from omegaconf import DictConfig

from holmes_hpc import front
from holmes_hpc.errors import ConfigurationError


def act(config: DictConfig) -> front.Outcome:
    """Print the plan on stdout, as a table or as JSON alone."""
    if config.output == "megatron":
        raise ConfigurationError(
            "output=megatron: this version cannot write a plan out for Megatron-LM yet; use output=table or json."
        )
    from rich.console import Console

    from holmes_hpc import planner
    from holmes_hpc.cluster import ClusterDescription

    plan = planner.plan(config)
    if config.output == "json":
        sys.stdout.write(plan.to_json() + "\n")
    else:
        width = None if sys.stdout.isatty() else 120
        Console(width=width).print(planner.render(plan, ClusterDescription.from_config(config.cluster)))
    return 0, None


COMMAND = front.Command("plan", "Print the plan and the rejected alternatives with their figures; launch nothing.", act)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return front.main(COMMAND, argv)


if __name__ == "__main__":
    sys.exit(main())
