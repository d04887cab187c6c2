"""The parts of a decoder layer.

Dims: b samples, s tokens, h hidden, n heads, d head size. Widths are read off the weights, not off the
architecture: a module whose weights are a tensor-parallel slice computes with its own heads and columns.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from holmes_hpc.architecture import Architecture


def build_norm(architecture: Architecture) -> nn.Module:
    """Return a LayerNorm or RMSNorm over the hidden dim."""
    hidden, epsilon = architecture.hidden_size, architecture.normalization_epsilon
    if architecture.normalization == "rmsnorm":
        return nn.RMSNorm(hidden, eps=epsilon)
    return nn.LayerNorm(hidden, eps=epsilon, bias=architecture.bias)


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

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        hidden, kv, bias = architecture.hidden_size, architecture.kv_size, architecture.bias
        self.head_size = architecture.head_size
        self.query = nn.Linear(hidden, hidden, bias=bias)
        self.key = nn.Linear(hidden, kv, bias=bias)
        self.value = nn.Linear(hidden, kv, bias=bias)
        self.output = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        """Return the attention's contribution [b, s, h] to the residual stream."""
        query, key, value = (projection(x).unflatten(-1, (-1, self.head_size))
                             for projection in (self.query, self.key, self.value))
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        attended = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True,
            enable_gqa=query.shape[2] != key.shape[2])
        return cast(Tensor, self.output(attended.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    """Two matrices around a GELU (exact, by the error function), or SwiGLU's three (Shazeer 2020)."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        hidden, ffn, bias = architecture.hidden_size, architecture.ffn_hidden_size, architecture.bias
        self.gate = nn.Linear(hidden, ffn, bias=bias) if architecture.activation == "swiglu" else None
        self.up = nn.Linear(hidden, ffn, bias=bias)
        self.down = nn.Linear(ffn, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the feed-forward layer's contribution [b, s, h] to the residual stream."""
        if self.gate is None:
            return cast(Tensor, self.down(functional.gelu(self.up(x))))
        return cast(Tensor, self.down(functional.silu(self.gate(x)) * self.up(x)))


class DecoderLayer(nn.Module):
    """Attention and feed-forward layer, each behind a norm and beside a residual path."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.attention_norm = build_norm(architecture)
        self.attention = Attention(architecture)
        self.feed_forward_norm = build_norm(architecture)
        self.feed_forward = FeedForward(architecture)

    def forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        """Return the hidden states [b, s, h] after this layer."""
        x = x + self.attention(self.attention_norm(x), rotation)
        return cast(Tensor, x + self.feed_forward(self.feed_forward_norm(x)))
