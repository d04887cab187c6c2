"""Every parameter of a decoder: its name, its global shape, and the dim that tensor parallelism splits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from holmes_hpc.architecture.dimensions import Dimensions
from holmes_hpc.architecture.kinds import has_bias


@dataclass(frozen=True)
class ParameterInfo:
    """One parameter. `split_dim` is the dim that tensor parallelism splits; None: none.

    `by_head`: every tensor rank holds all of it and uses it for its own heads alone, so that the whole gradient is the
    sum of theirs.
    """

    name: str
    shape: tuple[int, ...]
    split_dim: int | None
    unit: str
    by_head: bool = False

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
        shape = (architecture.max_positions, hidden)
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
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    feed_forward = f"{unit}.feed_forward"
    before, after = architecture.norm_order != "after", architecture.norm_order != "before"
    gate = _linear(f"{feed_forward}.gate", ffn, hidden, 0, unit, bias=architecture.bias)
    return (
        (_norm(architecture, f"{unit}.attention_norm", unit) if before else ())
        + _attention(architecture, f"{unit}.attention", unit)
        + (_norm(architecture, f"{unit}.attention_post_norm", unit) if after else ())
        + (_norm(architecture, f"{unit}.feed_forward_norm", unit) if before else ())
        + (gate if architecture.gated else ())
        + _linear(f"{feed_forward}.up", ffn, hidden, 0, unit, bias=architecture.bias)
        + _linear(f"{feed_forward}.down", hidden, ffn, 1, unit, bias=architecture.bias)
        + (_norm(architecture, f"{unit}.feed_forward_post_norm", unit) if after else ())
    )


def _attention(architecture: Dimensions, name: str, unit: str) -> tuple[ParameterInfo, ...]:
    hidden, query, kv = architecture.hidden_size, architecture.query_size, architecture.kv_size
    entry, leaving = architecture.attention_bias in ("all", "qkv"), architecture.attention_bias == "all"
    return (
        _linear(f"{name}.query", query, hidden, 0, unit, bias=entry)
        + _linear(f"{name}.key", kv, hidden, 0, unit, bias=entry)
        + _linear(f"{name}.value", kv, hidden, 0, unit, bias=entry)
        + _query_key_norms(architecture, name, unit)
        + _linear(f"{name}.output", hidden, query, 1, unit, bias=leaving)
    )


def _query_key_norms(architecture: Dimensions, name: str, unit: str) -> tuple[ParameterInfo, ...]:
    """Return the weights of the norms of queries and keys: one head's, or of all heads, each rank's its own."""
    if architecture.query_key_norm == "none":
        return ()
    if architecture.query_key_norm == "head":
        return tuple(ParameterInfo(f"{name}.{which}_norm.weight", (architecture.head_size,), None, unit, by_head=True)
                     for which in ("query", "key"))
    return (ParameterInfo(f"{name}.query_norm.weight", (architecture.query_size,), 0, unit),
            ParameterInfo(f"{name}.key_norm.weight", (architecture.kv_size,), 0, unit))


def _linear(name: str, rows: int, columns: int, split_dim: int, unit: str, *, bias: bool) -> tuple[ParameterInfo, ...]:
    """Return weight and bias of `x @ weight.T + bias`.

    Where the rows are split (column parallel, in Megatron's word), the bias is split with them; where the
    columns are (row parallel), it is added after the sum over the ranks, so every rank holds all of it.
    """
    weight = ParameterInfo(f"{name}.weight", (rows, columns), split_dim, unit)
    return (weight, ParameterInfo(f"{name}.bias", (rows,), 0 if split_dim == 0 else None, unit)) if bias else (weight,)


def _norm(architecture: Dimensions, name: str, unit: str) -> tuple[ParameterInfo, ...]:
    weight = ParameterInfo(f"{name}.weight", (architecture.hidden_size,), None, unit)
    bias = ParameterInfo(f"{name}.bias", (architecture.hidden_size,), None, unit)
    return (weight, bias) if architecture.bias and has_bias(architecture.normalization) else (weight,)
