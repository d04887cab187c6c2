"""A run inside an allocation of Slurm: start a step there, or be one rank of a step that a site's own srun started."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.slurm import StepLayout, read_allocation, read_place, read_step
from holmes_hpc.cluster.slurm.allocation import INTERACTIVE, STEP, Allocation
from holmes_hpc.config.places import text_to_keep
from holmes_hpc.errors import INTERRUPTED, HolmesError, LaunchImpossibleError, RunFailedError
from holmes_hpc.launch.follow.interruption import InterruptedRunError, interruptible
from holmes_hpc.launch.follow.progress import make_reporter
from holmes_hpc.launch.pretrained import keep_texts
from holmes_hpc.launch.rank.leaving import leave_process
from holmes_hpc.launch.slurm.job_plan import plan_for_job
from holmes_hpc.launch.slurm.rank import be_rank
from holmes_hpc.paths import at_home
from holmes_hpc.quoting import for_shell
from holmes_hpc.redaction import redact
from holmes_hpc.runs import NewSteps, Notes, RunFolder, write_job, write_result
from holmes_hpc.runs.files import read_json, write_json_atomic
from holmes_hpc.runs.going_on import with_way_on
from holmes_hpc.submit.components import Component, job_components
from holmes_hpc.submit.job import link_job
from holmes_hpc.submit.outcome import STATUS, outcome_of
from holmes_hpc.submit.script import rank_program, srun_words, step_command
from holmes_hpc.submit.snapshot import import_path
from holmes_hpc.submit.step_guard import StepGuard, start_prefix

LOG = logging.getLogger(__name__)

LOOK_SECONDS = 0.3
GUARD_SECONDS = 2.0
_OF_OUTER_STEP = ("SLURM_STEP", "SLURM_CPU_BIND", "SLURM_DISTRIBUTION", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES",
                  "SLURM_PTY", "SLURM_TASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_CPUS_PER_TASK",
                  "SRUN_", "SLURM_GTIDS", "SLURM_NODELIST", "SLURM_NODEID", "SLURM_MEM_PER_")


def run_in_allocation(config: Any, folder: RunFolder) -> int:
    """Start one step in the allocation that this process runs in, follow it, and return the exit status.

    Ctrl-C, SIGTERM or a closed terminal ends the step.

    Raises LaunchImpossibleError where the allocation has other components than the cluster file.
    """
    allocation = read_allocation(os.environ)
    command = allocation_command(config, folder, allocation, read_place(os.environ))
    write_job(folder, job_id=allocation.requeue_id, emulated=False, restarts=allocation.restart_count,
              environment=os.environ)
    link_job(folder, allocation.requeue_id)
    LOG.info("%s", redact(command))
    with (folder.logs / "srun.log").open("w") as log:
        step = subprocess.Popen(command, shell=True, executable="/bin/bash", stdin=subprocess.DEVNULL,
                                stdout=log, stderr=subprocess.STDOUT, env=step_environment(os.environ),
                                start_new_session=True)
        try:
            with interruptible():
                status = _follow(step, folder, config.train.steps, StepGuard(
                    folder, start_prefix(os.environ), say=lambda text: LOG.warning("%s", text)))
        except InterruptedRunError as interruption:
            _end_step(step)
            text = with_way_on(folder, f"interrupted by {interruption}")
            write_result(folder, "failed", error=text, emulated=False)
            LOG.warning("%s; the run is ended, its folder is %s", text, folder.path)
            return INTERRUPTED
    ended, text = outcome_of(folder, str(status), "logs/srun.log")
    if ended == "completed":
        return 0
    text = with_way_on(folder, text)
    write_result(folder, ended, error=text, emulated=False)
    LOG.error("%s: %s", ended, text)
    return STATUS[ended]


def allocation_command(config: Any, folder: RunFolder, allocation: Allocation, place: str) -> str:
    """Return the line of shell that starts all ranks inside an allocation.

    Raises LaunchImpossibleError where the allocation's components are not those of the cluster file.
    """
    launch = config.launch
    arguments = srun_words(launch)
    if place in (STEP, INTERACTIVE):
        arguments = ["--overlap", *arguments]  # the step that this process runs in holds the cores until it ends
    program = rank_program(launch, for_shell(str(folder.path)))
    parts = list(config.cluster.partitions.values()) or [config.cluster]
    if allocation.heterogeneous:
        components = job_components(config.cluster, {})
        if allocation.components and len(allocation.components) != len(components):
            raise LaunchImpossibleError(
                f"job {allocation.job_id} has {len(allocation.components)} components, and {config.cluster.name} "
                f"needs {len(components)}: {', '.join('+'.join(part.labels) for part in components)}; ask for one "
                "component for each, in this order (salloc ... : ...), or set cluster.shape"
            )
        return step_command([_counted(component) for component in components], arguments, program)
    nodes = sum(part.nodes for part in parts)
    tasks = sum(part.nodes * part.gpus_per_node for part in parts)
    words = [f"--nodes={nodes}", f"--ntasks={tasks}"]
    if len({part.gpus_per_node for part in parts}) == 1:
        words.append(f"--ntasks-per-node={parts[0].gpus_per_node}")
    cpus = {getattr(part, "cpus_per_task", None) for part in config.cluster.partitions.values()} - {None}
    if len(cpus) == 1:
        words.append(f"--cpus-per-task={cpus.pop()}")
    return step_command((), [*words, *arguments], program)


def _counted(component: Component) -> Component:
    """Return a component whose numbers are said to srun, since its allocation may have been asked for otherwise."""
    return Component(component.labels, component.nodes, component.tasks_per_node, {}, component.cpus_per_task)


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a new step: the job's variables, without those of the step that this process is in.

    srun would read them as wishes for the new one.
    """
    kept = {name: value for name, value in environment.items()
            if not name.startswith(_OF_OUTER_STEP) or "_HET_GROUP_" in name or "_PACK_GROUP_" in name}
    path = import_path()
    return {**kept, "PYTHONUNBUFFERED": "1", **({"PYTHONPATH": path} if path else {})}


