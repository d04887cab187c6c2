"""The training loss."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from holmes_hpc.model.share import WHOLE, TensorShare
from holmes_hpc.values.targets import NOT_COUNTED


def token_loss(logits: Tensor, targets: Tensor, vocab_size: int, share: TensorShare = WHOLE,
               counted: int | None = None) -> Tensor:
    """Return the mean cross entropy of the targets that count, in nats, a float32 scalar; zero where none does.

    `logits` [b, s, V], `targets` [b, s] int64, or NOT_COUNTED; `vocab_size` V; `counted` is how many count, None where
    all do. With tensor parallelism `logits` are the columns of this rank's part of the vocabulary; every rank returns
    the same loss, and no rank ever sees all logits.
    """
    rows, wanted = logits.float().flatten(0, 1), targets.flatten()
    every = counted is None or counted == wanted.numel()
    number = max(counted or 0, 1)
    if share.degree == 1:
        if every:
            return functional.cross_entropy(rows, wanted)
        return functional.cross_entropy(rows, wanted, ignore_index=NOT_COUNTED, reduction="sum") / number
    losses = cast(Tensor, _SplitCrossEntropy.apply(rows, wanted, share, vocab_size))  # type: ignore[no-untyped-call]
    if every:
        return losses.mean()
    return losses.masked_fill(wanted == NOT_COUNTED, 0.0).sum() / number


class _SplitCrossEntropy(torch.autograd.Function):
    """Cross entropy [n] of logits [n, part of V] whose columns lie on several ranks (Shoeybi et al. 2019).

    Three numbers a token are exchanged: the largest logit, the sum of exponentials and the target's logit.
    """

    @staticmethod
    def forward(context: Any, logits: Tensor, targets: Tensor, share: TensorShare, vocab_size: int) -> Tensor:
        exchange, (begin, end) = share.required_exchange(), share.bounds(vocab_size)
        largest = exchange.maximum(logits.detach().amax(dim=1))
        shifted = logits - largest[:, None]
        elsewhere = (targets < begin) | (targets >= end)
        own = (targets - begin).masked_fill(elsewhere, 0)
        at_target = shifted.gather(1, own[:, None])[:, 0].masked_fill(elsewhere, 0.0)
        exponentials = shifted.exp_()
        total, at_target = exchange.sum(torch.stack((exponentials.sum(dim=1), at_target)))
        context.save_for_backward(exponentials.div_(total[:, None]), own, elsewhere)
        return total.log() - at_target

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        probabilities, own, elsewhere = context.saved_tensors
        result = probabilities * gradients[0][:, None]
        result.scatter_add_(1, own[:, None], -(gradients[0].masked_fill(elsewhere, 0.0))[:, None])
        return result, None, None, None
