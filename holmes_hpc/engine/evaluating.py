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
def evaluate(model: StageModule, dataset: Dataset, num_samples: int, micro_batch_size: int,
             tell: Callable[[str, int], None] = lambda source, done: None) -> Iterator[Evaluated]:
    """Yield the loss on `num_samples` validation samples of each source; `tell` hears of the samples that are done.

    The samples of a source are those of a validation that has it alone.
    """
    device = torch.device("cpu")
    for source in dataset.sources:
        alone = Dataset((source,), (Fraction(1),), dataset.sequence_length, dataset.vocab_size)
        total, counted = 0.0, 0
        for first in range(0, num_samples, micro_batch_size):
            part = alone.validation_samples(first, min(micro_batch_size, num_samples - first))
            batch = MicroBatch.of(part, 1, device)
            if batch.counted:
                logits = model(batch.tokens, batch.documents)
                loss = token_loss(logits, batch.targets, dataset.vocab_size, counted=batch.counted)
                total, counted = total + float(loss) * batch.counted, counted + batch.counted
            tell(source.label, first + len(part.tokens))
        yield Evaluated(source.label, total / counted if counted else math.nan, counted, num_samples)