def _follow(step: subprocess.Popen[bytes], folder: RunFolder, steps: int, guard: StepGuard) -> int:
    rows, notes, guarded = NewSteps(folder.metrics_path), Notes(folder), time.monotonic()
    with make_reporter(steps, sys.stderr) as reporter:
        while True:
            status = step.poll()
            for row in rows.rows():
                reporter.step(row)
            for note in notes.new():
                LOG.info("%s", note)
            if status is not None:
                return status
            if time.monotonic() >= guarded + GUARD_SECONDS:
                guarded = time.monotonic()
                if why := guard.look():
                    LOG.warning("%s", why)
                    _end_step(step)
            time.sleep(LOOK_SECONDS)


def _end_step(step: subprocess.Popen[bytes]) -> None:
    """End the step as srun does on a second Ctrl-C, and wait for it."""
    try:
        os.killpg(step.pid, signal.SIGTERM)
        step.wait(timeout=30)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        step.kill()


def run_as_rank(config: Any, cluster: ClusterDescription) -> NoReturn:
    """Be one rank of a step that a site's own srun started, and end the process with the rank's exit status.

    Rank 0 makes the run folder and announces it. Raises HolmesError where there is none to train in.
    """
    layout = read_step(os.environ)
    leave_process(be_rank(_shared_folder(config, cluster, layout), layout))


def _shared_folder(config: Any, cluster: ClusterDescription, layout: StepLayout) -> RunFolder:
    """Return the run folder that rank 0 made; all ranks composed the same configuration."""
    base, name = at_home(config.run.folder, "run.folder").absolute(), str(config.run.name or config.cluster.name)
    announcement = _announcement(base / name, layout.name)
    if layout.rank == 0:
        return _announce(config, cluster, layout, base, name)
    deadline = time.monotonic() + config.train.start_timeout_seconds
    while (told := read_json(announcement)) is None:
        if time.monotonic() > deadline:
            seconds = config.train.start_timeout_seconds
            raise RunFailedError(f"rank {layout.rank}: rank 0 announced no run folder in {announcement} within "
                                 f"{seconds:g} s; is run.folder={base} on a file system that all nodes share? If rank "
                                 f"0 is only slow to start, raise train.start_timeout_seconds (now {seconds:g})")
        time.sleep(0.05)
    if "error" in told:
        raise RunFailedError(f"rank {layout.rank}: rank 0 could not start: {told['error']}")
    return RunFolder(Path(told["folder"]))


def _announcement(place: Path, start: str) -> Path:
    return place / f".start-{start}.json"


def _announce(config: Any, cluster: ClusterDescription, layout: StepLayout, base: Path, name: str) -> RunFolder:
    """On rank 0: make the run folder and tell the others where it is, or why there is none.

    A job that was requeued goes on in the folder of its earlier start.
    """
    announcement = _announcement(base / name, layout.name)
    try:
        folder = _earlier_folder(base / name, layout) or _new_folder(config, cluster, layout, base, name)
    except HolmesError as error:
        with contextlib.suppress(OSError, HolmesError):
            announcement.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(announcement, {"error": str(error)})
        raise
    folder.write_json(announcement, {"folder": str(folder.path)})
    return folder


def _earlier_folder(place: Path, layout: StepLayout) -> RunFolder | None:
    for restart in reversed(range(layout.restart_count)):
        told = read_json(_announcement(place, f"{layout.allocation.requeue_id}-{restart}-{layout.step_id}"))
        if isinstance(told, dict) and "folder" in told and Path(told["folder"]).is_dir():
            return RunFolder(Path(told["folder"]))
    return None


def _new_folder(config: Any, cluster: ClusterDescription, layout: StepLayout, base: Path, name: str) -> RunFolder:
    chosen = plan_for_job(config, cluster).to_json()
    folder = RunFolder.create(base, name, {"config.yaml": text_to_keep(config), "plan.json": chosen},
                              group_readable=config.run.group_readable)
    keep_texts(config, folder)
    write_job(folder, job_id=layout.allocation.requeue_id, emulated=False, restarts=layout.restart_count,
              environment=os.environ)
    link_job(folder, layout.allocation.requeue_id)
    return folder
