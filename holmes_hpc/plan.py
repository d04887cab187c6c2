"""`python -m holmes_hpc.plan +cluster=NAME`: print the plan and the rejected alternatives, launch nothing.

A script calls `holmes_hpc.plan(...)`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from holmes_hpc import api, front
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.paths import is_folder
from holmes_hpc.resources import put_analysis_first

if TYPE_CHECKING:
    from holmes_hpc.cluster import ClusterDescription
    from holmes_hpc.values import Plan

_PICTURES = (".pdf", ".png", ".svg")


def act(config: DictConfig) -> front.Outcome:
    """Print the plan on stdout, as a table with its explanation or as JSON alone; draw it where asked.

    Beside the exit status return the predicted tokens per second, which a sweeper can make as large as it can.
    """
    _check_picture(config.picture)
    if config.output_folder and config.output != "megatron":
        raise ConfigurationError(f"output_folder={config.output_folder}: only output=megatron writes files; add it, or "
                                 "leave output_folder out.")
    from holmes_hpc import planner
    from holmes_hpc.cluster import read_cluster
    from holmes_hpc.data.before import check_data_exists

    check_data_exists(config.data)
    cluster = read_cluster(config.cluster)
    if config.output == "megatron":
        plan = _export(config, cluster)
    elif config.output == "json":
        plan = planner.plan(config, cluster=cluster)
        sys.stdout.write(plan.to_json() + "\n")
    else:
        with planner.search_progress(sys.stderr) as progress:
            plan = planner.plan(config, cluster=cluster, progress=progress)
        _print(config, plan, cluster)
    if config.picture:
        _draw(config, plan, cluster, Path(config.picture))
    return 0, plan.predicted.tokens_per_second


def _export(config: DictConfig, cluster: ClusterDescription) -> Plan:
    """Write what Megatron-LM needs into the output folder, or all of it on stdout; return the plan."""
    from holmes_hpc.planner.megatron_export import export

    made = export(config, cluster)
    if config.output_folder:
        made.write(Path(config.output_folder))
        sys.stdout.write(made.files["README.txt"])
    else:
        sys.stdout.write(made.text)
    return made.plan


def _print(config: DictConfig, plan: Plan, cluster: ClusterDescription) -> None:
    from rich.console import Console

    from holmes_hpc import planner
    from holmes_hpc.planner.telling.explain import explain
    from holmes_hpc.planner.telling.render import render_explanation

    console = Console(width=None if sys.stdout.isatty() else 120)
    limits = render_explanation(explain(config, plan, cluster=cluster), plan)
    console.print(planner.render(plan, cluster, limits))
    if cluster.disturbances:
        from holmes_hpc.planner.telling.disturbed import forecasts, planned_under, render_choices
        from holmes_hpc.planner.telling.restore import restore

        found = forecasts(*restore(config, plan, cluster=cluster), plan.schedule, int(config.train.steps))
        table = render_choices(found, planned_under(config, planner.plan, None), cluster)
        if table is not None:
            console.print(table)


def _check_picture(picture: str | None) -> None:
    if not picture:
        return
    if Path(picture).suffix.lower() not in _PICTURES:
        raise ConfigurationError(f"picture={picture}: the ending says the format, and this is none of "
                                 f"{', '.join(_PICTURES)}; write such as picture=plan.png.")
    path = Path(picture).absolute()
    if is_folder(path, "picture") or not is_folder(path.parent, "picture"):
        what = "is a folder" if path.parent.is_dir() else f"cannot be written: there is no folder {path.parent}"
        raise ConfigurationError(f"picture={picture}: {what}; name a file in a folder that exists.")
    if not os.access(path if path.exists() else path.parent, os.W_OK, effective_ids=True):
        raise ConfigurationError(f"picture={picture}: cannot be written: Permission denied; name a file in a folder "
                                 "that you may write.")


def _draw(config: DictConfig, plan: Plan, cluster: ClusterDescription, path: Path) -> None:
    put_analysis_first()
    from analysis.predicted import plan_picture

    try:
        plan_picture(config, plan, path, cluster=cluster)
    except OSError as error:
        raise ConfigurationError(f"picture={path}: cannot be written: {error.strerror or error}; name a file in "
                                 "a folder that exists.") from None
    sys.stderr.write(f"holmes plan: wrote {path}\n")


COMMAND = front.Command("plan", "Print the plan and the rejected alternatives with their figures; launch nothing.", act)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return front.main(COMMAND, argv)


class _CalledAsFunction(ModuleType):
    """This module: `holmes_hpc.plan` is its name, whoever imported it, and is called as a function too."""

    def __call__(self, settings: api.Settings) -> Plan:
        """See `api.plan`."""
        return api.plan(settings)


sys.modules[__name__].__class__ = _CalledAsFunction

if __name__ == "__main__":
    sys.exit(main())
