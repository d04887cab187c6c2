"""From a configuration to a finished run."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.here import run_here
from holmes_hpc.launch.in_allocation import run_as_rank, run_in_allocation
from holmes_hpc.launch.on_slurm import show_dry_run, submit_and_follow
from holmes_hpc.launch.resume import resolve_resume
from holmes_hpc.planner import bind, plan, render, search_progress
from holmes_hpc.runs import RunFolder, heal, read_result
from holmes_hpc.submit import Decision, decide_mode
from holmes_hpc.values import Plan
from holmes_hpc.values.capabilities import unsupported

LOG = logging.getLogger(__name__)

PLAN_WIDTH = 120
"""Columns of the printed plan where the output is no terminal."""


def train(config: Any) -> tuple[int, float]:
    """Plan, launch and follow a run; return the exit status and the median tokens per second.

    Raises ConfigurationError, PlanRefusedError or LaunchImpossibleError before anything is started.
    """
    cluster = ClusterDescription.from_config(config.cluster)
    decision = decide_mode(config, cluster, os.environ)
    if decision.mode == "rank":
        return run_as_rank(config), 0.0
    with search_progress(sys.stderr) as progress:
        chosen = plan(config, mode="slurm" if decision.mode == "srun" else decision.mode, progress=progress)
    refuse_unsupported(config)
    _refuse_idle_nodes(cluster, chosen, decision)
    config.train.resume = resolve_resume(config)
    console = Console(width=None if sys.stdout.isatty() else PLAN_WIDTH)
    console.print(render(chosen, cluster))
    if config.launch.dry_run:
        LOG.warning("launch.dry_run: nothing is started; it would go to: %s", decision.reason)
        if decision.mode == "slurm":
            show_dry_run(config)
        return 0, 0.0
    folder = make_folder(config, chosen)
    LOG.info("%s; run folder %s", decision.reason, folder.path)
    status = _launch(config, chosen, cluster, folder, decision)
    result = read_result(folder) or {}
    if result.get("status") == "completed":
        if folder.probe_path.exists():
            LOG.info("the links were measured: %s; plan with them by cluster.measured=%s", folder.probe_path,
                     folder.probe_path)
        if not config.launch.probe_only:
            _report(folder)
    return status, float(result.get("tokens_per_second_median") or 0.0)


def make_folder(config: Any, chosen: Plan) -> RunFolder:
    """Make the run folder with its configuration and plan."""
    base = Path(config.run.folder)
    heal(base)
    folder = RunFolder.create(base, config.run.name or config.cluster.name)
    folder.write_text(folder.config_path, OmegaConf.to_yaml(config))
    folder.write_text(folder.plan_path, chosen.to_json())
    return folder


def _launch(config: Any, chosen: Plan, cluster: ClusterDescription, folder: RunFolder, decision: Decision) -> int:
    if decision.mode == "slurm":
        return submit_and_follow(config, folder)
    if decision.mode == "srun":
        return run_in_allocation(config, folder)
    bound = bind(chosen, {place.slot: place.slot.replace("/", "-") for place in chosen.ranks})
    folder.write_text(folder.plan_path, bound.to_json())
    # A plan may leave nodes of the cluster out; only its own are started.
    return run_here(bound, config, cluster.only(place.slot for place in chosen.ranks), folder, decision.mode)


def _report(folder: RunFolder) -> None:
    """Print the run's table and draw its pictures; a fault there does not undo a finished run."""
    from analysis import throughput

    try:
        throughput.main([str(folder.path)])
    except Exception as error:
        LOG.warning("the run is complete, but its report failed: %s: %s", type(error).__name__, error)


def _refuse_idle_nodes(cluster: ClusterDescription, chosen: Plan, decision: Decision) -> None:
    """Raise ConfigurationError where a plan leaves nodes out that a Slurm job of this cluster file would hold."""
    idle = [node.slot for node in cluster.nodes if node.slot not in {place.slot for place in chosen.ranks}]
    if idle and decision.mode in ("slurm", "srun"):
        raise ConfigurationError(f"the plan leaves out {', '.join(idle)}, which the job would hold for nothing. Lower "
                                 "cluster.partitions.LABEL.nodes by them, or set parallel.leave_nodes_out=false.")


def refuse_unsupported(config: Any) -> None:
    """Raise ConfigurationError for what is asked for and the engine cannot do."""
    problems = unsupported(config)
    if problems:
        raise ConfigurationError("; ".join(problems))
