"""Layers of a model as a probe timed them: the file that it writes and that `cluster.profiled` names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster.gpus import GPU_NAMES, PRECISIONS, TENSOR_FLOAT, Gpu
from holmes_hpc.cluster.records import ABOVE_ZERO, COUNT, FROM_ZERO, RecordFile, Valid, one_of
from holmes_hpc.cluster.timed_units import UNITS, ProfiledUnit

FORMAT_VERSION = 1
_TIMELESS = ("name", "num_layers", "tied_embeddings", "rotary_base", "normalization_epsilon", "initialization_std",
             "embedding_scale", "attention_scale", "family")
"""What of a model no unit takes longer for."""

_FILE = RecordFile(
    "cluster.profiled", "file of `holmes probe` with timed layers", FORMAT_VERSION, "layers",
    {"gpu": one_of(GPU_NAMES), "precision": one_of([name for name in PRECISIONS if name != TENSOR_FLOAT]),
     "model": Valid("a text", lambda value: isinstance(value, str) and bool(value)), "unit": one_of(UNITS),
     "tensor": COUNT, "samples": COUNT, "forward_seconds": ABOVE_ZERO, "backward_seconds": FROM_ZERO},
    "make it by `holmes probe`, or leave it out")


def layer_words(architecture: Architecture) -> str:
    """Return in words all of a model that the time of its units may depend on; not how many layers it has."""
    return " ".join(f"{each.name}={getattr(architecture, each.name)}" for each in dataclasses.fields(architecture)
                    if each.name not in _TIMELESS)


def to_json(units: Sequence[ProfiledUnit], **further: Any) -> dict[str, Any]:
    """Return the content of the file; `further` are facts for people, and the links that were measured with it."""
    return {"format": FORMAT_VERSION, **further, "layers": [dataclasses.asdict(unit) for unit in units]}


def read_profiled(path: str | None) -> tuple[ProfiledUnit, ...]:
    """Return the units of `cluster.profiled`; none where nothing is named. Raises ConfigurationError."""
    if path is None:
        return ()
    return tuple(ProfiledUnit(**each) for each in _FILE.read(path))


def profile_gpu(kind: Gpu, found: Iterable[ProfiledUnit]) -> Gpu:
    """Return a GPU kind with the units that were timed on it."""
    own = tuple(each for each in found if each.gpu == kind.name)
    return dataclasses.replace(kind, profile=own) if own else kind


def units_of(kind: Gpu, architecture: Architecture, precision: str) -> tuple[ProfiledUnit, ...]:
    """Return what was timed of a model's units in a precision."""
    words = layer_words(architecture) if kind.profile else ""
    return tuple(each for each in kind.profile if (each.model, each.precision) == (words, precision))
