"""A submitit executor for jobs over several partitions (submitit itself knows no heterogeneous jobs).

What of submitit runs: the writing of the script, the submission, the job object with its state. Inside the job runs
our own launcher alone: submitit's handler of the signal before the end acts on rank 0 only and would requeue while
the other ranks still train.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from submitit.core import core, logger
from submitit.slurm import slurm

from holmes_hpc.submit.commands import SlurmCommandError, ask_sbatch, leaking_variables
from holmes_hpc.submit.script import JobRequest, render_script
from holmes_hpc.submit.states import read_states


class HetInfoWatcher(slurm.SlurmInfoWatcher):
    """Asks as `read_states` does: `66+0` and `66+1` are the one job 66, and without accounting squeue answers."""

    def update(self) -> None:
        """Ask Slurm once for all jobs that are not known to be finished."""
        asked = sorted(self._registered - self._finished)
        self._num_calls += 1
        try:
            answer = read_states(asked)
        except SlurmCommandError as error:
            logger.get_logger().warning("states are not known now: %s", error)
            answer = {}
        self._info_dict.update({job: {"JobID": job, "State": status.state} for job, status in answer.items()})
        self._last_status_check = time.time()
        self._finished |= {job for job in asked if self.is_done(job, mode="cache")}


class HolmesJob(slurm.SlurmJob):
    """A submitted run; its result lies in the run folder, not in a pickle."""

    watcher = HetInfoWatcher(delay_s=60)


class HolmesExecutor(slurm.SlurmExecutor):
    """Submits a `JobRequest`, given as the parameter `request`; the submitted function is not run."""

    job_class = HolmesJob

    def __init__(self, folder: Path | str) -> None:
        # SlurmExecutor's own constructor refuses an executor that is never chosen automatically.
        core.PicklingExecutor.__init__(self, folder)
        self.python = sys.executable

    @classmethod
    def name(cls) -> str:
        """Return the name in submitit's list of executors."""
        return "holmes"

    @classmethod
    def affinity(cls) -> int:
        """Return 0: never chosen by submitit's `auto`, only by name."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {"request"}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        self.parameters.update(kwargs)

    def _submit_command(self, command: str) -> core.Job[Any]:
        """Submit as submitit does, but by `ask_sbatch`: submitit waits for an sbatch that hangs, whatever signal comes.

        Raises as `ask_sbatch` does.
        """
        name = uuid.uuid4().hex
        script = self.folder / f".submission_file_{name}.sh"
        script.write_text(self._make_submission_file_text(command, name))
        answer = ask_sbatch(self._make_submission_command(script))
        job = self.job_class(folder=self.folder, job_id=self._get_job_id_from_submission_command(answer),
                             tasks=list(range(self._num_tasks())))
        job.paths.move_temporary_file(script, "submission_file", keep_as_symlink=True)
        self._set_job_permissions(job.paths.folder)
        return job

    @property
    def _request(self) -> JobRequest:
        request = self.parameters.get("request")
        if not isinstance(request, JobRequest):
            raise TypeError("update_parameters(request=JobRequest(...)) comes before submit")
        return request

    def _num_tasks(self) -> int:
        return self._request.tasks

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return render_script(self._request)

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        unset = [word for name in leaking_variables(os.environ) for word in ("-u", name)]
        return ["env", *unset, "sbatch", "--parsable", str(submission_file_path)]

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        text = string.decode() if isinstance(string, bytes) else string
        return text.strip().splitlines()[-1].split(";")[0]
