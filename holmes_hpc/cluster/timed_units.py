"""One unit of a model as it was timed on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

LAYER, HEAD, EMBEDDING, OPTIMIZER = "layer", "head", "embedding", "optimizer"
UNITS = (LAYER, HEAD, EMBEDDING, OPTIMIZER)


@dataclass(frozen=True)
class ProfiledUnit:
    """One unit of a model, timed alone on one GPU, as one of `tensor` ranks holds it, for a micro-batch of `samples`.

    `model` is what `layer_words` says of it. Neither collectives nor recomputation are in the seconds. Of the
    optimizer `forward_seconds` are those of a step for each parameter.
    """

    gpu: str
    precision: str
    model: str
    unit: str
    tensor: int
    samples: int
    forward_seconds: float
    backward_seconds: float
