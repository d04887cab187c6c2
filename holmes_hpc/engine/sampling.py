"""Continues a text with a whole model, a token at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from holmes_hpc.model import StageModule
from holmes_hpc.model.attention import Core, attend

_COLDEST = 1e-6
"""Logits over less than this are beyond float32, and nothing but the likeliest is drawn long before."""


class KeyValueCache:
    """Keys and values of the tokens so far, by layer: a new token is computed alone and attends to all of them."""

    def __init__(self) -> None:
        self._past: dict[str, tuple[Tensor, Tensor]] = {}
        self.positions = torch.zeros(1, 0, dtype=torch.int64)

    def begin(self, count: int) -> None:
        """Take it that `count` tokens follow: any number at first, then one at a time."""
        first = int(self.positions[0, -1]) + 1 if self.positions.numel() else 0
        self.positions = torch.arange(first, first + count)[None]

    def core(self, layer: str) -> Core:
        """Return the core of a layer, which keeps what it is given."""
        def attended(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
            if layer not in self._past:
                self._past[layer] = key, value
                return attend(query, key, value, scale)
            keys, values = (torch.cat(pair, dim=1) for pair in zip(self._past[layer], (key, value), strict=True))
            self._past[layer] = keys, values
            found = functional.scaled_dot_product_attention(
                query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), scale=scale,
                enable_gqa=query.shape[2] != key.shape[2])
            return found.transpose(1, 2).flatten(2)
        return attended


@torch.no_grad()
def continue_tokens(model: StageModule, prompt: Sequence[int], count: int, *, temperature: float = 1.0,
                    top_p: float = 1.0, seed: int = 0, ends: Sequence[int] = (),
                    num_tokens: int | None = None) -> Iterator[int]:
    """Yield up to `count` tokens that follow `prompt`, until one of `ends`.

    `temperature` 0, or hardly more, takes the likeliest. `top_p` draws among the fewest tokens that together are so
    likely (Holtzman et al. 2020). `num_tokens` are the tokens that there are, where the model's table is padded. The
    same seed gives the same tokens.
    """
    cache, generator = KeyValueCache(), torch.Generator().manual_seed(seed)
    following = torch.tensor([list(prompt)])
    for _ in range(count):
        cache.begin(following.shape[1])
        logits = model(following, cache)[0, -1, :num_tokens]
        token = _drawn(logits, temperature, top_p, generator)
        if token in ends:
            return
        yield token
        following = torch.tensor([[token]])


def _drawn(logits: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> int:
    if temperature < _COLDEST:
        return int(logits.argmax())
    chances, tokens = (logits / temperature).softmax(-1).sort(descending=True, stable=True)
    before = chances.cumsum(-1) - chances
    left_out = before >= top_p
    left_out[0] = False  # the likeliest stays, however small `top_p` is
    chances = chances.masked_fill(left_out, 0.0)
    return int(tokens[torch.multinomial(chances, 1, generator=generator)])
