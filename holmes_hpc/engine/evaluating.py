"""The loss of a whole model on validation samples, source by source."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch

from holmes_hpc.data import Dataset
from holmes_hpc.engine.batch import MicroBatch
from holmes_hpc.model import StageModule, token_loss


@dataclass(frozen=True)
class Evaluated:
    """The mean loss in nats over `counted` tokens of a source, and its perplexity."""

    source: str
    loss: float
    counted: int
    samples: int

    @property
    def perplexity(self) -> float:
        """Return e to the power of the loss."""
        return math.exp(min(self.loss, 700.0))


@torch.no_grad()
def evaluate(model: StageModule, dataset: Dataset, num_samples: int | None, micro_batch_size: int,
             tell: Callable[[str, int, int], None] = lambda source, done, of: None) -> Iterator[Evaluated]:
    """Yield the loss on `num_samples` validation samples of each source, or all that it has; `tell` hears how many are
    done, of how many.

    The samples of a source are those of a validation that has it alone. None: each token of its validation part once.
    """
    device = torch.device("cpu")
    for source in dataset.sources:
        alone = Dataset((source,), (Fraction(1),), dataset.sequence_length, dataset.vocab_size)
        total, counted = 0.0, 0
        number, samples = (alone.samples_once, alone.sample_once) if num_samples is None else (
            alone.validation_size(num_samples), alone.validation_samples)
        for first in range(0, number, micro_batch_size):
            part = samples(first, min(micro_batch_size, number - first))
            batch = MicroBatch.of(part, 1, device)
            if batch.counted:
                logits = model(batch.tokens, batch.documents)
                loss = token_loss(logits, batch.targets, dataset.vocab_size, counted=batch.counted)
                total, counted = total + float(loss) * batch.counted, counted + batch.counted
            tell(source.label, first + len(part.tokens), number)
        yield Evaluated(source.label, total / counted if counted else math.nan, counted, number)
