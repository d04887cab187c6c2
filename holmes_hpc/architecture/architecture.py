"""The architecture of a decoder: its settings resolved, its units, and what a pipeline stage holds.

A unit is the smallest set of parameters that a pipeline cut cannot divide: `embedding.token` (the table that
a tied head shares), `embedding` (learned positions; absent when rotary), `layers.N`, and `head`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any

from holmes_hpc.architecture import activations, flops
from holmes_hpc.architecture.dimensions import Dimensions
from holmes_hpc.architecture.parameters import ParameterInfo, unit_parameters
from holmes_hpc.errors import ConfigurationError


@dataclass(frozen=True)
class Architecture(Dimensions):
    """A decoder-only transformer: its dimensions, and what follows from them."""

    @classmethod
    def from_config(cls, model_config: Any) -> Architecture:
        """Return the architecture that `config.model` describes.

        Raises ConfigurationError when heads do not divide the hidden size and have no size of their own, key-value
        heads do not divide the heads, or rotary positions would turn an odd number of elements.
        """
        _check_heads(model_config)
        heads, hidden = int(model_config.num_heads), int(model_config.hidden_size)
        return cls(
            name=str(model_config.name),
            num_layers=int(model_config.num_layers),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=int(heads if model_config.num_kv_heads is None else model_config.num_kv_heads),
            ffn_hidden_size=int(4 * hidden if model_config.ffn_hidden_size is None
                                else model_config.ffn_hidden_size),
            vocab_size=int(model_config.vocab_size),
            sequence_length=int(model_config.sequence_length),
            tied_embeddings=bool(model_config.tied_embeddings),
            normalization=str(model_config.normalization),
            activation=str(model_config.activation),
            position_embedding=str(model_config.position_embedding),
            rotary_base=float(model_config.rotary_base),
            bias=bool(model_config.bias),
            normalization_epsilon=float(model_config.normalization_epsilon),
            initialization_std=float(model_config.initialization_std),
            **_set_since(model_config),
        )

    @property
    def units(self) -> tuple[str, ...]:
        """Return the names of all units, in the order in which data flows."""
        return self.stage_units(0, self.num_layers, first=True, last=True)

    def unit_parameters(self, unit: str) -> tuple[ParameterInfo, ...]:
        """Return the parameters of one unit. Raises KeyError for a unit that this model has not."""
        return unit_parameters(self, unit)

    def parameters(self) -> tuple[ParameterInfo, ...]:
        """Return every parameter of the model once; a tied table counts as the embedding's."""
        return tuple(info for unit in self.units for info in self.unit_parameters(unit))

    def stage_units(self, first_layer: int, num_layers: int, *, first: bool, last: bool) -> tuple[str, ...]:
        """Return the units that a stage holds.

        A last stage of a tied model holds its own copy of `embedding.token`, unless it is also the first.
        Raises ValueError for layers outside the model.
        """
        if first_layer < 0 or num_layers < 0 or first_layer + num_layers > self.num_layers:
            raise ValueError(f"layers {first_layer} to {first_layer + num_layers - 1} do not exist: "
                             f"{self.name} has layers 0 to {self.num_layers - 1}")
        units: list[str] = []
        if first:
            units += ["embedding.token"] + (["embedding"] if self.position_embedding == "learned" else [])
        units += [f"layers.{layer}" for layer in range(first_layer, first_layer + num_layers)]
        if last:
            units += ["embedding.token"] if self.tied_embeddings and not first else []
            units += ["head"]
        return tuple(units)

    def stage_parameters(self, first_layer: int, num_layers: int, *, first: bool,
                         last: bool) -> tuple[ParameterInfo, ...]:
        """Return the parameters that a stage holds, copies of tied tables included."""
        units = self.stage_units(first_layer, num_layers, first=first, last=last)
        return tuple(info for unit in units for info in self.unit_parameters(unit))

    def unit_parameter_count(self, unit: str) -> int:
        """Return the number of elements of a unit's parameters."""
        return sum(info.count for info in self.unit_parameters(unit))

    def parameter_count(self) -> int:
        """Return the number of elements of all parameters, a tied table once."""
        layer = self.unit_parameter_count("layers.0")
        return self.num_layers * layer + sum(self.unit_parameter_count(unit) for unit in self.units
                                             if not unit.startswith("layers."))

    def forward_flops_by_part(self, unit: str, tokens: int) -> dict[str, int]:
        """Return the floating-point operations of a unit's forward, by part; see `flops.forward_flops`."""
        return flops.forward_flops(self, unit, tokens)

    def forward_flops(self, unit: str, tokens: int) -> int:
        """Return the floating-point operations of a unit's forward over `tokens` tokens of full samples."""
        return sum(self.forward_flops_by_part(unit, tokens).values())

    def model_flops_per_sample(self) -> int:
        """Return the model FLOPs of one sample: forward, and a backward of twice that; no recomputation."""
        layer = self.forward_flops("layers.0", self.sequence_length)
        return 3 * (self.num_layers * layer + self.forward_flops("head", self.sequence_length))

    def activation_bytes_by_part(self, unit: str, samples: int, element_bytes: int = 4) -> dict[str, int]:
        """Return the bytes that a unit keeps for its backward, by part; see `activations.kept_bytes`."""
        return activations.kept_bytes(self, unit, samples, element_bytes)

    def activation_bytes(self, unit: str, samples: int, element_bytes: int = 4) -> int:
        """Return the bytes that a unit keeps for its backward over `samples` samples."""
        return sum(self.activation_bytes_by_part(unit, samples, element_bytes).values())

    def boundary_bytes(self, samples: int, element_bytes: int = 4) -> int:
        """Return the bytes that one stage sends to the next: hidden states [samples, sequence, hidden]."""
        return samples * self.sequence_length * self.hidden_size * element_bytes


