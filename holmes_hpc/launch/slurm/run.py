"""A run on Slurm, seen from a login node: submit and follow."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

from holmes_hpc.launch.follow.progress import make_reporter
from holmes_hpc.redaction import redact
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.shared import memory_file_system
from holmes_hpc.submit.ending import exit_status_of, failure
from holmes_hpc.submit.follow import follow
from holmes_hpc.submit.job import dry_run, submit

LOG = logging.getLogger(__name__)


def submit_and_follow(config: Any, folder: RunFolder) -> int:
    """Submit the run and follow it to its end; Ctrl-C stops following, not the job. Return the exit status."""
    say_what_nodes_do_not_see(config)
    run = submit(config, folder)
    ways = (f"its state: `holmes jobs {folder.path}`, its logs: `holmes logs {folder.path} --follow`, cancel it: "
            f"`scancel {run.job_id}`")
    LOG.info("submitted job %s; %s", run.job_id, ways)
    if not config.launch.wait:
        return 0
    try:
        with make_reporter(config.train.steps, sys.stderr) as reporter:
            ended = follow(run, reporter.step, lambda state: LOG.info("job %s: %s", run.job_id, state))
    except KeyboardInterrupt:
        LOG.info("no longer following job %s, which goes on; %s", run.job_id, ways)
        return 0
    status = exit_status_of(ended)
    if status != 0:
        LOG.error("%s", failure(ended))
    return status


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
