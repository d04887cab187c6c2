"""Batches of samples, chosen by (seed, step, sample index in the global batch) and by no layout."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy
import torch
from torch import Tensor

from holmes_hpc.architecture import Architecture
from holmes_hpc.data.mapped import refuse_shrunk
from holmes_hpc.data.order import Dealer, drawn_sources, epoch_windows, offset_words
from holmes_hpc.data.settings import sources_of
from holmes_hpc.data.sources import Source, check_tokenizers, open_source
from holmes_hpc.data.telling import Tell, silent
from holmes_hpc.data.tokens import TokenArray

# 2^64 divided by the golden ratio: multiples of it, modulo 2^64, are spread evenly however many are taken.
_GOLDEN_STEP = 0x9E3779B97F4A7C15

_Place = tuple[int, int]
"""Where a sample begins: the source and the first token in its part."""


@dataclass(frozen=True)
class Dataset:
    """One or several sources; a sample is `sequence_length` tokens of one of them, with their successors.

    `weights` are the sources' shares of the samples and sum to 1. `order` is `random` (every sample drawn anew) or
    `epoch` (each window of a source's training part once before any comes again).
    """

    sources: tuple[Source, ...]
    weights: tuple[Fraction, ...]
    sequence_length: int
    vocab_size: int
    order: str = "random"

    def train_batch(self, seed: int, step: int, first_sample: int, num_samples: int,
                    global_batch_size: int) -> tuple[Tensor, Tensor]:
        """Return samples `first_sample` and following of a step's global batch: tokens and targets.

        Both are int64 [num_samples, sequence_length]; `targets[i, j]` follows `tokens[i, j]`. Every layout sees the
        same samples: in random order they depend on seed, step and sample alone, in epochs also on the batch's size.
        Steps count from 1. Raises ValueError for samples outside the batch, DataError for tokens outside the
        vocabulary.
        """
        if first_sample < 0 or first_sample + num_samples > global_batch_size:
            raise ValueError(f"samples {first_sample} to {first_sample + num_samples - 1} are outside a "
                             f"global batch of {global_batch_size}")
        if self.order == "epoch":
            first = (step - 1) * global_batch_size + first_sample
            places = self._epoch_places(seed, range(first, first + num_samples))
        else:
            places = self._random_places(seed, step, first_sample, num_samples)
        return self._batch([source.training for source in self.sources], places)

    def validation_batch(self, first_sample: int, num_samples: int) -> tuple[Tensor, Tensor]:
        """Return fixed samples of the validation parts, as `train_batch` does.

        Samples 0 to n-1 are dealt to the sources by their weights, and are spread evenly over each part, for every n.
        """
        dealer, places = Dealer(self.weights, None), []
        for sample in range(first_sample, first_sample + num_samples):
            source, index = dealer.place(sample)
            choices = len(self.sources[source].validation) - self.sequence_length
            places.append((source, (index * _GOLDEN_STEP % 2**64) * choices >> 64))
        return self._batch([source.validation for source in self.sources], places)

    def check(self) -> None:
        """Refuse data that cannot be trained on.

        That is a part shorter than one sample, tokens outside the vocabulary in windows that are spread over all
        parts, or sources of unlike tokenizers. Raises DataError.
        """
        for source in self.sources:
            source.check(self.sequence_length, self.vocab_size)
        check_tokenizers(self.sources)

    def remarks(self, *, doubts: bool) -> list[str]:
        """Return what a user should be told: how tokens were made and, with `doubts`, what may not be meant."""
        said = [f"{source.label}: {note}" for source in self.sources for note in source.notes]
        return said + [doubt for source in self.sources if doubts for doubt in source.doubts(self.vocab_size)]

    def fingerprint(self) -> str:
        """Return a digest of the sizes and of windows of all parts, to compare between nodes and with a checkpoint.

        Nodes with unlike Python versions or files would train on targets that do not belong to their tokens.
        """
        digest = hashlib.sha256(f"{self.order}/{self.sequence_length}/{self.vocab_size}".encode())
        for source, weight in zip(self.sources, self.weights, strict=True):
            digest.update(f"/{weight}".encode())
            for part in source.digest_parts():
                digest.update(part)
        return digest.hexdigest()[:16]

    def _random_places(self, seed: int, step: int, first: int, count: int) -> list[_Place]:
        """Choose offsets in the parts by a Philox counter keyed by seed and step."""
        sources = drawn_sources(self.weights, seed, step, first, count)
        choices = [len(source.training) - self.sequence_length for source in self.sources]
        words = offset_words(seed, step, first, count).tolist()
        return [(source, word % choices[source]) for source, word in zip(sources, words, strict=True)]

    def _epoch_places(self, seed: int, samples: range) -> list[_Place]:
        """Take windows by the number of samples before, counted from the first step."""
        if samples.start < 0:
            raise ValueError("data.order=epoch counts steps from 1")
        dealer = Dealer(self.weights, seed)
        dealt = [dealer.place(sample) for sample in samples]
        offsets: dict[_Place, int] = {}
        for index, source in enumerate(self.sources):
            positions = [position for number, position in dealt if number == index]
            windows = (len(source.training) - 1) // self.sequence_length
            for position, window in zip(positions, epoch_windows(positions, windows, seed, index), strict=True):
                offsets[index, position] = window * self.sequence_length
        return [(place[0], offsets[place]) for place in dealt]

    def _batch(self, parts: Sequence[TokenArray], places: Sequence[_Place]) -> tuple[Tensor, Tensor]:
        for part, drawn in zip(parts, self.sources, strict=True):
            refuse_shrunk(part, drawn.label)
        samples = numpy.empty((len(places), self.sequence_length + 1), dtype=numpy.int64)
        for row, (source, offset) in enumerate(places):
            samples[row] = parts[source][offset : offset + self.sequence_length + 1]
            self.sources[source].check_vocabulary(samples[row], self.vocab_size)
        batch = torch.from_numpy(samples)
        return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def open_dataset(data_config: Any, architecture: Architecture, tell: Tell = silent) -> Dataset:
    """Open the data that `config.data` names, and check it; `tell` hears of what takes long.

    Raises ConfigurationError for a kind that does not work, a missing `data.path`, or a vocabulary too small
    for bytes; DataError for data that is missing or unusable.
    """
    named = sources_of(data_config)
    sources = tuple(open_source(settings, architecture.vocab_size, tell) for settings, _ in named)
    dataset = Dataset(sources, tuple(weight for _, weight in named), architecture.sequence_length,
                      architecture.vocab_size, str(data_config.order))
    dataset.check()
    return dataset
