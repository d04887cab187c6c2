"""What is priced: one micro-batch of a model on one GPU of a tensor-parallel group."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster.gpus import Gpu
from holmes_hpc.planner.cost.gpu_constants import constants
from holmes_hpc.planner.cost.matrix import Device
from holmes_hpc.planner.software import ENGINE, Software

ELEMENT_BYTES = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch of `samples` samples of the architecture's sequence length on one of `tensor` GPUs.

    `recompute` is `none`, `selective` (the attention core again) or `full` (the whole layer again).
    """

    architecture: Architecture
    gpu: Gpu
    samples: int
    tensor: int = 1
    precision: str = "bfloat16"
    recompute: str = "none"
    sequence_parallel: bool = False
    software: Software = ENGINE

    @property
    def tokens(self) -> int:
        """The tokens of the micro-batch."""
        return self.samples * self.architecture.sequence_length

    @property
    def element_bytes(self) -> int:
        """The bytes of one element of an activation."""
        return ELEMENT_BYTES[self.precision]

    @property
    def boundary_bytes(self) -> float:
        """The bytes of the hidden states that stages hand over and tensor ranks sum."""
        return self.architecture.boundary_bytes(self.samples, self.element_bytes)

    @property
    def device(self) -> Device:
        """The GPU as matrix products see it."""
        return _device(self.gpu, self.precision)

    @property
    def replicated_tokens(self) -> float:
        """The tokens that norms and sums of one rank work on: all, or its share under sequence parallelism."""
        return self.tokens / self.tensor if self.sequence_parallel else self.tokens


@functools.lru_cache(maxsize=256)
def _device(gpu: Gpu, precision: str) -> Device:
    return Device(gpu.peak_tflops[precision] * 1e12, gpu.memory_bandwidth_gb_per_second * 1e9, constants(gpu.name))


@dataclass(frozen=True)
class Seconds:
    """Time of one unit of the model for one micro-batch on one GPU, without its collectives.

    `backward_input` hands the gradient to the unit before, `backward_weight` makes the weights' gradients;
    `again` is the part of the forward that recomputation repeats. `forward_sums` and `backward_sums` count the sums
    of the hidden states over the tensor ranks (a scatter with a gather is one). `forward_launch` and
    `backward_launch` are the least that each takes, because the CPU launches its kernels.
    """

    forward: float
    backward_input: float
    backward_weight: float
    again: float = 0.0
    forward_sums: int = 0
    backward_sums: int = 0
    forward_launch: float = 0.0
    backward_launch: float = 0.0

    def times(self, factor: float) -> Seconds:
        """Return the same unit where everything takes `factor` times longer."""
        if factor == 1.0:
            return self
        return replace(self, forward=self.forward * factor, backward_input=self.backward_input * factor,
                       backward_weight=self.backward_weight * factor, again=self.again * factor,
                       forward_launch=self.forward_launch * factor, backward_launch=self.backward_launch * factor)
