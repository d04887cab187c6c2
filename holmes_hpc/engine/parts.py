"""What a trainer is made of where the rank computes; `timed/parts.py` has the same for one that waits instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from holmes_hpc.data import Dataset
from holmes_hpc.engine.batch import MicroBatch, TrainingBatches, validation_batches
from holmes_hpc.engine.compiling import compile_layers
from holmes_hpc.engine.compute import Batches, Compute
from holmes_hpc.engine.gradients import Gradients
from holmes_hpc.engine.job import Job
from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.engine.optimizer import Optimizer, ShardOptimizer
from holmes_hpc.engine.parameters import Gatherer
from holmes_hpc.engine.real import RealCompute
from holmes_hpc.engine.starting import check_started, starting_weights
from holmes_hpc.engine.timed.clock import Lateness
from holmes_hpc.errors import RunFailedError
from holmes_hpc.model import PretrainedWeights
from holmes_hpc.values import Action


class Loader(Protocol):
    """Gives the micro-batches of a step."""

    def load(self, step: int, pipelines: set[int]) -> Batches:
        """Return the micro-batches of `step` for some pipelines."""

    def row(self) -> dict[str, Any]:
        """Return what the metrics say of the step loaded last."""


@dataclass(frozen=True)
class Parts:
    """A rank's model, gradients, gathers, device, optimizer and data. `weights` are a published model's, if any.

    `lateness` tells how late a rank that waits has woken up since it was last asked.
    """

    model: LocalModel
    gradients: Gradients
    gatherer: Gatherer
    compute: Compute
    optimizer: Optimizer
    batches: Loader
    validation: Mapping[tuple[int, int], MicroBatch]
    weights: PretrainedWeights | None = None
    lateness: Callable[[], Lateness] | None = None

    def check_started(self, job: Job, step: int) -> None:
        """Raise CheckpointError where published weights were left for a checkpoint that then was not there."""
        if job.timed is not None:
            return  # of a published model a rank that waits has the sizes alone
        check_started(job.pretrained, self.weights, step)


def real_parts(job: Job, actions: Sequence[Action], dtype: torch.dtype) -> Parts:
    """Return the parts of a rank that computes on its communicator's device."""
    plan, rank, communicator, device = job.plan, job.rank, job.communicator, job.communicator.device
    dataset = data_of(job)
    with starting_weights(job.pretrained, job.architecture, job.train, job.folder, communicator) as weights:
        model = LocalModel(plan, rank, job.architecture, job.train.seed, device, communicator, weights)
    gradients = Gradients(plan, rank, model, communicator, actions, dtype, job.pace)
    optimizer = ShardOptimizer(gradients.flats, job.optimizer)
    gatherer = Gatherer(plan, model, gradients.flats, communicator)
    compute = RealCompute(plan, rank, model, gradients, gatherer, communicator, job.architecture, dtype)
    if job.train.compile:
        communicator.activity.begin("compiling layers")
        compile_layers(model, plan, rank, job.architecture.sequence_length, dtype, device)
    return Parts(model, gradients, gatherer, compute, optimizer,
                 TrainingBatches(plan, dataset, job.train.seed, device),
                 validation_batches(plan, dataset, job.train.validation_samples, device), weights)


def data_of(job: Job) -> Dataset:
    """Return the data of a rank that computes."""
    if job.dataset is None:
        raise RunFailedError(f"rank {job.rank} was given no data; only ranks of a wind tunnel "
                             "(cluster.emulate.compute=timed) need none")
    return job.dataset
