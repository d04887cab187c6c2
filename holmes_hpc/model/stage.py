"""One pipeline stage of a decoder: a contiguous range of layers, with the embedding or head at the ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from holmes_hpc.architecture import Architecture
from holmes_hpc.model.attention import Context, attend
from holmes_hpc.model.initialization import initialize
from holmes_hpc.model.kinds import build_norm
from holmes_hpc.model.layers import DecoderLayer
from holmes_hpc.model.pretrained import PretrainedWeights
from holmes_hpc.model.rotary import rotation_table
from holmes_hpc.model.share import SEQUENCE_DIM, WHOLE, TensorShare


@dataclass(frozen=True)
class StageOptions:
    """How a stage computes; no option changes its results beyond rounding.

    `recompute`: `none`, `selective` or `full`. With sequence parallelism hidden states come and go as shards of the
    sequence, but for a neighbour of another tensor degree, which sends or wants them whole.
    """

    share: TensorShare = WHOLE
    recompute: str = "none"
    receives_shards: bool = True
    sends_shards: bool = True


ALONE = StageOptions()


class Embedding(nn.Module):
    """The token table and, where positions are learned and this is the first stage, theirs.

    With tensor parallelism every rank holds the rows of its part of the vocabulary, from `first_token` on; parts differ
    by a row where the vocabulary does not divide.
    """

    def __init__(self, architecture: Architecture, share: TensorShare, *, positions: bool) -> None:
        super().__init__()
        self.share = share
        self.first_token, end = share.bounds(architecture.vocab_size)
        self.token = _table(end - self.first_token, architecture.hidden_size)
        self.scale = architecture.embedding_scale
        self.position = _table(architecture.max_positions, architecture.hidden_size) if positions else None

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the hidden states [b, s, h] of tokens [b, s]; with sequence parallelism those of a shard.

        `positions` [b, s] are the tokens' own, where they do not count from the sample's first.
        """
        hidden = self._look_up(tokens)
        if self.scale != 1.0:
            hidden = hidden * self.scale
        if self.position is not None:
            if positions is None:
                positions = torch.arange(tokens.shape[1], device=tokens.device)
            if self.share.shards > 1:
                positions = self.share.shard(positions, positions.ndim - 1)
            hidden = hidden + self.position(positions)
        return hidden

    def _look_up(self, tokens: Tensor) -> Tensor:
        if self.share.degree == 1:
            return cast(Tensor, self.token(tokens))
        own = tokens - self.first_token
        elsewhere = (own < 0) | (own >= self.token.num_embeddings)
        hidden = self.token(own.masked_fill(elsewhere, 0)).masked_fill(elsewhere[..., None], 0.0)
        return self.share.leave(hidden)


def _table(rows: int, width: int) -> nn.Embedding:
    """Return a table without initial values: drawing them on the device `meta` would import torch's compiler."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


class Head(nn.Module):
    """The last norm and the product with the vocabulary: its own table, or a tied one that is passed in."""

    def __init__(self, architecture: Architecture, share: TensorShare) -> None:
        super().__init__()
        self.share = share
        self.norm = build_norm(architecture)
        begin, end = share.bounds(architecture.vocab_size)
        self.output = (None if architecture.tied_embeddings else
                       nn.Linear(architecture.hidden_size, end - begin, bias=False))

    def forward(self, hidden: Tensor, tied_weight: Tensor | None) -> Tensor:
        """Return the logits [b, s, V] in float32, of this rank's part of the vocabulary."""
        weight = tied_weight if self.output is None else self.output.weight
        if weight is None:
            raise ValueError("a tied head needs the token table")
        return functional.linear(self.share.enter(self.norm(hidden)), weight).float()


class StageModule(nn.Module):
    """The part of a decoder that one pipeline stage computes.

    `named_parameters()` gives exactly the names of `Architecture.stage_parameters`. The last stage of a tied
    model holds `embedding.token.weight` too: the same tensor when it is also the first, else its own copy,
    whose gradient has to be summed with the first stage's. With tensor parallelism the parameters are `share`'s
    parts along their split dims.
    """

    rotation: Tensor | None

    def __init__(self, architecture: Architecture, first_layer: int, num_layers: int, *, first: bool,
                 last: bool, options: StageOptions) -> None:
        super().__init__()
        share = options.share
        self.architecture, self.first, self.last, self.options = architecture, first, last, options
        self.embedding = (
            Embedding(architecture, share, positions=first and architecture.position_embedding == "learned")
            if first or (last and architecture.tied_embeddings) else None)
        self.layers = nn.ModuleDict({str(layer): DecoderLayer(architecture, share, options.recompute)
                                     for layer in range(first_layer, first_layer + num_layers)})
        self.head = Head(architecture, share) if last else None
        self.register_buffer("rotation", None, persistent=False)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """Run the stage.

        `x`: token ids [b, s] int64 on the first stage, else hidden states [b, s, h]. Returns logits [b, s, V]
        in float32 on the last stage, else hidden states. s may be shorter than the sequence length. With tensor
        parallelism V is this rank's part; hidden states that come and go are whole, or shards [b, s / degree, h]
        where the options say so. `context` says positions and attention where a sample is not one text from its first
        token on.
        """
        share = self.options.share
        if self.first and self.embedding is not None:
            x = self.embedding(x, None if context is None else context.positions)
        elif not self.options.receives_shards:
            x = share.cut(x)
        rotation = self._turns(x.shape[SEQUENCE_DIM] * share.shards, context)
        for name, layer in self.layers.items():
            x = layer(x, rotation, attend if context is None else context.core(name))
        if self.head is None:
            return x if self.options.sends_shards else share.join(x)
        tied = self.embedding.token.weight if self.embedding is not None else None
        return cast(Tensor, self.head(x, tied))

    def _turns(self, length: int, context: Context | None) -> Tensor | None:
        """Return the rows of the rotation table: [2, s, 1, d], or [2, b, s, 1, d] where samples have their own."""
        if self.rotation is None:
            return None
        return self.rotation[:, :length] if context is None else self.rotation[:, context.positions]


def build_stage(architecture: Architecture, first_layer: int, num_layers: int, *, first: bool, last: bool,
                seed: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32,
                options: StageOptions = ALONE, weights: PretrainedWeights | None = None) -> StageModule:
    """Return a stage with its initial weights, which depend on the seed and on names but on no layout.

    With `weights`, which are open, they are those of a published model.
    On the device `meta` nothing is allocated. Raises ValueError for layers outside the model.
    """
    parameters = architecture.stage_parameters(first_layer, num_layers, first=first, last=last)
    device = torch.device(device)
    with torch.device("meta"):
        stage = StageModule(architecture, first_layer, num_layers, first=first, last=last, options=options)
    stage.to(dtype)
    if architecture.position_embedding == "rotary":
        stage.rotation = rotation_table(architecture).to(device)
    if device.type == "meta":
        return stage
    for module in stage.modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            # Not empty_like: of a meta tensor that imports torch's symbolic shapes, a second of every rank's core.
            memory = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            module.register_parameter(leaf, nn.Parameter(memory))
    initialize(stage, architecture, parameters, seed, options.share, weights)
    return stage
