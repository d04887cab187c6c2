"""Which samples of the global batch each micro-batch of each pipeline takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from holmes_hpc.data import Dataset
from holmes_hpc.values import Plan


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one micro-batch: `tokens` and `targets` are int64 [samples, sequence].

    `weight` is the share of its samples in the whole batch, so weighted losses add up to the mean.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    weight: float


class TrainingBatches:
    """The micro-batches of training steps; sample i of the global batch is the same whatever the plan."""

    def __init__(self, plan: Plan, dataset: Dataset, seed: int, device: torch.device) -> None:
        self._plan, self._dataset, self._seed, self._device = plan, dataset, seed, device
        self._first_sample: list[int] = []
        samples = 0
        for pipeline in plan.pipelines:
            self._first_sample.append(samples)
            samples += pipeline.microbatches * plan.micro_batch_size

    def load(self, step: int, pipelines: set[int]) -> dict[tuple[int, int], MicroBatch]:
        """Return the micro-batches of `step` for some pipelines, by (pipeline, micro-batch)."""
        size, total = self._plan.micro_batch_size, self._plan.global_batch_size
        batches = {}
        for p in sorted(pipelines):
            count = self._plan.pipelines[p].microbatches
            tokens, targets = self._dataset.train_batch(self._seed, step, self._first_sample[p], count * size, total)
            for m in range(count):
                part = slice(m * size, (m + 1) * size)
                batches[p, m] = MicroBatch(tokens[part].to(self._device), targets[part].to(self._device), size / total)
        return batches


def validation_batches(plan: Plan, dataset: Dataset, num_samples: int,
                       device: torch.device) -> dict[tuple[int, int], MicroBatch]:
    """Return the fixed validation samples as micro-batches, dealt to the pipelines in turn."""
    batches = {}
    size, pipelines = plan.micro_batch_size, len(plan.pipelines)
    for number, first in enumerate(range(0, num_samples, size)):
        count = min(size, num_samples - first)
        tokens, targets = dataset.validation_batch(first, count)
        place = number % pipelines, number // pipelines
        batches[place] = MicroBatch(tokens.to(device), targets.to(device), count / num_samples)
    return batches
