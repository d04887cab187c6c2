"""From a configuration to a finished run."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import ClusterDescription, read_cluster
from holmes_hpc.cluster.nccl import may_share_gpus
from holmes_hpc.config.places import text_to_keep
from holmes_hpc.data.before import check_data_files
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.course import say_course
from holmes_hpc.launch.follow.advice import next_steps
from holmes_hpc.launch.here.ended import clear_and_advise
from holmes_hpc.launch.here.left_to_slurm import left_to_slurm
from holmes_hpc.launch.here.played import check_played, played_disturbances, scale_warnings
from holmes_hpc.launch.here.resume import resolve_resume
from holmes_hpc.launch.here.run import run_here
from holmes_hpc.launch.here.tunnel import check_tunnel, idle_settings, tunnel_words
from holmes_hpc.launch.node.backend import backend_here
from holmes_hpc.launch.node.descriptors import check_descriptors
from holmes_hpc.launch.node.node_report import read_node
from holmes_hpc.launch.pretrained import check_pretrained, keep_texts
from holmes_hpc.launch.slurm.in_allocation import run_as_rank, run_in_allocation
from holmes_hpc.launch.slurm.job_plan import plan_for_job
from holmes_hpc.launch.slurm.run import show_dry_run, submit_and_follow
from holmes_hpc.launch.slurm.travelling import check_travelling
from holmes_hpc.planner import bind, for_library, plan, render, search_progress, tunnel_prices
from holmes_hpc.planner.telling.describe import in_a_line
from holmes_hpc.runs import RunFolder, describe_job, heal, read_result
from holmes_hpc.runs.place import check_place, check_umask
from holmes_hpc.submit import Decision, decide_mode
from holmes_hpc.values import Plan
from holmes_hpc.values.capabilities import unsupported
from holmes_hpc.values.timed import TimedPrices

LOG = logging.getLogger(__name__)

PLAN_WIDTH = 120
"""Columns of the printed plan where the output is no terminal."""


def train(config: Any) -> tuple[int, float]:
    """Plan, launch and follow a run; return the exit status and the median tokens per second.

    Raises ConfigurationError, PlanRefusedError or LaunchImpossibleError before anything is started.
    """
    status, folder = run(config)
    result = (folder and read_result(folder)) if status == 0 else {}
    return status, float((result or {}).get("tokens_per_second_median") or 0.0)


def run(config: Any, *, brief: bool = False) -> tuple[int, RunFolder | None]:
    """Plan, launch and follow a run as `train` does; return the exit status and the run folder, where one was made.

    `brief`: of the plan only a line is printed, and of the report its pictures are made.
    """
    cluster = read_cluster(config.cluster)
    decision = decide_mode(config, cluster, os.environ)
    if decision.mode == "rank":
        run_as_rank(config, cluster)
    here = decision.mode in ("emulated", "local")
    is_tunnel = here and cluster.compute == "timed"
    if is_tunnel:
        check_tunnel(config)
    check_before(config, has_weights=not is_tunnel)
    if decision.mode in ("slurm", "srun"):
        check_travelling(config, cluster, os.environ, submitted=decision.mode == "slurm")
    if here:
        check_descriptors()
        check_played(cluster, decision.mode)
    library = (backend_here(str(config.launch.backend), decision.mode, cluster, read_node("here").gpus,
                            shared=may_share_gpus(os.environ)) if here else None)
    on_gpus = here and (library is None or library.needs_gpus)
    cluster, not_played = played_disturbances(cluster, decision.mode, on_gpus=on_gpus)
    with search_progress(sys.stderr) as progress:
        chosen = (plan_for_job(config, cluster, progress) if decision.mode in ("slurm", "srun")
                  else plan(config, decision.mode, cluster, progress))
    timed = tunnel_prices(config, chosen, cluster) if is_tunnel else None
    if here:
        chosen = for_library(chosen, knows_nodes=library is None or library.knows_nodes)
    refuse_unsupported(config, chosen)
    fill_in_resume(config)
    if not is_tunnel:
        say_course([config])
    for words in filter(None, (not_played, left_to_slurm(config, decision.mode) if here else "")):
        LOG.warning("%s", words)
    for words in (*(scale_warnings(cluster) if decision.mode == "emulated" else ()),
                  *(idle_settings(config) if is_tunnel else ())):
        LOG.warning("%s", words)
    if not brief:
        console = Console(width=None if sys.stdout.isatty() else PLAN_WIDTH)
        console.print(render(chosen, cluster))
    if config.launch.dry_run:
        LOG.warning("launch.dry_run: nothing is started; it would go to: %s", decision.full_reason)
        if decision.mode == "slurm":
            show_dry_run(config)
        return 0, None
    folder = make_folder(config, chosen, decision.mode)
    LOG.info("%s; run folder %s", in_a_line(chosen) if brief else decision.reason, folder.path)
    if timed is not None:
        LOG.warning("%s", tunnel_words(timed, asked=config.cluster.emulate.dilation is not None))
    status = _launch(config, chosen, cluster, folder, decision, timed)
    if status == 0 and (read_result(folder) or {}).get("status") == "completed":
        if folder.probe_path.exists():
            LOG.info("the links were measured: %s; %s", folder.probe_path,
                     "they are the emulated cluster's, so no plan of a real one is to use them"
                     if decision.mode == "emulated" else f"plan with them by cluster.measured={folder.probe_path}")
        if not config.launch.probe_only:
            _report(folder, brief=brief, pictures=config.run.pictures)
            if not brief:
                LOG.info("%s", next_steps(folder, config.train.checkpoint_every, has_weights=timed is None))
    return status, folder


def check_before(config: Any, *, has_weights: bool = True) -> None:
    """Check what planning does not need and the run will: a place for its folder, the files of its data and weights.

    A run whose ranks only wait has neither of these. Raises ConfigurationError.
    """
    check_place(Path(config.run.folder), run_name(config))
    check_umask(group_readable=config.run.group_readable)
    if has_weights and not config.launch.probe_only:
        check_data_files(config.data, Architecture.from_config(config.model))
        check_pretrained(config)


def fill_in_resume(config: Any) -> None:
    """Fill in which checkpoint `train.resume` means, after the runs that died gave theirs its name, where it lacked it.

    A dry run looks after none. Raises ConfigurationError as `resolve_resume` does.
    """
    if not config.launch.dry_run:
        heal(Path(config.run.folder), clear_and_advise)
    config.train.resume = resolve_resume(config)


def run_name(config: Any) -> str:
    """Return the run's name: the cluster's, unless `run.name` is set."""
    return str(config.run.name or config.cluster.name)


def make_folder(config: Any, chosen: Plan, mode: str = "slurm") -> RunFolder:
    """Make the run folder with its configuration and plan; where that fails, nothing of it stays.

    That of a run on this machine begins with job.json: from then on a later start sees whether its process lives.
    """
    files = {"config.yaml": text_to_keep(config), "plan.json": chosen.to_json()}
    if mode in ("emulated", "local"):
        files = {"job.json": json.dumps(describe_job(emulated=mode == "emulated", environment=os.environ)), **files}
    folder = RunFolder.create(Path(config.run.folder), run_name(config), files,
                              group_readable=config.run.group_readable)
    keep_texts(config, folder)
    return folder


def _launch(config: Any, chosen: Plan, cluster: ClusterDescription, folder: RunFolder, decision: Decision,
            timed: TimedPrices | None) -> int:
    if decision.mode == "slurm":
        return submit_and_follow(config, folder)
    if decision.mode == "srun":
        return run_in_allocation(config, folder)
    bound = bind(chosen, {place.slot: place.slot.replace("/", "-") for place in chosen.ranks})
    folder.write_text(folder.plan_path, bound.to_json())
    # A plan may leave nodes of the cluster out; only its own are started.
    return run_here(bound, config, cluster.only(place.slot for place in chosen.ranks), folder, decision.mode, timed)


def _report(folder: RunFolder, *, brief: bool, pictures: bool) -> None:
    """Print the run's table unless `brief`, and draw its pictures; a fault there does not undo a finished run."""
    if brief and not pictures:
        return
    from analysis import throughput

    try:
        with redirect_stdout(io.StringIO()) if brief else nullcontext():
            throughput.main([str(folder.path), *(() if pictures else ("--no-pictures",))])
    except Exception as error:
        LOG.warning("the run is complete, but its report failed: %s: %s", type(error).__name__, error)


def refuse_unsupported(config: Any, plan: Plan | None = None) -> None:
    """Raise ConfigurationError for what is asked for and the engine cannot do."""
    problems = unsupported(config, plan)
    if problems:
        raise ConfigurationError("; ".join(problems))
