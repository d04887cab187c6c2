"""Batches of samples, chosen by (seed, step, sample index in the global batch) and by no layout."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from holmes_hpc.architecture import Architecture
from holmes_hpc.data import python_docs
from holmes_hpc.data.tokens import open_tokens
from holmes_hpc.errors import ConfigurationError, DataError

_KINDS = ("python_docs", "tokens")
_CHECKED_WINDOWS = 64
_CHECKED_TOKENS = 4096
# 2^64 divided by the golden ratio: multiples of it, modulo 2^64, are spread evenly however many are taken.
_GOLDEN_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Dataset:
    """A training and a validation part of tokens; a sample is `sequence_length` of them with successors."""

    name: str
    training: NDArray[numpy.unsignedinteger]
    validation: NDArray[numpy.unsignedinteger]
    sequence_length: int
    vocab_size: int

    def train_batch(self, seed: int, step: int, first_sample: int, num_samples: int,
                    global_batch_size: int) -> tuple[Tensor, Tensor]:
        """Return samples `first_sample` and following of a step's global batch: tokens and targets.

        Both are int64 [num_samples, sequence_length]; `targets[i, j]` follows `tokens[i, j]`. The offsets of
        the whole global batch come from a Philox counter keyed by seed and step, so every layout sees the
        same samples. Raises ValueError for samples outside the batch, DataError for tokens outside the
        vocabulary.
        """
        if first_sample < 0 or first_sample + num_samples > global_batch_size:
            raise ValueError(f"samples {first_sample} to {first_sample + num_samples - 1} are outside a "
                             f"global batch of {global_batch_size}")
        key = numpy.array([seed % 2**64, step % 2**64], dtype=numpy.uint64)
        # Raw words rather than Generator.integers: numpy keeps their stream the same across its versions.
        words = numpy.random.Philox(key=key).random_raw(global_batch_size)
        choices = len(self.training) - self.sequence_length
        offsets = (words % numpy.uint64(choices))[first_sample : first_sample + num_samples]
        return self._batch(self.training, [int(offset) for offset in offsets])

    def validation_batch(self, first_sample: int, num_samples: int) -> tuple[Tensor, Tensor]:
        """Return fixed samples of the validation part, as `train_batch` does.

        Samples 0 to n-1 are spread evenly over the part for every n.
        """
        choices = len(self.validation) - self.sequence_length
        offsets = [(index * _GOLDEN_STEP % 2**64) * choices >> 64
                   for index in range(first_sample, first_sample + num_samples)]
        return self._batch(self.validation, offsets)

    def check(self) -> None:
        """Refuse data that cannot be trained on.

        That is a part shorter than one sample, or tokens outside the vocabulary in windows that are spread
        over both parts. Raises DataError.
        """
        for part, tokens in (("training", self.training), ("validation", self.validation)):
            if len(tokens) <= self.sequence_length:
                raise DataError(
                    f"data.name={self.name} has {len(tokens)} tokens for {part}: one sample needs "
                    f"{self.sequence_length + 1}. Set model.sequence_length to less than {len(tokens)}.")
            for window in _windows(tokens):
                self._check_vocabulary(window)

    def fingerprint(self) -> str:
        """Return a digest of the size and of windows of both parts, to compare between nodes.

        Nodes with unlike Python versions or files would train on targets that do not belong to their tokens.
        """
        digest = hashlib.sha256(f"{self.name}/{self.sequence_length}/{self.vocab_size}".encode())
        for tokens in (self.training, self.validation):
            digest.update(f"/{len(tokens)}/".encode())
            for window in _windows(tokens):
                digest.update(window.tobytes())
        return digest.hexdigest()[:16]

    def _batch(self, tokens: NDArray[numpy.unsignedinteger], offsets: list[int]) -> tuple[Tensor, Tensor]:
        samples = numpy.empty((len(offsets), self.sequence_length + 1), dtype=numpy.int64)
        for row, offset in enumerate(offsets):
            samples[row] = tokens[offset : offset + self.sequence_length + 1]
        self._check_vocabulary(samples)
        batch = torch.from_numpy(samples)
        return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()

    def _check_vocabulary(self, tokens: NDArray[Any]) -> None:
        largest = int(tokens.max(initial=0))
        if largest >= self.vocab_size:
            raise DataError(
                f"data.name={self.name} holds token {largest}, and model.vocab_size={self.vocab_size} has "
                f"tokens 0 to {self.vocab_size - 1}: the data was made with a larger vocabulary, or "
                f"data.dtype is wrong. Set model.vocab_size to at least {largest + 1}, or data.dtype to "
                "uint8, uint16 or uint32.")


def _windows(tokens: NDArray[numpy.unsignedinteger]) -> Iterator[NDArray[numpy.unsignedinteger]]:
    """Yield windows of tokens from the first to the last, evenly spread; they overlap where there are few."""
    last = max(len(tokens) - _CHECKED_TOKENS, 0)
    for window in range(_CHECKED_WINDOWS):
        offset = last * window // (_CHECKED_WINDOWS - 1)
        yield tokens[offset : offset + _CHECKED_TOKENS]


def open_dataset(data_config: Any, architecture: Architecture) -> Dataset:
    """Open the data that `config.data` names, and check it.

    Raises ConfigurationError for a kind that does not work, a missing `data.path`, or a vocabulary too small
    for bytes; DataError for data that is missing or unusable.
    """
    kind = str(data_config.name)
    if kind == "python_docs":
        if architecture.vocab_size < python_docs.VOCAB_SIZE:
            raise ConfigurationError(
                f"data.name=python_docs has {python_docs.VOCAB_SIZE} tokens (bytes), and "
                f"model.vocab_size={architecture.vocab_size} has fewer. Set model.vocab_size to at least "
                f"{python_docs.VOCAB_SIZE}, or data.name=tokens.")
        training, validation = python_docs.read_python_docs()
    elif kind == "tokens":
        if not data_config.path:
            raise ConfigurationError("data.name=tokens reads a file, and data.path is not set. "
                                     "Set data.path to a flat file of tokens, or data=python_docs.")
        training, validation = open_tokens(Path(data_config.path).expanduser(), str(data_config.dtype),
                                           float(data_config.validation_fraction),
                                           architecture.sequence_length + 1)
    else:
        raise ConfigurationError(f"data.name={kind} does not work in this version. "
                                 f"Set data.name to one of {', '.join(_KINDS)}.")
    dataset = Dataset(kind, training, validation, architecture.sequence_length, architecture.vocab_size)
    dataset.check()
    return dataset
