"""The exceptions that reach a user, each with the exit status of the command that raised it, and all exit statuses.

A message says three things in this order: the fact, its cause, and the setting to change with its valid values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FAILED, WRONG, PREEMPTED, INTERRUPTED = 1, 2, 3, 130
"""The run failed; configuration or arguments are wrong; saved and stopped before the end; Ctrl-C."""


class HolmesError(Exception):
    """Anything that a user can cause or mend; commands print its message without a traceback."""

    exit_status = FAILED
    names_rank = False
    """Whether the message names the rank at fault, since other ranks raise the same one."""


class ConfigurationError(HolmesError, ValueError):
    """A setting is unknown, malformed, out of range, or contradicts another one."""

    exit_status = WRONG


class PlanRefusedError(HolmesError, ValueError):
    """No plan of the asked kind exists for this cluster and model; the message says why."""

    exit_status = WRONG


class MemoryRefusedError(PlanRefusedError):
    """A layout that memory is too small for: what saves some may be a remedy."""


class BatchRefusedError(PlanRefusedError):
    """A layout of more pipelines than there are micro-batches for: of wider stages they are fewer.

    `least_batch` is the least batch that this layout could be planned with.
    """

    def __init__(self, message: str, least_batch: int) -> None:
        super().__init__(message)
        self.least_batch = least_batch


class DepthRefusedError(PlanRefusedError):
    """A layout of more stages than the model has layers. A search tries such; what else it refused says more."""


class LaunchImpossibleError(HolmesError):
    """The forced `launch.mode` cannot work on this machine."""

    exit_status = WRONG


class RunFailedError(HolmesError):
    """The run started and did not reach its end."""

    exit_status = FAILED
    folder: Path | None = None
    """The run's folder, where `holmes_hpc.train` raises it."""


class NetworkError(RunFailedError):
    """A process group could not be built or broke; the message names its ranks, nodes and network."""


class HangError(RunFailedError):
    """Ranks waited for another one longer than they may; the message names that one and what they waited for."""

    of_suspension = False
    """Whether the process stood still meanwhile, as a job does that Slurm suspends: nothing is wrong with the run."""


class DataError(RunFailedError):
    """The training data is missing or unusable, which shows only when it is opened."""


class TooFewTokensError(DataError):
    """A part of the data is shorter than one sample."""


class CheckpointError(RunFailedError):
    """A checkpoint could not be written, or one cannot be used; the message says why."""


class JobFailedError(RunFailedError):
    """A job of a sweep that Hydra's own sweeper does not make has failed: the one that makes it is told by this."""
