"""Builds the activation and the norms that an architecture names."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from holmes_hpc.architecture import Architecture
from holmes_hpc.architecture.kinds import added_activation, added_normalization
from holmes_hpc.errors import ConfigurationError

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": functional.gelu, "swiglu": functional.silu}


def activation_function(architecture: Architecture) -> Callable[[Tensor], Tensor]:
    """Return the function of the feed-forward layer; of a gated one, that of the gate. Raises ConfigurationError."""
    name = architecture.activation
    return _FUNCTIONS[name] if name in _FUNCTIONS else added_activation(name).function


def build_norm(architecture: Architecture) -> nn.Module:
    """Return a norm over the hidden dim. Raises ConfigurationError where a plug-in built something else."""
    hidden, epsilon = architecture.hidden_size, architecture.normalization_epsilon
    if architecture.normalization == "rmsnorm":
        return nn.RMSNorm(hidden, eps=epsilon)
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
