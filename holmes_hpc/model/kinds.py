"""Builds the activation and the norms that an architecture names."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from holmes_hpc.architecture import Architecture
from holmes_hpc.architecture.kinds import added_activation, added_normalization
from holmes_hpc.errors import ConfigurationError


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu, "gelu_tanh": _gelu_tanh, "swiglu": functional.silu, "geglu": functional.gelu,
    "geglu_tanh": _gelu_tanh}


class OffsetNorm(nn.Module):
    """RMSNorm that multiplies by 1 + weight, as Gemma's."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.size, self.epsilon = size, epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Return x over the root of its mean square, times 1 + weight."""
        return functional.rms_norm(x, (self.size,), 1.0 + self.weight, self.epsilon)


def activation_function(architecture: Architecture) -> Callable[[Tensor], Tensor]:
    """Return the function of the feed-forward layer; of a gated one, that of the gate. Raises ConfigurationError."""
    name = architecture.activation
    return _FUNCTIONS[name] if name in _FUNCTIONS else added_activation(name).function


def build_norm(architecture: Architecture) -> nn.Module:
    """Return a norm over the hidden dim. Raises ConfigurationError where a plug-in built something else."""
    hidden, epsilon = architecture.hidden_size, architecture.normalization_epsilon
    if architecture.normalization == "rmsnorm":
        return nn.RMSNorm(hidden, eps=epsilon)
    if architecture.normalization == "rmsnorm_1p":
        return OffsetNorm(hidden, epsilon)
    if architecture.normalization == "layernorm":
        return nn.LayerNorm(hidden, eps=epsilon, bias=architecture.bias)
    kind = added_normalization(architecture.normalization)
    bias = kind.bias and architecture.bias
    module = kind.build(hidden, epsilon, bias)
    shapes = {name: tuple(each.shape) for name, each in module.named_parameters()}
    expected = {"weight": (hidden,), **({"bias": (hidden,)} if bias else {})}
    if shapes != expected:
        raise ConfigurationError(f"model.normalization={architecture.normalization}: its module has the parameters "
                                 f"{shapes or 'none'}, and must have {expected}. Mend the plug-in.")
    return cast(nn.Module, module)
