"""Seconds of compute and bytes of memory of a stage, on the nodes of a machine; `cost/` has the model behind it."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import Machine, Node
from holmes_hpc.cluster.timed_units import EMBEDDING, HEAD, LAYER
from holmes_hpc.planner.cost.collectives import Directions, Ring, unit_directions
from holmes_hpc.planner.cost.ends import embedding_seconds, head_seconds
from holmes_hpc.planner.cost.layer import layer_seconds
from holmes_hpc.planner.cost.memory_parts import (
    activation_parts,
    fixed_bytes,
    optimizer_seconds,
    rank_parameters,
    state_bytes,
)
from holmes_hpc.planner.cost.micro_batch import ELEMENT_BYTES, MicroBatch, Seconds
from holmes_hpc.planner.cost.profiled import Modelled, timed_optimizer_seconds, timed_seconds
from holmes_hpc.planner.software import ENGINE, Software

GIB = 2.0**30
_Stage = tuple[Hashable, ...]
"""What tells stages apart: their units, the samples of a micro-batch, tensor ranks."""


@dataclass(frozen=True)
class ComputeCost:
    """Prices the compute and memory of stages on a machine; what was priced is kept.

    A search asks for the same few stages many thousand times.
    """

    machine: Machine
    architecture: Architecture
    precision: str
    optimizer: str
    recompute: str = "none"
    sequence_parallel: bool = False
    software: Software = ENGINE
    priced_directions: dict[_Stage, Directions] = field(default_factory=dict, init=False, compare=False, repr=False)
    counted_parameters: dict[_Stage, float] = field(default_factory=dict, init=False, compare=False, repr=False)
    counted_activations: dict[_Stage, float] = field(default_factory=dict, init=False, compare=False, repr=False)
    counted_workspaces: dict[_Stage, float] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def element_bytes(self) -> int:
        """The bytes of one element of an activation."""
        return ELEMENT_BYTES[self.precision]

    @property
    def state_bytes(self) -> tuple[int, int, int]:
        """Bytes for each parameter: of parameters (with a float32 copy at 16 bit), gradients, optimizer moments."""
        return state_bytes(self.precision, self.optimizer, self.software)

    def micro_batch(self, node: Node, samples: int, tensor: int = 1) -> MicroBatch:
        """Return what one GPU of a node computes for a micro-batch of `samples` samples.

        Raises ConfigurationError where the GPU lacks the precision.
        """
        self.machine.tflops(node, self.precision)
        return MicroBatch(self.architecture, self.machine.gpu(node), samples, tensor, self.precision, self.recompute,
                          self.sequence_parallel, self.software)

    def directions(self, node: Node, units: tuple[str, ...], samples: int, tensor: int = 1,
                   ring: Ring | None = None) -> Directions:
        """Return forward and both parts of the backward of `units` on one GPU, with the sums over `ring`, if given."""
        key = node.gpu, units, samples, tensor, ring
        if key not in self.priced_directions:
            layers, others = _summary(units)
            batch = self.micro_batch(node, samples, tensor)
            self.priced_directions[key] = _directions(batch, layers, others, _looks_up(units), ring)
        return self.priced_directions[key]

    def optimizer_seconds(self, node: Node, parameters: float) -> float:
        """Return the time of one optimizer step over the parameters that a rank updates."""
        timed = timed_optimizer_seconds(self.micro_batch(node, 1))
        if timed is not None:
            return parameters * timed
        return optimizer_seconds(self.machine.gpu(node), self.precision, self.optimizer, parameters, self.software)

    def parameter_count(self, units: tuple[str, ...], tensor: int = 1) -> float:
        """Return the parameters that one of `tensor` ranks holds of the units."""
        key = units, tensor
        if key not in self.counted_parameters:
            layers, others = _summary(units)
            count = layers * rank_parameters(self.architecture, "layers.0", tensor) if layers else 0.0
            count += sum(rank_parameters(self.architecture, unit, tensor) for unit in others)
            self.counted_parameters[key] = count
        return self.counted_parameters[key]

    def activation_bytes(self, units: tuple[str, ...], samples: int, tensor: int = 1) -> float:
        """Return the bytes that a micro-batch keeps from its forward to its backward on one rank."""
        stage = units, samples, tensor
        if stage not in self.counted_activations:
            layers, others = _summary(units)
            key = (self.architecture, samples, tensor, self.element_bytes, self.recompute, self.sequence_parallel,
                   self.software)
            kept = sum(_kept_bytes(unit, *key) for unit in others)
            kept += layers * _kept_bytes("layers.0", *key) if layers else 0.0
            self.counted_activations[stage] = kept
        return self.counted_activations[stage]

    def workspace_bytes(self, units: tuple[str, ...], samples: int, tensor: int = 1) -> float:
        """Return the largest passing tensors: the gradient of the logits, or a layer that is computed again."""
        stage = units, samples, tensor
        if stage not in self.counted_workspaces:
            layers, others = _summary(units)
            key = (self.architecture, samples, tensor, self.element_bytes)
            again = _kept_bytes("layers.0", *key, "none", self.sequence_parallel, self.software) if layers else 0.0
            logits = 4.0 * samples * self.architecture.sequence_length * self.architecture.vocab_size / tensor
            self.counted_workspaces[stage] = max(again if self.recompute == "full" else 0.0,
                                                 logits if "head" in others else 0.0)
        return self.counted_workspaces[stage]

    def static_gib(self, node: Node, parameters: float) -> float:
        """Return the memory that does not depend on micro-batches: states and the device context."""
        return (fixed_bytes(self.machine.gpu(node)) + parameters * sum(self.state_bytes)) / GIB


@functools.lru_cache(maxsize=65536)
def _kept_bytes(unit: str, architecture: Architecture, samples: int, tensor: int, element_bytes: int, recompute: str,
                sequence_parallel: bool, software: Software) -> float:
    return sum(activation_parts(architecture, unit, samples, tensor=tensor, element_bytes=element_bytes,
                                recompute=recompute, sequence_parallel=sequence_parallel, software=software).values())


def _summary(units: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """Return the number of layers among the units, and the other units."""
    others = tuple(unit for unit in units if not unit.startswith("layers."))
    return len(units) - len(others), others


def _looks_up(units: tuple[str, ...]) -> bool:
    """Whether tokens are looked up here: a last stage holds a tied table too, right before its head."""
    return units[:1] != () and units[0].startswith("embedding") and units[:2] != ("embedding.token", "head")


@functools.lru_cache(maxsize=65536)
def _directions(batch: MicroBatch, layers: int, others: tuple[str, ...], looks_up: bool,
                ring: Ring | None) -> Directions:
    found = [(float(layers), _unit_seconds(batch, LAYER))] if layers else []
    if "head" in others:
        found.append((1.0, _unit_seconds(batch, HEAD)))
    if looks_up:
        found.append((1.0, _unit_seconds(batch, EMBEDDING)))
    each = [(count, unit_directions(batch, unit, ring)) for count, unit in found]
    return Directions(sum(count * times.forward for count, times in each),
                      sum(count * times.backward_input for count, times in each),
                      sum(count * times.backward_weight for count, times in each))


_MODELLED: Mapping[str, Modelled] = MappingProxyType(
    {LAYER: layer_seconds, HEAD: head_seconds, EMBEDDING: embedding_seconds})


def _unit_seconds(batch: MicroBatch, unit: str) -> Seconds:
    """Return a unit's seconds as they were timed on the GPU; else as modelled, with what finished runs say of it."""
    timed = timed_seconds(batch, unit, _MODELLED[unit])
    return timed if timed is not None else _MODELLED[unit](batch).times(batch.gpu.slowdown(batch.precision))
