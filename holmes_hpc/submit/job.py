"""Submits a run to Slurm."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass
from typing import Any

from submitit.core.utils import FailedJobError

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.runs import RunFolder, write_job
from holmes_hpc.submit.commands import SlurmCommandError, run_command
from holmes_hpc.submit.components import job_components, job_shape
from holmes_hpc.submit.script import JobRequest, render_script


@dataclass(frozen=True)
class SubmittedRun:
    """A run in Slurm's hands."""

    job_id: str
    folder: RunFolder
    requeue: bool = True


def job_request(config: Any, folder: RunFolder) -> JobRequest:
    """Return what the batch script of a run will say. Raises ConfigurationError as `job_components` does."""
    components = job_components(config.cluster, dict(config.launch.sbatch))
    return JobRequest(str(config.run.name or config.cluster.name), folder, components, config.launch)


def submit(config: Any, folder: RunFolder) -> SubmittedRun:
    """Submit the run whose configuration and plan lie in `folder`, and return its job.

    Raises SlurmCommandError with sbatch's whole error output where it refuses.
    """
    from holmes_hpc.submit.executor import HolmesExecutor

    request = job_request(config, folder)
    executor = HolmesExecutor(folder.path / "submission")
    executor.update_parameters(request=request)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):  # submitit prints what it also raises
            job = executor.submit(_runs_nothing)
    except FailedJobError as error:
        raise SlurmCommandError(
            f"sbatch refused the job ({job_shape(config.cluster)}): {error}; the script is in "
            f"{folder.path / 'submission'}, its options come from cluster.partitions and launch.sbatch"
        ) from error
    components = [{"labels": list(part.labels), "nodes": part.nodes, "tasks_per_node": part.tasks_per_node}
                  for part in request.components]
    write_job(folder, job_id=str(job.job_id), components=components, environment=os.environ)
    link = folder.path.parent / f"slurm-{job.job_id}"
    with contextlib.suppress(OSError):
        link.unlink(missing_ok=True)
        link.symlink_to(folder.path.name)
    return SubmittedRun(str(job.job_id), folder, bool(config.launch.requeue))


def dry_run(config: Any, folder: RunFolder) -> str:
    """Return the batch script that would be submitted, and what `sbatch --test-only` says of it.

    Raises ConfigurationError with sbatch's error output where it would be refused.
    """
    text = render_script(job_request(config, folder))
    path = folder.path / "job.sh"
    folder.write_text(path, text)
    try:
        run_command(["sbatch", "--test-only", str(path)])
    except SlurmCommandError as error:
        raise ConfigurationError(f"Slurm would refuse this job: {error}") from error
    return text


def _runs_nothing() -> None:
    """Stand for the function that submitit wants; the script starts our launcher."""
