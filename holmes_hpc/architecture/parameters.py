"""Every parameter of a decoder: its name, its global shape, and the dim that tensor parallelism splits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from holmes_hpc.architecture.dimensions import Dimensions
from holmes_hpc.architecture.kinds import has_bias


@dataclass(frozen=True)
class ParameterInfo:
    """One parameter. `split_dim` is the dim that tensor parallelism splits; None: none."""

    name: str
    shape: tuple[int, ...]
    split_dim: int | None
    unit: str

    @property
    def count(self) -> int:
        """Return the number of elements of the global tensor."""
        return math.prod(self.shape)


@lru_cache(maxsize=4096)
def unit_parameters(architecture: Dimensions, unit: str) -> tuple[ParameterInfo, ...]:
    """Return the parameters of one unit, in the order in which the forward meets them.

    Raises KeyError for a unit that the model has not.
    """
    hidden = architecture.hidden_size
    if unit == "embedding.token":
        return (ParameterInfo("embedding.token.weight", (architecture.vocab_size, hidden), 0, unit),)
    if unit == "embedding" and architecture.position_embedding == "learned":
        shape = (architecture.sequence_length, hidden)
        return (ParameterInfo("embedding.position.weight", shape, None, unit),)
    if unit == "head":
        untied = () if architecture.tied_embeddings else (
            ParameterInfo("head.output.weight", (architecture.vocab_size, hidden), 0, unit),)
        return _norm(architecture, "head.norm", unit) + untied
    prefix, _, layer = unit.partition(".")
    if prefix == "layers" and layer.isdecimal() and int(layer) < architecture.num_layers:
        return _layer(architecture, unit)
    raise KeyError(f"{unit}: {architecture.name} has no such unit; units are embedding.token, embedding, "
                   f"layers.0 to layers.{architecture.num_layers - 1} and head")


def _layer(architecture: Dimensions, unit: str) -> tuple[ParameterInfo, ...]:
    hidden, kv, ffn = architecture.hidden_size, architecture.kv_size, architecture.ffn_hidden_size
    attention, feed_forward = f"{unit}.attention", f"{unit}.feed_forward"
    gate = _linear(architecture, f"{feed_forward}.gate", ffn, hidden, 0, unit)
    return (
        _norm(architecture, f"{unit}.attention_norm", unit)
        + _linear(architecture, f"{attention}.query", hidden, hidden, 0, unit)
        + _linear(architecture, f"{attention}.key", kv, hidden, 0, unit)
        + _linear(architecture, f"{attention}.value", kv, hidden, 0, unit)
        + _linear(architecture, f"{attention}.output", hidden, hidden, 1, unit)
        + _norm(architecture, f"{unit}.feed_forward_norm", unit)
        + (gate if architecture.gated else ())
        + _linear(architecture, f"{feed_forward}.up", ffn, hidden, 0, unit)
        + _linear(architecture, f"{feed_forward}.down", hidden, ffn, 1, unit)
    )


def _linear(architecture: Dimensions, name: str, rows: int, columns: int, split_dim: int,
            unit: str) -> tuple[ParameterInfo, ...]:
    """Return weight and bias of `x @ weight.T + bias`.

    Where the rows are split (column parallel, in Megatron's word), the bias is split with them; where the
    columns are (row parallel), it is added after the sum over the ranks, so every rank holds all of it.
    """
    weight = ParameterInfo(f"{name}.weight", (rows, columns), split_dim, unit)
    bias = ParameterInfo(f"{name}.bias", (rows,), 0 if split_dim == 0 else None, unit)
    return (weight, bias) if architecture.bias else (weight,)


def _norm(architecture: Dimensions, name: str, unit: str) -> tuple[ParameterInfo, ...]:
    weight = ParameterInfo(f"{name}.weight", (architecture.hidden_size,), None, unit)
    bias = ParameterInfo(f"{name}.bias", (architecture.hidden_size,), None, unit)
    return (weight, bias) if architecture.bias and has_bias(architecture.normalization) else (weight,)
