"""Slurm's commands as a login node has them, without the caller's own Slurm variables."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from holmes_hpc.bounded import Answer, TooMuchOutputError, run_bounded
from holmes_hpc.cluster.slurm import SlurmSettings, read_settings
from holmes_hpc.cluster.slurm.records import CLUSTER_LINE
from holmes_hpc.errors import WRONG, HolmesError, RunFailedError

LOG = logging.getLogger(__name__)

WORD_SECONDS = 2.0
"""After so long without an answer whoever waits is told."""

SUBMISSION_SECONDS = 120.0
"""How long sbatch is waited for; it asks a busy controller again by itself."""
GRACE_SECONDS = 5.0
"""How long sbatch has to end where a signal ends the command that submits: it may be about to have its answer."""

_LEAKING = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "PMIX_", "PMI_", "PMI2_")
_KEPT = ("SLURM_CONF", "SLURM_JWT")
_SETTINGS = ("PMIX_MCA_",)
"""What a user sets for all jobs, beside variables that say which process of which job this one is."""

_PASSES = re.compile(
    r"socket timed out|unable to contact slurm controller|connection (refused|reset|timed out)|connect failure"
    r"|zero bytes were transmitted|temporarily (unable|unavailable|disabled)|in standby mode"
    r"|communications? (shutdown|connection) failure|transport endpoint is not connected|interrupted system call"
    r"|munge encode failed|controller not responding|can not accept .*temporarily", re.IGNORECASE)
"""What Slurm's commands say while a controller is busy, restarts, or gives over to another one, and without munged."""


_LIMIT = re.compile(r"(Assoc|QOS)(Max|Grp)Submit|MaxSubmitJobs")


class SlurmCommandError(RunFailedError):
    """A Slurm command failed; the message holds its whole error output, `said` that alone."""

    said = ""


class TransientSlurmError(SlurmCommandError):
    """A Slurm command failed in a way that passes by itself, so that asking again is worth while."""


class SlowSlurmError(TransientSlurmError):
    """A Slurm command gave no answer in time."""


class RefusedSubmissionError(SlurmCommandError):
    """sbatch refused a job for what it asks: its account, QOS, partition, constraint, or another option."""

    exit_status = WRONG


class SubmissionLimitError(SlurmCommandError):
    """Slurm takes no more jobs of this user now, as `MaxSubmitJobs` says; it will when some have ended."""


class MissingCommandError(SlurmCommandError):
    """A Slurm command is not on the PATH."""


def leaking_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the variables of a job that would change what a nested submission asks for; `SLURM_CONF` stays."""
    return sorted(name for name in environment if name.startswith(_LEAKING) and name not in _KEPT
                  and not name.startswith(_SETTINGS))


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a Slurm command."""
    leaking = set(leaking_variables(environment))
    kept = {name: value for name, value in environment.items() if name not in leaking}
    return {**kept, "SLURM_BITSTR_LEN": "0"}  # else squeue cuts the list of an array's waiting tasks


def run_command(words: Sequence[str], *, cluster: str | None = None, timeout_seconds: float = 60.0, say: bool = False
                ) -> str:
    """Run a Slurm command and return what it printed; with `say`, who waits is told after 2 s.

    `cluster` is another cluster of this site that is asked instead of this machine's own. Raises SlurmCommandError with
    the command's whole error output, as TransientSlurmError where asking again is worth while.
    """
    if cluster is None:
        return _run(words, timeout_seconds, say=say).text
    told = _run([words[0], f"--clusters={cluster}", *words[1:]], timeout_seconds, say=say).text
    return "".join(line for line in told.splitlines(keepends=True) if not line.startswith(CLUSTER_LINE))


def run_command_aloud(words: Sequence[str]) -> str:
    """Run a Slurm command that answers on its error output, and return that. Raises as `run_command` does."""
    return _run(words, 60.0).said_text.strip()


def ask_sbatch(words: Sequence[str]) -> str:
    """Run the words of a submission and return what sbatch printed; who waits for it is told after 2 s.

    A signal that ends this command waits for it for `GRACE_SECONDS` alone. Raises subprocess.CalledProcessError where
    it fails, TransientSlurmError where it does not end: whether Slurm has the job is not known then.
    """
    answer = _bounded(words, "sbatch", SUBMISSION_SECONDS, os.environ, say=True, grace_seconds=GRACE_SECONDS)
    if answer.status != 0:
        raise subprocess.CalledProcessError(answer.status, list(words), answer.text, answer.said_text.strip())
    return answer.text


def failed_command(line: str, status: int, said: str) -> SlurmCommandError:
    """Return the error for a command that ended with `status` and printed `said` as its error output."""
    kind = TransientSlurmError if passes(said) else SlurmCommandError
    error = kind(f"{line} failed with status {status}: {said.strip()}")
    error.said = said.strip()
    return error


def refused_submission(said: str) -> type[SlurmCommandError]:
    """Return the kind of error that sbatch's error output stands for."""
    if passes(said):
        return TransientSlurmError
    return SubmissionLimitError if _LIMIT.search(said) else RefusedSubmissionError


def passes(said: str) -> bool:
    """Say whether what a Slurm command printed tells of a fault that passes by itself."""
    return _PASSES.search(said) is not None


def _run(words: Sequence[str], timeout_seconds: float, *, say: bool = False) -> Answer:
    line = " ".join(words)
    answer = _bounded(words, line, timeout_seconds, clean_environment(os.environ), say=say)
    if answer.status != 0:
        raise failed_command(line, answer.status, answer.said_text)
    return answer


def _bounded(words: Sequence[str], line: str, timeout_seconds: float, environment: Mapping[str, str], *, say: bool,
             grace_seconds: float = 0.0) -> Answer:
    """Run a command, called `line` in messages, and return its answer, whatever its status."""
    try:
        return run_bounded(
            words, timeout_seconds, env=environment, word_seconds=WORD_SECONDS if say else None,
            word=lambda: LOG.info("Slurm has not answered `%s` for %g s; waiting for up to %.0f s", line, WORD_SECONDS,
                                  timeout_seconds), grace_seconds=grace_seconds)
    except FileNotFoundError:
        raise MissingCommandError(f"{words[0]}: not found here; load Slurm's module or use another node") from None
    except TooMuchOutputError as error:
        raise SlurmCommandError(str(error)) from None
    except subprocess.TimeoutExpired as expired:
        late = SlowSlurmError(f"{line}: no answer within {timeout_seconds:.0f} s; is slurmctld up?")
        late.said = (expired.stderr or b"").decode(errors="replace").strip()
        raise late from None


@contextmanager
def understood(words: Sequence[str]) -> Iterator[None]:
    """Turn the error of a reader of what a Slurm command printed into SlurmCommandError: it has told nothing."""
    try:
        yield
    except SlurmCommandError:
        raise
    except HolmesError as error:
        raise SlurmCommandError(f"{' '.join(words)}: {error}") from error


def read_cluster_settings(cluster: str | None = None) -> SlurmSettings:
    """Return what `scontrol show config` says. Raises SlurmCommandError."""
    return read_settings(run_command(["scontrol", "show", "config"], cluster=cluster))


def nodes_of_job(job_id: str) -> int | None:
    """Return the number of nodes of a job, all components together, or None where no controller answers."""
    try:
        answer = run_command(["squeue", "--noheader", f"--jobs={job_id}", "--format=%D"], timeout_seconds=20.0,
                             say=True)
    except SlurmCommandError:
        return None
    return sum(int(count) for count in answer.split() if count.isdigit()) or None
