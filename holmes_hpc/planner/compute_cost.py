"""Seconds of compute and bytes of memory of a stage, from the architecture and the GPU kind.

A first model: matrix products by FLOPs and an achieved fraction of the peak, elementwise work by bytes, and a floor
for launching kernels. Good enough to order strategies.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import Machine, Node

_ACHIEVED = {"cpu": 0.65, "v100": 0.42, "v100-16g": 0.42, "t4": 0.35, "p100": 0.5, "mi250x": 0.4}
"""Fraction of the 16-bit peak that matrix products of a transformer reach."""
_ACHIEVED_ELSE = 0.6
_ACHIEVED_FLOAT32 = 0.8
"""Plain float32 units are narrow, so that memory rarely holds them up."""
_ACHIEVED_MEMORY = 0.8
_LAUNCH_SECONDS = {"cpu": 0.3e-3}
_LAUNCH_SECONDS_ELSE = 0.3e-3
"""Least time of a layer's forward: Python and kernel launches."""
_BACKWARD_FORWARDS = 2.0
_ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_CONTEXT_GIB = {"cpu": 0.25}
_CONTEXT_GIB_ELSE = 1.5
"""Memory of the device context and the communication library."""
GIB = 2.0**30


@dataclass(frozen=True)
class ComputeCost:
    """Prices the compute and memory of stages on a machine."""

    machine: Machine
    architecture: Architecture
    precision: str
    optimizer: str
    recompute: str = "none"
    sequence_parallel: bool = False

    @property
    def element_bytes(self) -> int:
        """The bytes of one element of an activation."""
        return _ELEMENT_BYTES[self.precision]

    @property
    def state_bytes(self) -> tuple[int, int, int]:
        """Bytes for each parameter: of parameters (with a float32 copy at 16 bit), gradients, optimizer moments."""
        copies = 4 if self.precision == "float32" else 6
        return copies, 4, 8 if self.optimizer == "adamw" else 4

    def forward_seconds(self, node: Node, units: tuple[str, ...], samples: int, tensor: int = 1) -> float:
        """Return the forward time of `samples` samples through `units` on one GPU of a node."""
        return _forward_seconds(self, node, _summary(units), samples, tensor)

    def backward_seconds(self, node: Node, units: tuple[str, ...], samples: int, tensor: int = 1) -> float:
        """Return the backward time: twice the forward, and once more with full recomputation."""
        again = 1.0 if self.recompute == "full" else 0.0
        return (_BACKWARD_FORWARDS + again) * self.forward_seconds(node, units, samples, tensor)

    def optimizer_seconds(self, node: Node, parameters: float) -> float:
        """Return the time of one optimizer step: it reads and writes every state about once."""
        bandwidth = self.machine.gpu(node).memory_bandwidth_gb_per_second * 1e9 * _ACHIEVED_MEMORY
        return parameters * 3 * sum(self.state_bytes) / bandwidth

    def parameter_count(self, units: tuple[str, ...], tensor: int = 1) -> float:
        """Return the parameters that one of `tensor` ranks holds of the units."""
        layers, others = _summary(units)
        count = layers * _rank_parameters(self.architecture, "layers.0", tensor) if layers else 0.0
        return count + sum(_rank_parameters(self.architecture, unit, tensor) for unit in others)

    def activation_bytes(self, units: tuple[str, ...], samples: int, tensor: int = 1) -> float:
        """Return the bytes that a micro-batch keeps from its forward to its backward on one rank."""
        layers, others = _summary(units)
        kept = sum(size / (tensor if self._is_split(part) else 1) for unit in others for part, size in
                   self.architecture.activation_bytes_by_part(unit, samples, self.element_bytes).items())
        return kept + (layers * _layer_activations(self, samples, tensor) if layers else 0.0)

    def _is_split(self, part: str) -> bool:
        """Return whether tensor-parallel ranks share a part of what is kept, so that each keeps its share.

        Inputs of the matrix products are whole on every rank; what is kept of the norms is, but for sequence
        parallelism.
        """
        if part in ("norms", "norm"):
            return self.sequence_parallel
        return part in ("attention_core", "feed_forward", "logits", "log_probabilities")

    def static_gib(self, node: Node, parameters: float) -> float:
        """Return the memory that does not depend on micro-batches: states and the device context."""
        context = _CONTEXT_GIB.get(self.machine.gpu(node).name, _CONTEXT_GIB_ELSE)
        return context + parameters * sum(self.state_bytes) / GIB


def _summary(units: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """Return the number of layers among the units, and the other units."""
    others = tuple(unit for unit in units if not unit.startswith("layers."))
    return len(units) - len(others), others


@functools.lru_cache(maxsize=4096)
def _rank_parameters(architecture: Architecture, unit: str, tensor: int) -> float:
    return sum(info.count / (1 if info.split_dim is None else tensor)
               for info in architecture.unit_parameters(unit))


def _layer_activations(cost: ComputeCost, samples: int, tensor: int) -> float:
    parts = cost.architecture.activation_bytes_by_part("layers.0", samples, cost.element_bytes)
    if cost.recompute == "full":
        return cost.architecture.boundary_bytes(samples, cost.element_bytes) / (tensor if cost.sequence_parallel else 1)
    if cost.recompute == "selective":
        parts["attention_core"] -= _core_output_bytes(cost, samples)
    return sum(size / (tensor if cost._is_split(name) else 1) for name, size in parts.items())


def _core_output_bytes(cost: ComputeCost, samples: int) -> int:
    """Return what selective recomputation saves of the core: nothing of queries, keys and values, which it needs.

    The output stays too, as the input of the product behind it; only the float32 log-sums go.
    """
    return samples * cost.architecture.sequence_length * cost.architecture.num_heads * 4


def _forward_seconds(cost: ComputeCost, node: Node, summary: tuple[int, tuple[str, ...]], samples: int,
                     tensor: int) -> float:
    layers, others = summary
    gpu = cost.machine.gpu(node)
    key = (cost.architecture, gpu.name, cost.machine.tflops(node, cost.precision),
           gpu.memory_bandwidth_gb_per_second, cost.precision, samples, tensor)
    seconds = layers * _unit_seconds("layers.0", *key) if layers else 0.0
    return seconds + sum(_unit_seconds(unit, *key) for unit in others if unit != "embedding.token")


@functools.lru_cache(maxsize=4096)
def _unit_seconds(unit: str, architecture: Architecture, gpu: str, peak_tflops: float, memory_gb_per_second: float,
                  precision: str, samples: int, tensor: int) -> float:
    """Return one unit's forward time. Looking up tokens is not counted, so the tied table costs nothing twice."""
    tokens = samples * architecture.sequence_length
    narrow = precision == "float32" and gpu != "cpu"
    achieved = _ACHIEVED_FLOAT32 if narrow else _ACHIEVED.get(gpu, _ACHIEVED_ELSE)
    flops = architecture.forward_flops(unit, tokens) / tensor
    moved = architecture.forward_bytes_by_part(unit, tokens, _ELEMENT_BYTES[precision])
    elementwise = (moved.get("elementwise", 0) + moved.get("loss", 0)) / (memory_gb_per_second * 1e9
                                                                          * _ACHIEVED_MEMORY)
    busy = flops / (peak_tflops * 1e12 * achieved) + elementwise
    launch = _LAUNCH_SECONDS.get(gpu, _LAUNCH_SECONDS_ELSE) if unit.startswith("layers.") else 0.0
    # A GPU queues launches while it computes; a CPU does one after the other.
    return busy + launch if gpu == "cpu" else max(busy, launch)
