"""A run on Slurm, seen from a login node: submit and follow."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

from holmes_hpc.errors import INTERRUPTED
from holmes_hpc.launch.follow.interruption import InterruptedRunError, interruptible
from holmes_hpc.launch.follow.progress import make_reporter
from holmes_hpc.quoting import for_shell
from holmes_hpc.redaction import redact
from holmes_hpc.runs import RunFolder, write_result
from holmes_hpc.runs.shared import memory_file_system
from holmes_hpc.submit.commands import SlurmCommandError
from holmes_hpc.submit.ending import exit_status_of, failure
from holmes_hpc.submit.follow import follow
from holmes_hpc.submit.job import dry_run, submit, submitted_run, taken_job
from holmes_hpc.submit.once import SUBMISSION_FILE, queue_of
from holmes_hpc.submit.options import cluster_of
from holmes_hpc.submit.watch import SubmittedRun

LOG = logging.getLogger(__name__)


def submit_and_follow(config: Any, folder: RunFolder) -> int:
    """Submit the run and follow it to its end; return the exit status.

    SIGINT, SIGTERM and SIGHUP stop following, not the job; one that comes while sbatch works is told whether Slurm took
    the job.
    """
    say_what_nodes_do_not_see(config)
    run = None
    try:
        with interruptible():
            run = submit(config, folder)
            job_id = run.job_id
            LOG.info("submitted job %s; %s", run.job_id, _ways(run))
            if not config.launch.wait:
                return 0
            with make_reporter(config.train.steps, sys.stderr) as reporter:
                ended = follow(run, reporter.step, lambda state: LOG.info("job %s: %s", job_id, state))
    except InterruptedRunError as signal_name:
        return _detached(config, folder, run, str(signal_name))
    status = exit_status_of(ended)
    if status != 0:
        LOG.error("%s", failure(ended))
    return status


def _detached(config: Any, folder: RunFolder, run: SubmittedRun | None, signal_name: str) -> int:
    """Say what becomes of a run that is followed no longer, and return the exit status."""
    if run is not None:
        LOG.info("%s: no longer following job %s, which goes on; %s", signal_name, run.job_id, _ways(run))
        return 0
    try:
        run = submitted_run(folder) or taken_job(config, folder)
    except SlurmCommandError as error:
        LOG.error("%s: whether Slurm has taken the job is not known (%s): look with `%s` before you submit it again",
                  signal_name, error, queue_of(cluster_of(config.launch)))
        return INTERRUPTED
    if run is not None:
        LOG.info("%s: Slurm had taken job %s, which goes on; %s", signal_name, run.job_id, _ways(run))
        return 0
    write_result(folder, "failed", error=f"interrupted by {signal_name} before it was submitted", emulated=False)
    LOG.error("%s: the run is not submitted; start it again%s", signal_name, _unsure(config, folder))
    return INTERRUPTED


def _unsure(config: Any, folder: RunFolder) -> str:
    """Return what is to be looked at first where sbatch was asked and ended before it answered: Slurm may be late."""
    if not any(folder.path.glob(f"submission*/.{SUBMISSION_FILE}*")):
        return ""
    return (f", but look with `{queue_of(cluster_of(config.launch))}` first: sbatch had been asked and did not answer, "
            "and a busy Slurm may take the job late")


def _ways(run: SubmittedRun) -> str:
    place = for_shell(str(run.folder.path))
    return (f"its state: `holmes jobs {place}`, its logs: `holmes logs {place} --follow`, cancel it: "
            f"`{run.command('scancel')}`")


def say_what_nodes_do_not_see(config: Any) -> None:
    """Say before a submission that the nodes will not see the run folder, where that can be known."""
    kind = memory_file_system(Path(config.run.folder))
    if kind:
        LOG.warning("WARNING: run.folder=%s lies on %s, in the memory of this machine, and other nodes do not see it; "
                    "choose a place on a file system that all nodes share", config.run.folder, kind)


def show_dry_run(config: Any) -> None:
    """Print the batch script that would be submitted, checked by `sbatch --test-only`; leave nothing behind."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place), config.run.name or config.cluster.name)
        text, answer = dry_run(config, folder)
        sys.stdout.write(redact(text.replace(str(folder.path), "RUN_FOLDER")))
        sys.stdout.flush()
        LOG.info("Slurm would take it: %s", answer)
