"""A run on Slurm, seen from the command: submit and follow, start a step in an allocation, or be one rank."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from holmes_hpc.cluster.slurm.step import StepLayout, read_step
from holmes_hpc.errors import RunFailedError
from holmes_hpc.launch.progress import make_reporter
from holmes_hpc.launch.slurm_rank import be_rank
from holmes_hpc.runs import RunFolder, read_result
from holmes_hpc.submit.components import job_components
from holmes_hpc.submit.follow import follow
from holmes_hpc.submit.job import dry_run, submit
from holmes_hpc.submit.script import STEP_MODULE, step_command

LOG = logging.getLogger(__name__)


def submit_and_follow(config: Any, folder: RunFolder) -> int:
    """Submit the run and follow it to its end; Ctrl-C stops following, not the job. Return the exit status."""
    run = submit(config, folder)
    ways = (f"follow it by `holmes jobs`, its logs by `holmes logs {folder.path}`, cancel it by `scancel {run.job_id}`")
    LOG.info("submitted job %s; %s", run.job_id, ways)
    if not config.launch.wait:
        return 0
    try:
        with make_reporter(config.train.steps, sys.stderr) as reporter:
            status = follow(run, reporter.step, lambda state: LOG.info("job %s: %s", run.job_id, state))
    except KeyboardInterrupt:
        LOG.info("no longer following job %s, which goes on; %s", run.job_id, ways)
        return 0
    if status != 0:
        LOG.error("%s", (read_result(folder) or {}).get("error") or f"job {run.job_id} failed")
    return status


def show_dry_run(config: Any) -> None:
    """Print the batch script that would be submitted, checked by `sbatch --test-only`; leave nothing behind."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place), config.run.name or config.cluster.name)
        sys.stdout.write(dry_run(config, folder).replace(str(folder.path), "RUN_FOLDER"))


def run_in_allocation(config: Any, folder: RunFolder) -> int:
    """Start one step in the allocation that this process runs in, wait for it, and return the exit status."""
    components = job_components(config.cluster, {}) if "SLURM_HET_SIZE" in os.environ else ()
    words = step_command(components, list(config.launch.srun_args))
    if not components:
        world = sum(part.nodes * part.gpus_per_node for part in config.cluster.partitions.values())
        words += [f"--ntasks={world}"]
    done = subprocess.run([*words, sys.executable, "-m", STEP_MODULE, str(folder.path)], check=False)
    result = read_result(folder)
    if result is None or result["status"] != "completed":
        LOG.error("%s", (result or {}).get("error") or f"srun ended with {done.returncode}; see {folder.logs}")
        return 1
    return 0


def run_as_rank(config: Any) -> int:
    """Be one rank of a step that a site's own srun started: rank 0 makes the run folder and announces it."""
    layout = read_step(os.environ)
    return be_rank(_shared_folder(config, layout), layout)


def _shared_folder(config: Any, layout: StepLayout) -> RunFolder:
    """Return the run folder that rank 0 made; all ranks composed the same configuration."""
    from holmes_hpc.planner import plan

    base, name = Path(config.run.folder).expanduser().absolute(), str(config.run.name or config.cluster.name)
    announcement = base / name / f".start-{layout.name}.json"
    if layout.rank == 0:
        chosen = plan(config, mode="slurm")
        folder = RunFolder.create(base, name)
        folder.write_text(folder.config_path, OmegaConf.to_yaml(config))
        folder.write_text(folder.plan_path, chosen.to_json())
        folder.write_json(announcement, {"folder": str(folder.path)})
        return folder
    deadline = time.monotonic() + config.train.start_timeout_seconds
    while not announcement.exists():
        if time.monotonic() > deadline:
            raise RunFailedError(f"rank {layout.rank}: rank 0 announced no run folder in {announcement}; is "
                                 f"run.folder={base} on a file system that all nodes share?")
        time.sleep(0.05)
    return RunFolder(Path(json.loads(announcement.read_text())["folder"]))
