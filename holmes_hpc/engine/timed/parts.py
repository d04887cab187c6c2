"""What a trainer is made of where the rank only waits: no weights, no data, no checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from holmes_hpc.engine.compute import Batches
from holmes_hpc.engine.gradients import Gradients
from holmes_hpc.engine.job import Job
from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.engine.optimizer import Run
from holmes_hpc.engine.parameters import Gatherer
from holmes_hpc.engine.parts import Parts
from holmes_hpc.engine.timed.clock import DeviceClock
from holmes_hpc.engine.timed.compute import TimedCompute
from holmes_hpc.engine.timed.flat import ScaledFlats
from holmes_hpc.errors import RunFailedError
from holmes_hpc.values import Action


def timed_parts(job: Job, actions: Sequence[Action], dtype: torch.dtype) -> Parts:
    """Return the parts of a rank that waits. Its model has shapes alone (torch's device `meta`)."""
    if job.timed is None:
        raise RunFailedError("a timed rank was given no prices")
    plan, rank, communicator, clock = job.plan, job.rank, job.communicator, DeviceClock()
    model = LocalModel(plan, rank, job.architecture, job.train.seed, "meta")
    gradients = Gradients(plan, rank, model, communicator, actions, dtype, make_flat=ScaledFlats(job.timed))
    gatherer = Gatherer(plan, model, gradients.flats, communicator)
    compute = TimedCompute(plan, rank, job.timed, gradients, gatherer, clock, job.architecture,
                           list(model.parameters), dtype, job.pace)
    optimizer = TimedOptimizer(clock, job.timed.dilated(job.timed.optimizer[rank]))
    return Parts(model, gradients, gatherer, compute, optimizer, NoBatches(), {}, lateness=clock.lateness)


class TimedOptimizer:
    """Waits for as long as the update of this rank's shards takes; it keeps nothing."""

    def __init__(self, clock: DeviceClock, seconds: float) -> None:
        self.moments: tuple[str, ...] = ()
        self.runs: list[Run] = []
        self.steps = 0
        self._clock, self._seconds = clock, seconds

    def step(self, rate: float) -> None:
        """Wait."""
        self.steps += 1
        self._clock.run(self._seconds)

    def round(self) -> None:
        """Do nothing: there are no parameters."""


class NoBatches:
    """Stands for the data, of which there is none."""

    def load(self, step: int, pipelines: set[int]) -> Batches:
        """Return nothing."""
        return {}

    def row(self) -> dict[str, Any]:
        """Return nothing."""
        return {}


class NoCheckpoints:
    """Stands for the checkpoints of a run that has nothing to save."""

    def __init__(self, steps: int) -> None:
        self.schedule_end = steps

    def resume(self) -> int:
        """Begin at the first step."""
        return 0

    def after_step(self, step: int) -> None:
        """Save nothing."""

    def stop(self, step: int) -> None:
        """Save nothing."""

    def finish(self) -> None:
        """Wait for nothing."""
