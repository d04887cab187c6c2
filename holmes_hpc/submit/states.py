"""The state of submitted jobs, heterogeneous ones folded into one, with and without accounting."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_hpc.cluster.slurm import read_sacct, read_squeue, states_of_jobs
from holmes_hpc.cluster.slurm.jobs import ACCOUNTING_FIELDS, JOB_FORMAT
from holmes_hpc.submit.commands import SlurmCommandError, run_command


def read_states(job_ids: Sequence[str]) -> dict[str, str]:
    """Return the states of jobs: from the queue, and for those that left it from accounting where there is one.

    One call asks for all jobs. A job that neither knows is missing from the answer. Raises SlurmCommandError when the
    controller does not answer.
    """
    wanted = set(job_ids)
    if not wanted:
        return {}
    queue = run_command(["squeue", "--me", "--states=all", f"--format={JOB_FORMAT}"])
    states = {job: state for job, state in states_of_jobs(read_squeue(queue)).items() if job in wanted}
    gone = sorted(wanted - set(states))
    if gone:
        try:
            text = run_command(["sacct", "--parsable2", f"--format={ACCOUNTING_FIELDS}", f"--jobs={','.join(gone)}"])
        except SlurmCommandError:
            return states  # no accounting here: the run folder's result has to do
        states.update({job: state for job, state in states_of_jobs(read_sacct(text)).items() if job in wanted})
    return states
