"""From a configuration to a finished run."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.here import run_here
from holmes_hpc.planner import bind, plan, render
from holmes_hpc.runs import RunFolder, heal, read_result
from holmes_hpc.submit import decide_mode
from holmes_hpc.values import Plan
from holmes_hpc.values.capabilities import unsupported

LOG = logging.getLogger(__name__)

PLAN_WIDTH = 120
"""Columns of the printed plan where the output is no terminal."""


def train(config: Any) -> tuple[int, float]:
    """Plan, launch and follow a run; return the exit status and the median tokens per second.

    Raises ConfigurationError, PlanRefusedError or LaunchImpossibleError before anything is started.
    """
    decision = decide_mode(config.launch.mode)
    cluster = ClusterDescription.from_config(config.cluster)
    chosen = plan(config, mode=decision.mode)
    _refuse_unsupported(config, chosen)
    # A plan may leave nodes of the cluster out; only its own are started.
    cluster = cluster.only(place.slot for place in chosen.ranks)
    console = Console(width=None if sys.stdout.isatty() else PLAN_WIDTH)
    console.print(render(chosen, cluster))
    if config.launch.dry_run:
        LOG.warning("launch.dry_run: nothing is started; it would go to: %s", decision.reason)
        return 0, 0.0
    base = Path(config.run.folder)
    heal(base)
    folder = RunFolder.create(base, config.run.name or config.cluster.name)
    LOG.info("%s; run folder %s", decision.reason, folder.path)
    bound = bind(chosen, {place.slot: place.slot.replace("/", "-") for place in chosen.ranks})
    folder.config_path.write_text(OmegaConf.to_yaml(config))
    folder.write_text(folder.plan_path, bound.to_json())
    status = run_here(bound, config, cluster, folder, decision.mode)
    if status == 0:
        _report(folder)
    result = read_result(folder) or {}
    return status, float(result.get("tokens_per_second_median") or 0.0)


def _report(folder: RunFolder) -> None:
    """Print the run's table and draw its pictures; a fault there does not undo a finished run."""
    from analysis import throughput

    try:
        throughput.main([str(folder.path)])
    except Exception as error:
        LOG.warning("the run is complete, but its report failed: %s: %s", type(error).__name__, error)


def _refuse_unsupported(config: Any, chosen: Plan) -> None:
    problems = unsupported(config, chosen)
    if problems:
        raise ConfigurationError("; ".join(problems))
