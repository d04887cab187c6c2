"""The parts of a decoder layer.

Dims: b samples, s tokens, h hidden, n heads, d head size. With tensor parallelism a module computes with its own
heads and columns; between the products every rank has all tokens, or with sequence parallelism a shard of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from holmes_hpc.architecture import Architecture
from holmes_hpc.model.attention import Core, attend
from holmes_hpc.model.kinds import activation_function, build_norm
from holmes_hpc.model.query_key_norm import WidthNorm, build_query_key_norm, norm_over_heads
from holmes_hpc.model.rotary import rotate
from holmes_hpc.model.share import TensorShare
from holmes_hpc.model.weight_gradients import as_now


class Attention(nn.Module):
    """Causal self-attention in which several query heads may share a key-value head."""

    def __init__(self, architecture: Architecture, share: TensorShare, *, recompute: bool) -> None:
        super().__init__()
        hidden, bias = architecture.hidden_size, architecture.attention_bias in ("all", "qkv")
        own, kv = share.size(architecture.query_size), share.size(architecture.kv_size)
        self.share, self.recompute = share, recompute
        self.head_size, self.scale = architecture.head_size, architecture.attention_scale
        self.query = nn.Linear(hidden, own, bias=bias)
        self.key = nn.Linear(hidden, kv, bias=bias)
        self.value = nn.Linear(hidden, kv, bias=bias)
        self.query_norm = build_query_key_norm(architecture, architecture.query_size, share)
        self.key_norm = build_query_key_norm(architecture, architecture.kv_size, share)
        self.output = nn.Linear(own, hidden, bias=architecture.attention_bias == "all")

    def forward(self, x: Tensor, rotation: Tensor | None, core: Core = attend) -> Tensor:
        """Return the attention's contribution [b, s, h] to the residual stream."""
        x = self.share.enter(x)
        query, key, value = self._heads(x)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        attending = functools.partial(core, scale=self.scale)
        attended = recomputed(attending, query, key, value) if self.recompute else attending(query, key, value)
        return self.share.row_parallel(self.output, attended)

    def _heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return this rank's queries, keys and values [b, s, n, d] of x [b, s, h], normed where the model says so."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        if isinstance(self.query_norm, WidthNorm) and isinstance(self.key_norm, WidthNorm):
            query, key = norm_over_heads(query, key, self.query_norm, self.key_norm, self.share)
        query, key, value = (each.unflatten(-1, (-1, self.head_size)) for each in (query, key, value))
        if isinstance(self.query_norm, nn.RMSNorm) and isinstance(self.key_norm, nn.RMSNorm):
            query, key = self.query_norm(query), self.key_norm(key)
        return query, key, value


def recomputed(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """Return `function(*inputs)`, which keeps only its inputs and runs again in the backward.

    Nothing in the model is random, so no random state is kept.
    """
    if not torch.is_grad_enabled():
        return function(*inputs)
    return cast(Tensor, checkpoint(as_now(function), *inputs, use_reentrant=False, preserve_rng_state=False))


class FeedForward(nn.Module):
    """Two matrices around an activation (GELU: by the error function, or by tanh), or SwiGLU's three (Shazeer 2020)."""

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
    """Attention and feed-forward layer, each beside a residual path and behind a norm, before one, or between two.

    With `parallel_residual` both read what comes in, and what they have to say is added together (GPT-NeoX).
    `recompute`: what the backward computes again, `none`, `selective` (the attention core) or `full` (all).
    """

    def __init__(self, architecture: Architecture, share: TensorShare, recompute: str) -> None:
        super().__init__()
        self.recompute = recompute == "full"
        self._compiled: Callable[..., Tensor] | None = None
        self.parallel = architecture.parallel_residual
        before, after = architecture.norm_order != "after", architecture.norm_order != "before"
        self.attention_norm = build_norm(architecture) if before else None
        self.attention = Attention(architecture, share, recompute=recompute == "selective")
        self.attention_post_norm = build_norm(architecture) if after else None
        self.feed_forward_norm = build_norm(architecture) if before else None
        self.feed_forward = FeedForward(architecture, share)
        self.feed_forward_post_norm = build_norm(architecture) if after else None

    def forward(self, x: Tensor, rotation: Tensor | None, core: Core = attend) -> Tensor:
        """Return the hidden states [b, s, h] after this layer; s is a shard's with sequence parallelism.

        `core` says which tokens attend to which.
        """
        # Of samples of several documents the core differs each time, and a validation takes samples of other shapes.
        compiled = self._compiled if core is attend and torch.is_grad_enabled() else None
        run = compiled or self._forward
        return recomputed(run, x, rotation, core) if self.recompute else run(x, rotation, core)

    def compile_forward(self) -> None:
        """From now on compute what trains by torch's compiler; hooks, parameters and their names stay as they are."""
        self._compiled = torch.compile(self._forward, dynamic=False)

    def _forward(self, x: Tensor, rotation: Tensor | None, core: Core) -> Tensor:
        if self.parallel:
            return cast(Tensor, x + self.attention(_normed(self.attention_norm, x), rotation, core)
                        + self.feed_forward(_normed(self.feed_forward_norm, x)))
        attended = self.attention(_normed(self.attention_norm, x), rotation, core)
        x = x + _normed(self.attention_post_norm, attended)
        fed = self.feed_forward(_normed(self.feed_forward_norm, x))
        return x + _normed(self.feed_forward_post_norm, fed)


def _normed(norm: nn.Module | None, x: Tensor) -> Tensor:
    return x if norm is None else cast(Tensor, norm(x))
