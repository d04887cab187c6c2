"""RMSNorm of queries and keys: of each head by itself, or over all heads of a token together."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from holmes_hpc.architecture import Architecture
from holmes_hpc.model.share import TensorShare


class WidthNorm(nn.Module):
    """The weight of this rank's part of a norm over `whole` elements."""

    def __init__(self, whole: int, epsilon: float, share: TensorShare) -> None:
        super().__init__()
        self.whole, self.epsilon = whole, epsilon
        self.weight = nn.Parameter(torch.empty(share.size(whole)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of x [b, s, whole], where this rank has all of it."""
        return functional.rms_norm(x, (self.whole,), self.weight, self.epsilon)

    def by_squares(self, x: Tensor, squares: Tensor) -> Tensor:
        """Return the norm of x [b, s, part] by the sum of squares [b, s] of all parts."""
        scale = torch.rsqrt(squares / self.whole + self.epsilon)[..., None]
        return (x.float() * scale).to(x.dtype) * self.weight


def build_query_key_norm(architecture: Architecture, whole: int, share: TensorShare) -> nn.Module | None:
    """Return the norm of queries or of keys, which are `whole` elements over all heads and ranks; None for none."""
    epsilon = architecture.normalization_epsilon
    if architecture.query_key_norm == "head":
        return nn.RMSNorm(architecture.head_size, eps=epsilon)
    return WidthNorm(whole, epsilon, share) if architecture.query_key_norm == "all" else None


def norm_over_heads(query: Tensor, key: Tensor, query_norm: WidthNorm, key_norm: WidthNorm, share: TensorShare
                    ) -> tuple[Tensor, Tensor]:
    """Return queries [b, s, part] and keys [b, s, part] normed over all heads, also those of other tensor ranks.

    Both sums of squares take one exchange.
    """
    if share.degree == 1:
        return query_norm(query), key_norm(key)
    own = torch.stack([each.float().square().sum(dim=-1) for each in (query, key)])
    squares = share.total(own)
    return query_norm.by_squares(query, squares[0]), key_norm.by_squares(key, squares[1])
