"""Which model and optimizer a checkpoint is of. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.checkpoint.index import Index
from holmes_hpc.errors import CheckpointError

MODEL_PREFIX = "model/"

_MEANING = ("num_heads", "num_kv_heads", "normalization", "activation", "position_embedding", "tied_embeddings")
"""What weights of equal shapes mean something else by."""


def model_description(architecture: Architecture) -> dict[str, Any]:
    """Return the model as a checkpoint records it."""
    return asdict(architecture)


def check_model(index: Index, architecture: Architecture) -> None:
    """Raise CheckpointError unless the checkpoint is of this model: names, global shapes, and what they mean."""
    recorded = index.extra.get("model", {})
    different = [f"model.{name} is {recorded[name]} in it and {getattr(architecture, name)} here"
                 for name in _MEANING if name in recorded and recorded[name] != getattr(architecture, name)]
    if different:
        raise CheckpointError(f"it is of another model: {'; '.join(different)}")
    index.check_shapes(MODEL_PREFIX, {info.name: info.shape for info in architecture.parameters()})


def check_optimizer(index: Index, name: str) -> None:
    """Raise CheckpointError where the checkpoint holds the state of another optimizer than `optimizer.name`."""
    state = index.extra.get("parts", {}).get("optimizer")
    if state is not None:
        check_optimizer_state(state, name)


def check_optimizer_state(state: Mapping[str, Any], name: str) -> None:
    """Raise CheckpointError unless `state`, what an optimizer has beside tensors, is of the optimizer called `name`."""
    found = state.get("name")
    if found != name:
        raise CheckpointError(f"it holds the state of the optimizer {found}, and optimizer.name={name}; set "
                              f"optimizer={found}")
