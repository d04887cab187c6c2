"""The attention core: over a whole sample, or inside each of the documents that were packed into it.

Dims: b samples, s tokens, n heads, d head size. A core takes queries, keys and values [b, s, n, d], of which the last
two may have fewer heads, and returns [b, s, n d].
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

Core = Callable[..., Tensor]
"""A core: queries, keys, values, and by name `scale`, what scores are multiplied by; None: one by the root of d."""


class Context(Protocol):
    """What the layers of a stage have to know beside the hidden states: positions, and who attends to whom."""

    positions: Tensor
    """int64 [b, s], the place of every token in its document"""

    def core(self, layer: str) -> Core:
        """Return the attention core of a layer, named by its number in the model."""


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
    """Return the core's output where every token attends to itself and all before it."""
    attended = functional.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True, scale=scale,
        enable_gqa=query.shape[2] != key.shape[2])
    return attended.transpose(1, 2).flatten(2)


class Documents:
    """Documents packed into samples: tokens attend to those before them in their own, whose positions begin at 0.

    `lengths` has the tokens of each document by sample; where they sum to less than `sequence_length`, the rest is
    padding, which attends to nothing. On GPUs, in 16 bit, all documents are one call of torch's variable-length
    attention; elsewhere each is a call of its own, and the work is that of the documents and not of the sample.
    """

    def __init__(self, lengths: Sequence[Sequence[int]], sequence_length: int,
                 device: torch.device | str = "cpu") -> None:
        self._pieces: list[int] = []
        self._pads: list[bool] = []
        positions = torch.zeros(len(lengths), sequence_length, dtype=torch.int64)
        for row, documents in enumerate(lengths):
            begin = 0
            for length in documents:
                positions[row, begin:begin + length] = torch.arange(length)
                begin += length
            self._pieces += documents
            self._pads += [False] * len(documents)
            if begin < sequence_length:
                self._pieces.append(sequence_length - begin)
                self._pads.append(True)
        self.positions = positions.to(device)
        self._borders = torch.tensor([0, *self._pieces]).cumsum(0).to(device=device, dtype=torch.int32)
        self._longest = max(self._pieces)

    def core(self, layer: str) -> Core:
        """Return the core, the same for every layer."""
        return self.attend

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
        """Return the core's output with attention inside each document."""
        samples = query.shape[0]
        query, key, value = query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
        varlen = _variable_length() if query.is_cuda and query.dtype != torch.float32 else None
        attended = (self._one_by_one(query, key, value, scale) if varlen is None else
                    self._at_once(varlen, query, key, value, scale))
        return attended.flatten(1).unflatten(0, (samples, -1))

    def _at_once(self, varlen: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor,
                 scale: float | None) -> Tensor:
        shared = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
        return varlen(query, key, value, self._borders, self._borders, self._longest, self._longest,
                      scale=scale, window_size=(-1, 0), **shared)

    def _one_by_one(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        parts = zip(query.split(self._pieces), key.split(self._pieces), value.split(self._pieces), self._pads,
                    strict=True)
        return torch.cat([torch.zeros_like(q) if pad else attend(q[None], k[None], v[None], scale)[0].view_as(q)
                          for q, k, v, pad in parts])


def _variable_length() -> Callable[..., Any] | None:
    """Return torch's attention over documents of unlike length; None where this release has none that we know."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    return varlen_attn if {"scale", "window_size", "enable_gqa"} <= set(known) else None
