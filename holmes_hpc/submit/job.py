"""Submits runs to Slurm: one, or the runs of a sweep as arrays and single jobs."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holmes_hpc.errors import HolmesError
from holmes_hpc.runs import RunFolder, write_job, write_result
from holmes_hpc.runs.files import read_json
from holmes_hpc.runs.private import open_folder
from holmes_hpc.submit.commands import (
    MissingCommandError,
    RefusedSubmissionError,
    SlurmCommandError,
    SubmissionLimitError,
    TransientSlurmError,
    clean_environment,
    refused_submission,
    run_command_aloud,
)
from holmes_hpc.submit.components import job_components, job_shape
from holmes_hpc.submit.fit import check_submission
from holmes_hpc.submit.once import find_jobs, submit_once
from holmes_hpc.submit.options import cluster_of
from holmes_hpc.submit.patience import patiently
from holmes_hpc.submit.script import JobRequest, render_script
from holmes_hpc.submit.snapshot import keep_code
from holmes_hpc.submit.watch import SubmittedRun

TEST_PATIENCE_SECONDS = 20.0
SUBMISSION = "submission"
"""The folder of a submission's script; later ones of the same run have a number behind."""


def job_request(config: Any, folder: RunFolder | None, **further: Any) -> JobRequest:
    """Return what the batch script of a run will say. Raises ConfigurationError as `job_components` does."""
    components = job_components(config.cluster, config.launch.sbatch)
    return JobRequest(str(config.run.name or config.cluster.name), components, config.launch, folder, **further)


def submit(config: Any, folder: RunFolder, dependency: str | None = None, sweep: Path | None = None) -> SubmittedRun:
    """Submit the run whose configuration and plan lie in `folder`, and return its job.

    `dependency` is sbatch's; `sweep` is the folder of the sweep that the run belongs to: a copy of the code is kept
    there, and a limit on submitted jobs is no end of the run. Raises as `hand_over` and `keep_code` do, and
    ConfigurationError where a partition holds nodes that cannot talk to each other.
    """
    place = fresh_place(folder.path / SUBMISSION)
    try:
        code = keep_code(config, [folder], sweep or folder.path)
        request = job_request(config, folder, dependency=dependency, code=code, of_sweep=sweep is not None)
        check_submission(config)
        job_id = hand_over(request, place, job_shape(config.cluster))
    except HolmesError as error:
        if sweep is not None and isinstance(error, SubmissionLimitError):
            give_up_place(place)
        else:
            write_result(folder, "failed", error=str(error), emulated=False)
        raise
    return record(request, folder, job_id, sweep)


def submit_array(configs: Sequence[Any], folders: Sequence[RunFolder], place: Path, sweep: Path, *,
                 at_a_time: int | None = None, dependency: str | None = None) -> list[SubmittedRun]:
    """Submit runs of a sweep whose scripts differ by their run folders alone as one array; `place` is a new folder.

    `at_a_time` is how many of them run at once; the rest is as in `submit`.
    """
    place.mkdir(parents=True)
    open_folder(place, to_group=False)
    for number, folder in enumerate(folders):
        (place / str(number)).symlink_to(folder.path)
    throttle = f"%{at_a_time}" if at_a_time is not None and at_a_time < len(folders) else ""
    try:
        code = keep_code(configs[0], folders, sweep)
        request = job_request(configs[0], None, links=place, array=f"0-{len(folders) - 1}{throttle}",
                              dependency=dependency, code=code, of_sweep=True)
        check_submission(configs[0])
        job_id = hand_over(request, place / SUBMISSION, "array")
    except HolmesError as error:
        if not isinstance(error, SubmissionLimitError):
            for folder in folders:
                write_result(folder, "failed", error=str(error), emulated=False)
        raise
    return [record(request, folder, f"{job_id}_{number}", sweep) for number, folder in enumerate(folders)]


def fresh_place(place: Path) -> Path:
    """Return a folder for a submission that none had before: `submission`, then `submission-a1b2c3`, ...

    A job is found by the folder of its script, so every submission has its own.
    """
    if not place.exists() and not _refused(place).exists():
        return place
    return place.with_name(f"{place.name}-{secrets.token_hex(3)}")


def give_up_place(place: Path) -> None:
    """Remove the folder of a submission that a limit refused, and let no later one have its name.

    Slurm keeps a record of a component that it took before it refused the next one.
    """
    shutil.rmtree(place, ignore_errors=True)
    _refused(place.with_name(place.name.partition("-")[0]) if place.name.startswith(SUBMISSION) else place).touch()


def _refused(place: Path) -> Path:
    return place.with_name(f".{place.name}.refused")


def set_aside(folder: RunFolder) -> None:
    """Make a run that has ended ready to be submitted once more into its folder, where it goes on.

    What its last job was is kept as `job-ID.json`.
    """
    job = read_json(folder.job_path)
    if job is not None:
        known = job.get("job_id") if isinstance(job, dict) else None
        folder.job_path.replace(folder.path / f"job-{known or 'unknown'}.json")
    folder.result_path.unlink(missing_ok=True)


_JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")
"""Of a job, or of one task of an array; anything else in job.json was not written by us, and is no job to ask for."""