def _set_since(model_config: Any) -> dict[str, Any]:
    """Return the settings that have defaults: the configuration of an older run lacks them."""
    found: dict[str, Any] = {}
    for each in fields(Dimensions):
        value = None if each.default is MISSING else model_config.get(each.name)
        if value is not None:
            kind: Any = str if each.default is None else type(each.default)
            found[each.name] = kind(value)
    return found


def _check_heads(model_config: Any) -> None:
    hidden, heads, kv_heads = model_config.hidden_size, model_config.num_heads, model_config.num_kv_heads
    if model_config.get("head_size") is None and hidden % heads:
        raise ConfigurationError(
            f"model.num_heads={heads} does not divide model.hidden_size={hidden}: every head has the same "
            f"width. Set model.num_heads to one of {_divisors(hidden)}, change model.hidden_size, or set "
            "model.head_size.")
    if kv_heads is not None and heads % kv_heads:
        raise ConfigurationError(
            f"model.num_kv_heads={kv_heads} does not divide model.num_heads={heads}: every key-value head "
            f"serves as many query heads. Set model.num_kv_heads to one of {_divisors(heads)}.")
    _check_rotary(model_config)
    order = model_config.get("norm_order", "before")
    if order != "before" and model_config.parallel_residual:
        raise ConfigurationError(
            f"model.parallel_residual=true and model.norm_order={order} exclude each other: no known "
            "model has both. Set model.norm_order=before, or model.parallel_residual=false.")
    rows = model_config.get("max_positions")
    if model_config.position_embedding == "learned" and rows is not None and rows < model_config.sequence_length:
        raise ConfigurationError(
            f"model.sequence_length={model_config.sequence_length} is above model.max_positions={rows}, the rows of "
            f"the table of learned positions. Set model.sequence_length to {rows} or less.")


def _check_rotary(model_config: Any) -> None:
    hidden, heads = model_config.hidden_size, model_config.num_heads
    if model_config.position_embedding != "rotary":
        return
    own, fraction = model_config.get("head_size"), model_config.get("rotary_fraction", 1.0)
    size = own or hidden // heads
    turned = int(size * fraction)
    if (fraction != 1.0 or own is not None) and (turned < 2 or turned % 2):
        raise ConfigurationError(
            f"model.rotary_fraction={fraction:g} of a head of {size} elements (model.head_size) turns {turned}, and "
            "rotary positions turn pairs. Set model.rotary_fraction or model.head_size so that the product is even, "
            "or model.position_embedding=learned.")
    if model_config.get("rotary_scaling") == "llama3":
        low, high = model_config.rotary_low_frequency_factor, model_config.rotary_high_frequency_factor
        if low >= high:
            raise ConfigurationError(
                f"model.rotary_low_frequency_factor={low:g} is not below model.rotary_high_frequency_factor={high:g}; "
                "Llama 3 has 1 and 4.")
    if own is None and hidden // heads % 2:
        even = _divisors(hidden, lambda divisor: hidden // divisor % 2 == 0)
        raise ConfigurationError(
            f"model.position_embedding=rotary turns pairs of elements, and a head of "
            f"model.hidden_size={hidden} / model.num_heads={heads} has {hidden // heads}, an odd number. "
            + (f"Set model.num_heads to one of {even}" if even else "Make model.hidden_size even")
            + ", or model.position_embedding=learned.")


def _divisors(number: int, suits: Callable[[int], bool] = lambda divisor: True) -> str:
    """Return the divisors of a number that suit, as a list to read."""
    divisors = [divisor for divisor in range(1, number + 1) if number % divisor == 0]
    return ", ".join(str(divisor) for divisor in divisors if suits(divisor))
