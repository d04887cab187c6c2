"""Initial weights that are the same for every layout.

Each parameter is drawn whole, from its own generator, seeded by the run's seed and the parameter's name,
always on the CPU and in float32. So a stage, a replica, and a tensor-parallel slice hold bitwise the weights
that a single process would.

That holds among CPUs with AVX2 or AVX-512. Without them torch's normal numbers differ in the last bit, so
replicas on unlike CPUs start apart by rounding unless their weights are broadcast.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from holmes_hpc.architecture import Architecture, ParameterInfo
from holmes_hpc.architecture.kinds import AROUND_ZERO
from holmes_hpc.model.pretrained import PretrainedWeights
from holmes_hpc.model.share import TensorShare

_RESIDUAL_OUTPUTS = (".attention.output.weight", ".feed_forward.down.weight")
_QUERY_KEY_NORMS = (".query_norm.weight", ".key_norm.weight")


def parameter_seed(seed: int, name: str) -> int:
    """Return a 63-bit seed for one parameter, the same on every machine and in every Python."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def initial_value(architecture: Architecture, info: ParameterInfo, seed: int) -> Tensor:
    """Return the initial global tensor of a parameter, float32 on the CPU.

    Matrices are normal with the architecture's `initialization_std`; those that write to the residual stream
    are scaled by 1/sqrt(2 * layers), since that many of them add up (Radford et al. 2019). Norms multiply by one,
    biases are zero.
    """
    if len(info.shape) == 1:
        around_zero = architecture.normalization in AROUND_ZERO and not info.name.endswith(_QUERY_KEY_NORMS)
        return torch.zeros(info.shape) if info.name.endswith(".bias") or around_zero else torch.ones(info.shape)
    std = architecture.initialization_std
    if info.name.endswith(_RESIDUAL_OUTPUTS):
        std /= math.sqrt(2 * architecture.num_layers)
    generator = torch.Generator().manual_seed(parameter_seed(seed, info.name))
    return torch.empty(info.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)


@torch.no_grad()
def initialize(module: nn.Module, architecture: Architecture, parameters: Iterable[ParameterInfo],
               seed: int, share: TensorShare, weights: PretrainedWeights | None = None) -> None:
    """Write the share's part of the initial values of `parameters` into the module's parameters of the same names.

    With `weights` they are those of a published model. Raises KeyError when the module lacks one, ConfigurationError
    where weights cannot be used.
    """
    own = dict(module.named_parameters())
    for info in parameters:
        if weights is not None:
            own[info.name].copy_(weights.part(info, share))
            continue
        own[info.name].copy_(share.part(initial_value(architecture, info, seed), info.split_dim))