def submitted_run(folder: RunFolder) -> SubmittedRun | None:
    """Return the job that a run folder names; None where it names none, or a job without an id."""
    job = read_json(folder.job_path)
    job_id = job.get("job_id") if isinstance(job, dict) else None
    if not isinstance(job, dict) or not isinstance(job_id, str | int) or not _JOB_ID.fullmatch(str(job_id)):
        return None
    cluster = job.get("cluster")
    return SubmittedRun(str(job_id), folder, cluster=cluster if isinstance(cluster, str) else None,
                        gone_on=next_link(folder, str(job_id)).is_symlink())


def next_link(folder: RunFolder, job_id: str) -> Path:
    """Return the link that leads from a run to the one that its job has gone on with (`submit/succession.py`)."""
    return folder.path / f"next-{job_id}"


def taken_job(config: Any, folder: RunFolder, sweep: Path | None = None) -> SubmittedRun | None:
    """Return the job of a run whose submission was cut off before it was written down, and write it down; else None.

    `sweep` is the folder of the sweep that the run belongs to.

    Raises SlurmCommandError where Slurm does not tell.
    """
    cluster = cluster_of(config.launch)
    own = [(path, None) for path in folder.path.glob(f"{SUBMISSION}*") if path.is_dir()]
    arrays = [(link.parent / SUBMISSION, link.name) for link in (sweep.glob("array-*/*") if sweep else ())
              if link.is_symlink() and link.resolve() == folder.path.resolve()]
    for place, task in sorted([*own, *arrays], key=lambda found: found[0].stat().st_mtime if found[0].exists() else 0,
                              reverse=True)[:1]:
        if jobs := find_jobs(place, cluster):
            job_id = jobs[-1] if task is None else f"{jobs[-1]}_{task}"
            if not (folder.path / f"job-{job_id}.json").exists():  # else it is the one that ended
                return record(job_request(config, None), folder, job_id, sweep)
    return None


def hand_over(request: JobRequest, place: Path, shape: str) -> str:
    """Submit a batch script through submitit, which keeps it in the folder `place`; return the job's id.

    A controller that is busy or restarts is asked again, and the job is never submitted twice (`submit_once`). Raises
    SlurmCommandError with sbatch's whole error output: RefusedSubmissionError for what the job asks.
    """
    place.mkdir(parents=True, exist_ok=True)
    open_folder(place, to_group=False)  # the script has the setup's lines in clear
    job_id = submit_once(lambda: _ask_sbatch(request, place, shape), place, cluster_of(request.launch))
    kept = place / f"{job_id}_submission.sh"
    for script in place.glob(".submission_file_*.sh"):
        if not script.is_symlink():  # of an attempt whose answer was lost; else submitit has moved it
            script.replace(kept)
    return job_id


def _ask_sbatch(request: JobRequest, place: Path, shape: str) -> str:
    from holmes_hpc.submit.executor import HolmesExecutor

    if shutil.which("sbatch") is None:
        raise MissingCommandError("sbatch: not found here; load Slurm's module or use another node")
    executor = HolmesExecutor(place)
    executor.update_parameters(request=request)
    try:
        return str(executor.submit(_runs_nothing).job_id)
    except (subprocess.CalledProcessError, OSError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        kind = refused_submission(said)
        if kind is TransientSlurmError:
            raise TransientSlurmError(f"Slurm did not answer for the job ({shape}): {_last_line(said)}") from error
        raise kind(f"sbatch refused the job ({shape}): {said}\nThe script is in {place}; its options come from "
                   "cluster.partitions and launch.sbatch") from error


def _last_line(said: str) -> str:
    return (said.strip().splitlines() or ["it failed without a word"])[-1]


def record(request: JobRequest, folder: RunFolder, job_id: str, sweep: Path | None = None) -> SubmittedRun:
    """Write down which job a run is, and of which sweep, and link `slurm-<job id>` to its folder."""
    components = [{"labels": list(part.labels), "nodes": part.nodes, "tasks_per_node": part.tasks_per_node}
                  for part in request.components]
    cluster = cluster_of(request.launch)
    write_job(folder, job_id=job_id, cluster=cluster, components=components, emulated=False, sweep=sweep,
              environment=clean_environment(os.environ))
    link_job(folder, job_id)
    return SubmittedRun(job_id, folder, bool(request.launch.requeue), cluster)


def link_job(folder: RunFolder, job_id: str) -> None:
    """Let `slurm-<job id>` beside the run folder lead to it."""
    link = folder.path.parent / f"slurm-{job_id}"
    with contextlib.suppress(OSError):
        link.unlink(missing_ok=True)
        link.symlink_to(folder.path.name)


def dry_run(config: Any, folder: RunFolder) -> tuple[str, str]:
    """Return the batch script that would be submitted, and what `sbatch --test-only` says of it.

    Raises RefusedSubmissionError with sbatch's error output where it would be refused, SlurmCommandError where Slurm
    does not answer.
    """
    code = folder.path / "code" if config.launch.snapshot else None
    text = render_script(job_request(config, folder, code=code))
    check_submission(config)
    path = folder.path / "job.sh"
    folder.write_text(path, text)
    try:
        return text, patiently(lambda left: run_command_aloud(["sbatch", "--test-only", str(path)]),
                               TEST_PATIENCE_SECONDS)
    except SlurmCommandError as error:
        if isinstance(error, TransientSlurmError | MissingCommandError):
            raise
        raise RefusedSubmissionError(f"Slurm would refuse this job: {error}") from error


def _runs_nothing() -> None:
    """Stand for the function that submitit wants; the script starts our launcher."""
