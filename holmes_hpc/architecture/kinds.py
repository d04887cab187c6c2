"""Activations and normalisations: what a model's settings name, without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holmes_hpc import registry

_GATED = {"gelu": False, "gelu_tanh": False, "swiglu": True, "geglu": True, "geglu_tanh": True}
_BIASED = {"layernorm": True, "rmsnorm": False, "rmsnorm_1p": False}
AROUND_ZERO = ("rmsnorm_1p",)
"""Normalisations that multiply by 1 + weight, so that their initial weights are zero."""


@dataclass(frozen=True)
class Activation:
    """An added activation: `function` of one tensor; `gated`: it is applied to a third matrix's product."""

    function: Callable[[Any], Any]
    gated: bool


@dataclass(frozen=True)
class Normalization:
    """An added normalisation: `build(hidden_size, epsilon, bias)` makes its module; `bias`: it can have one."""

    build: Callable[[int, float, bool], Any]
    bias: bool


def is_gated(activation: str) -> bool:
    """Return whether a feed-forward layer with this activation has a third matrix. Raises ConfigurationError."""
    return _GATED[activation] if activation in _GATED else added_activation(activation).gated


def has_bias(normalization: str) -> bool:
    """Return whether a normalisation has a bias where the model has biases. Raises ConfigurationError."""
    return _BIASED[normalization] if normalization in _BIASED else added_normalization(normalization).bias


def added_activation(name: str) -> Activation:
    """Return the activation that a plug-in added under this name. Raises ConfigurationError where none did."""
    if name not in registry.ACTIVATIONS:
        raise registry.unknown(registry.ACTIVATIONS, name, tuple(_GATED))
    found: Activation = registry.ACTIVATIONS[name]
    return found


def added_normalization(name: str) -> Normalization:
    """Return the normalisation that a plug-in added under this name. Raises ConfigurationError where none did."""
    if name not in registry.NORMALIZATIONS:
        raise registry.unknown(registry.NORMALIZATIONS, name, tuple(_BIASED))
    found: Normalization = registry.NORMALIZATIONS[name]
    return found
