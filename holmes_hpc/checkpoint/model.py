"""Which model and optimizer a checkpoint is of. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.checkpoint.index import Index
from holmes_hpc.errors import CheckpointError
from holmes_hpc.foreign import number

MODEL_PREFIX = "model/"

_NOT_MEANING = ("name", "family", "sequence_length", "max_positions", "initialization_std")
"""What does not change what weights mean: names, lengths (shapes are compared as well), and initial values."""


def model_description(architecture: Architecture) -> dict[str, Any]:
    """Return the model as a checkpoint records it."""
    return asdict(architecture)


def resolved(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded model with what versions before it could be set had: the values that it then had always."""
    try:
        return asdict(Architecture(**recorded)) | dict(recorded)
    except TypeError:
        return dict(recorded)


def check_model(index: Index, architecture: Architecture) -> None:
    """Raise CheckpointError unless the checkpoint is of this model: names, global shapes, and what they mean."""
    recorded = resolved(_mapping(index.extra.get("model", {}), "model"))
    unknown = sorted(recorded.keys() - {field.name for field in fields(Architecture)})
    if unknown:
        raise CheckpointError(f"it is of a newer version of holmes_hpc: this one knows no model.{unknown[0]}")
    different = [f"model.{name} is {value} in it and {getattr(architecture, name)} here"
                 for name, value in recorded.items()
                 if name not in _NOT_MEANING and value != getattr(architecture, name)]
    if different:
        raise CheckpointError(f"it is of another model: {'; '.join(different[:3])}"
                              + (f"; and {len(different) - 3} more differences" if len(different) > 3 else ""))
    index.check_shapes(MODEL_PREFIX, {info.name: info.shape for info in architecture.parameters()})


def check_optimizer(index: Index, name: str) -> None:
    """Raise CheckpointError where the checkpoint holds the state of another optimizer than `optimizer.name`."""
    state = states_of(index).get("optimizer")
    if state is not None:
        check_optimizer_state(state, name)


def states_of(index: Index) -> dict[str, dict[str, Any]]:
    """Return what a checkpoint has beside tensors, by the part of the training. Raises CheckpointError for nonsense."""
    parts = _mapping(index.extra.get("parts", {}), "parts")
    states = {name: _mapping(state, f"parts.{name}") for name, state in parts.items()}
    for name, state in states.items():
        for key, value in _mapping(state.get("numbers", {}), f"parts.{name}.numbers").items():
            found = number(value)
            if found is None or found < 0:
                raise CheckpointError(f"it is foreign: its index says {key}={str(value)[:40]!r} of the {name}")
    return states


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CheckpointError(f"it is foreign: {name} in its index is {str(value)[:40]!r}")
    return value


def check_optimizer_state(state: Mapping[str, Any], name: str) -> None:
    """Raise CheckpointError unless `state`, what an optimizer has beside tensors, is of the optimizer called `name`."""
    found = state.get("name")
    if found != name:
        raise CheckpointError(f"it holds the state of the optimizer {found}, and optimizer.name={name}; set "
                              f"optimizer={found}")
