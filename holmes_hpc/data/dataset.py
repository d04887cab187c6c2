"""Batches of samples, chosen by (seed, step, sample index in the global batch) and by no layout."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy
import torch
from torch import Tensor

from holmes_hpc.architecture import Architecture
from holmes_hpc.data.cutting import Cutter
from holmes_hpc.data.mapped import refuse_shrunk
from holmes_hpc.data.order import Dealer, drawn_sources, epoch_windows, offset_words
from holmes_hpc.data.settings import sources_of
from holmes_hpc.data.sources import Source, check_tokenizers, open_source
from holmes_hpc.data.telling import Tell, silent
from holmes_hpc.errors import DataError
from holmes_hpc.values.targets import NOT_COUNTED
from holmes_hpc.words import counted

_Place = tuple[int, int]
"""Where a sample is: the source and the place in its part, which its cutter knows."""


@dataclass(frozen=True)
class Samples:
    """Samples of a batch: `tokens` and `targets` are int64 [samples, sequence length].

    `targets[i, j]` follows `tokens[i, j]`, or is NOT_COUNTED. `documents` are the lengths of the documents that each
    sample's attention stays inside, less than the sample's where the rest is padding; None where all samples are one.
    """

    tokens: Tensor
    targets: Tensor
    documents: tuple[tuple[int, ...], ...] | None = None

    def __getitem__(self, part: slice) -> Samples:
        """Return some of the samples."""
        return Samples(self.tokens[part], self.targets[part], self.documents and self.documents[part])

    def counted(self) -> int:
        """Return how many targets count."""
        return int((self.targets != NOT_COUNTED).sum())


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

    def train_samples(self, seed: int, step: int, first_sample: int, num_samples: int,
                      global_batch_size: int) -> Samples:
        """Return samples `first_sample` and following of a step's global batch.

        Every layout sees the same samples: in random order they depend on seed, step and sample alone, in epochs also
        on the batch's size. Steps count from 1. Raises ValueError for samples outside the batch, DataError for tokens
        outside the vocabulary.
        """
        return self._samples(0, self._places(seed, step, first_sample, num_samples, global_batch_size))

    def train_batch(self, seed: int, step: int, first_sample: int, num_samples: int,
                    global_batch_size: int) -> tuple[Tensor, Tensor]:
        """Return the tokens and targets of `train_samples`."""
        samples = self.train_samples(seed, step, first_sample, num_samples, global_batch_size)
        return samples.tokens, samples.targets

    def counted(self, seed: int, step: int, global_batch_size: int) -> int:
        """Return how many targets of a step's global batch count: the same on every rank, which asks no other."""
        if self.counts_all:
            return global_batch_size * self.sequence_length
        places = self._places(seed, step, 0, global_batch_size, global_batch_size)
        return sum(self._cutters[source][0].count(place) for source, place in places)

    @property
    def counts_all(self) -> bool:
        """Tell whether every target of every sample counts."""
        return all(cutter.counts_all for parts in self._cutters for cutter in parts)

    def validation_samples(self, first_sample: int, num_samples: int) -> Samples:
        """Return fixed samples of the validation parts, as `train_samples` does.

        Samples 0 to n-1 are dealt to the sources by their weights, and are spread evenly over each part, for every n.
        """
        dealer, places = Dealer(self.weights, None), []
        for sample in range(first_sample, first_sample + num_samples):
            source, index = dealer.place(sample)
            places.append((source, self._cutters[source][1].spread(index)))
        return self._samples(1, places)

    def validation_size(self, wanted: int) -> int:
        """Return how many validation samples to read where so many are wanted.

        No more than there are of whole documents, unless a mixture deals them by weights.
        """
        if len(self.sources) > 1 or self._cutters[0][1].rows is None:
            return wanted
        return min(wanted, self._cutters[0][1].choices)

    @property
    def samples_once(self) -> int:
        """Return how many samples hold each token of the validation part of the only source once."""
        return self._once.choices

    def sample_once(self, first_sample: int, num_samples: int) -> Samples:
        """Return some of these samples, in the order of the tokens; the last one may end in padding."""
        return self._cut([self._once], [(0, place) for place in range(first_sample, first_sample + num_samples)])

    def validation_batch(self, first_sample: int, num_samples: int) -> tuple[Tensor, Tensor]:
        """Return the tokens and targets of `validation_samples`."""
        samples = self.validation_samples(first_sample, num_samples)
        return samples.tokens, samples.targets

    def check(self) -> None:
        """Refuse data that cannot be trained on.

        That is a part shorter than one sample, tokens outside the vocabulary in windows that are spread over all
        parts, or sources of unlike tokenizers. Raises DataError.
        """
        for source in self.sources:
            source.check(self.sequence_length, self.vocab_size)
        check_tokenizers(self.sources)

    def remarks(self, *, doubts: bool, validation_samples: int = 0) -> list[str]:
        """Return what a user should be told.

        That is how tokens were made, that a validation has fewer samples than are wanted, or some several times, and
        with `doubts` what may not be meant.
        """
        said = [f"{source.label}: {note}" for source in self.sources for note in source.notes]
        for source, (training, validation) in zip(self.sources, self._cutters, strict=True):
            documents, tokens = (training if len(training.tokens) else validation).cut_off()
            if documents:
                said.append(f"{source.label}: {counted(documents, 'document')} longer than "
                            f"model.sequence_length={self.sequence_length} {'is' if documents == 1 else 'are'} "
                            f"cut there ({tokens} tokens are left out)")
        said += self._validated_again(validation_samples)
        return said + [doubt for source in self.sources if doubts for doubt in source.doubts(self.vocab_size)]

    def _validated_again(self, wanted: int) -> Iterator[str]:
        """Yield which sources have fewer validation samples of whole documents than a validation wants of them."""
        for source, (_, cutter), weight in zip(self.sources, self._cutters, self.weights, strict=True):
            share = math.ceil(wanted * weight)
            if cutter.rows is not None and cutter.choices < share:
                read = "they are read" if len(self.sources) == 1 else "they are read again and again"
                yield (f"{source.label}: its validation part is {counted(cutter.choices, 'sample')}, fewer than the "
                       f"{share} that train.validation_samples={wanted} wants of it; {read}")

    def fingerprint(self) -> str:
        """Return a digest of the sizes and of windows of all parts, to compare between nodes and with a checkpoint.

        Nodes with unlike Python versions or files would train on targets that do not belong to their tokens.
        """
        digest = hashlib.sha256(f"{self.order}/{self.sequence_length}/{self.vocab_size}".encode())
        for source, weight in zip(self.sources, self.weights, strict=True):
            digest.update(f"/{weight}".encode())
            if source.packing != "causal":  # a digest of the others stays what it was in older checkpoints
                digest.update(f"/{source.packing}".encode())
            for part in source.digest_parts():
                digest.update(part)
        return digest.hexdigest()[:16]

    @cached_property
    def _cutters(self) -> tuple[tuple[Cutter, Cutter], ...]:
        """What cuts samples out of the training and the validation part of each source."""
        return tuple(source.cutters(self.sequence_length) for source in self.sources)

    @cached_property
    def _once(self) -> Cutter:
        return self._cutters[0][1].once()

    def _places(self, seed: int, step: int, first: int, count: int, global_batch_size: int) -> list[_Place]:
        if first < 0 or first + count > global_batch_size:
            raise ValueError(f"samples {first} to {first + count - 1} are outside a global batch of "
                             f"{global_batch_size}")
        if self.order == "epoch":
            before = (step - 1) * global_batch_size + first
            return self._epoch_places(seed, range(before, before + count))
        return self._random_places(seed, step, first, count)

    def _random_places(self, seed: int, step: int, first: int, count: int) -> list[_Place]:
        """Choose places in the parts by a Philox counter keyed by seed and step."""
        sources = drawn_sources(self.weights, seed, step, first, count)
        choices = [training.choices for training, _ in self._cutters]
        words = offset_words(seed, step, first, count).tolist()
        return [(source, word % choices[source]) for source, word in zip(sources, words, strict=True)]

    def _epoch_places(self, seed: int, samples: range) -> list[_Place]:
        """Take windows by the number of samples before, counted from the first step."""
        if samples.start < 0:
            raise ValueError("data.order=epoch counts steps from 1")
        dealer = Dealer(self.weights, seed)
        dealt = [dealer.place(sample) for sample in samples]
        places: dict[_Place, int] = {}
        for index, (training, _) in enumerate(self._cutters):
            positions = [position for number, position in dealt if number == index]
            windows = epoch_windows(positions, training.windows, seed, index)
            for position, window in zip(positions, windows, strict=True):
                places[index, position] = training.window(window)
        return [(place[0], places[place]) for place in dealt]

    def _samples(self, part: int, places: Sequence[_Place]) -> Samples:
        """Cut samples out of the training parts (0) or the validation parts (1)."""
        return self._cut([cutters[part] for cutters in self._cutters], places)

    def _cut(self, cutters: Sequence[Cutter], places: Sequence[_Place]) -> Samples:
        for source, cutter in zip(self.sources, cutters, strict=True):
            refuse_shrunk(cutter.tokens, source.label)
        tokens = numpy.empty((len(places), self.sequence_length + 1), dtype=numpy.int64)
        targets, documents = tokens[:, 1:].copy(), []
        for row, (index, place) in enumerate(places):
            cut = cutters[index].cut(place)
            self.sources[index].check_vocabulary(cut.tokens, self.vocab_size)
            tokens[row], targets[row] = cut.tokens, cut.tokens[1:]
            if cut.counts is not None:
                targets[row, ~cut.counts] = NOT_COUNTED
            documents.append(cut.documents)
        inside = any(cutter.borders is not None for cutter in cutters)
        return Samples(torch.from_numpy(numpy.ascontiguousarray(tokens[:, :-1])), torch.from_numpy(targets),
                       tuple(documents) if inside else None)


def open_everything(data_config: Any, architecture: Architecture, tell: Tell = silent) -> Dataset:
    """Open the data that `config.data` names with all of it as the validation part: nothing is to be trained on.

    Raises as `open_dataset` does, but takes data that are shorter than a sample.
    """
    named = sources_of(data_config)
    sources = tuple(_undivided(open_source(replace(settings, validation_fraction=1.0), architecture.vocab_size, tell))
                    for settings, _ in named)
    for source in sources:
        source.check_vocabulary_size(architecture.vocab_size)
        if not source.cutters(architecture.sequence_length)[1].once().choices:
            raise DataError(f"{source.label} has no document of two tokens or more, so there is nothing to predict in "
                            "it. Use data with text or tokens in it.")
    check_tokenizers(sources)
    return Dataset(sources, tuple(weight for _, weight in named), architecture.sequence_length,
                   architecture.vocab_size)


def _undivided(source: Source) -> Source:
    """Return a source without a training part, also of a kind that divides itself."""
    if not len(source.training):
        return source
    whole = numpy.concatenate((numpy.asarray(source.training), numpy.asarray(source.validation)))
    return replace(source, training=whole[:0], validation=whole)


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
