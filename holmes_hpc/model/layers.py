"""The parts of a decoder layer.

Dims: b samples, s tokens, h hidden, n heads, d head size. With tensor parallelism a module computes with its own
heads and columns; between the products every rank has all tokens, or with sequence parallelism a shard of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from holmes_hpc.architecture import Architecture
from holmes_hpc.model.kinds import activation_function, build_norm
from holmes_hpc.model.share import TensorShare
from holmes_hpc.model.weight_gradients import as_now


def rotation_table(architecture: Architecture) -> Tensor:
    """Return cosine and sine [2, s, 1, d] in float32 of the angles of rotary positions (Su et al. 2021).

    Pair j of position p turns by p / base^(2j/d). Element j is paired with element j + d/2, as in the Llama
    weights that Hugging Face distributes.
    """
    pairs = torch.arange(0, architecture.head_size, 2, dtype=torch.float64, device="cpu")
    frequencies = architecture.rotary_base ** (-pairs / architecture.head_size)
    positions = torch.arange(architecture.sequence_length, dtype=torch.float64, device="cpu")
    angles = torch.outer(positions, frequencies).repeat(1, 2)[:, None, :]
    return torch.stack((angles.cos(), angles.sin())).float()


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Turn every head [b, s, n, d] by its position, with a table [2, s, 1, d] of cosines and sines."""
    cosine, sine = rotation.to(heads.dtype)
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine


class Attention(nn.Module):
    """Causal self-attention in which several query heads may share a key-value head."""

    def __init__(self, architecture: Architecture, share: TensorShare, *, recompute: bool) -> None:
        super().__init__()
        hidden, bias = architecture.hidden_size, architecture.bias
        own, kv = share.size(hidden), share.size(architecture.kv_size)
        self.share, self.recompute = share, recompute
        self.head_size = architecture.head_size
        self.query = nn.Linear(hidden, own, bias=bias)
        self.key = nn.Linear(hidden, kv, bias=bias)
        self.value = nn.Linear(hidden, kv, bias=bias)
        self.output = nn.Linear(own, hidden, bias=bias)

    def forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        """Return the attention's contribution [b, s, h] to the residual stream."""
        x = self.share.enter(x)
        query, key, value = (projection(x).unflatten(-1, (-1, self.head_size))
                             for projection in (self.query, self.key, self.value))
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        attended = recomputed(_attend, query, key, value) if self.recompute else _attend(query, key, value)
        return self.share.row_parallel(self.output, attended)


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the attention core's output [b, s, n d] of heads [b, s, n, d]."""
    attended = functional.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True,
        enable_gqa=query.shape[2] != key.shape[2])
    return attended.transpose(1, 2).flatten(2)


def recomputed(function: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
    """Return `function(*inputs)`, which keeps only its inputs and runs again in the backward.

    Nothing in the model is random, so no random state is kept.
    """
    if not torch.is_grad_enabled():
        return function(*inputs)
    return cast(Tensor, checkpoint(as_now(function), *inputs, use_reentrant=False, preserve_rng_state=False))


class FeedForward(nn.Module):
    """Two matrices around an activation (GELU: exact, by the error function), or SwiGLU's three (Shazeer 2020)."""

    def __init__(self, architecture: Architecture, share: TensorShare) -> None:
        super().__init__()
        hidden, bias = architecture.hidden_size, architecture.bias
        ffn = share.size(architecture.ffn_hidden_size)
        self.share, self.activation = share, activation_function(architecture)
        self.gate = nn.Linear(hidden, ffn, bias=bias) if architecture.gated else None
        self.up = nn.Linear(hidden, ffn, bias=bias)
        self.down = nn.Linear(ffn, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the feed-forward layer's contribution [b, s, h] to the residual stream."""
        x = self.share.enter(x)
        inner = self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)
        return self.share.row_parallel(self.down, inner)


class DecoderLayer(nn.Module):
    """Attention and feed-forward layer, each behind a norm and beside a residual path.

    `recompute`: what the backward computes again, `none`, `selective` (the attention core) or `full` (all).
    """

    def __init__(self, architecture: Architecture, share: TensorShare, recompute: str) -> None:
        super().__init__()
        self.recompute = recompute == "full"
        self.attention_norm = build_norm(architecture)
        self.attention = Attention(architecture, share, recompute=recompute == "selective")
        self.feed_forward_norm = build_norm(architecture)
        self.feed_forward = FeedForward(architecture, share)

    def forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        """Return the hidden states [b, s, h] after this layer; s is a shard's with sequence parallelism."""
        return recomputed(self._forward, x, rotation) if self.recompute else self._forward(x, rotation)

    def _forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        return cast(Tensor, x + self.feed_forward(self.feed_forward_norm(x)))
