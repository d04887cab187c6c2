"""Which samples of the global batch each micro-batch of each pipeline takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from holmes_hpc.data import Dataset
from holmes_hpc.data.dataset import Samples
from holmes_hpc.model.attention import Documents
from holmes_hpc.values import Plan


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one micro-batch: `tokens` and `targets` are int64 [samples, sequence].

    `counted` of its targets count. `weight` is their share of those of the whole batch, so that weighted means add up
    to the mean over all that count. `documents` say where attention stays inside.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    weight: float
    counted: int
    documents: Documents | None = None

    @classmethod
    def of(cls, samples: Samples, total: int, device: torch.device) -> MicroBatch:
        """Return samples as a micro-batch of a batch in which `total` targets count."""
        counted = samples.counted()
        documents = samples.documents and Documents(samples.documents, samples.tokens.shape[1], device)
        return cls(_sent(samples.tokens, device), _sent(samples.targets, device), counted / total if total else 0.0,
                   counted, documents or None)


def _sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device; to a GPU it goes from pinned memory, so that the host need not wait for the copy."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class TrainingBatches:
    """The micro-batches of training steps; sample i of the global batch is the same whatever the plan."""

    def __init__(self, plan: Plan, dataset: Dataset, seed: int, device: torch.device) -> None:
        self._plan, self._dataset, self._seed, self._device = plan, dataset, seed, device
        self.counted = 0
        """how many targets of the step loaded last count, on all ranks together"""
        self._first_sample: list[int] = []
        samples = 0
        for pipeline in plan.pipelines:
            self._first_sample.append(samples)
            samples += pipeline.microbatches * plan.micro_batch_size

    def load(self, step: int, pipelines: set[int]) -> dict[tuple[int, int], MicroBatch]:
        """Return the micro-batches of `step` for some pipelines, by (pipeline, micro-batch)."""
        size, samples = self._plan.micro_batch_size, self._plan.global_batch_size
        self.counted = total = self._dataset.counted(self._seed, step, samples)
        batches = {}
        for p in sorted(pipelines):
            count = self._plan.pipelines[p].microbatches
            own = self._dataset.train_samples(self._seed, step, self._first_sample[p], count * size, samples)
            for m in range(count):
                batches[p, m] = MicroBatch.of(own[m * size:(m + 1) * size], total, self._device)
        return batches

    def row(self) -> dict[str, int]:
        """Return what the metrics say of the step loaded last: how many targets count, where not all do."""
        return {} if self._dataset.counts_all else {"counted_tokens": self.counted}


def validation_batches(plan: Plan, dataset: Dataset, num_samples: int,
                       device: torch.device) -> dict[tuple[int, int], MicroBatch]:
    """Return at most so many fixed validation samples as micro-batches, dealt to the pipelines in turn."""
    size, pipelines, num_samples = plan.micro_batch_size, len(plan.pipelines), dataset.validation_size(num_samples)
    parts = [dataset.validation_samples(first, min(size, num_samples - first))
             for first in range(0, num_samples, size)]
    total = sum(part.counted() for part in parts)
    return {(number % pipelines, number // pipelines): MicroBatch.of(part, total, device)
            for number, part in enumerate(parts)}
