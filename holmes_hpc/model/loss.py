"""The training loss."""

from torch import Tensor
from torch.nn import functional


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy per token of a micro-batch, in nats, a float32 scalar.

    `logits` [b, s, V], `targets` [b, s] int64.
    """
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
