"""Seconds of what surrounds the layers: the embedding in front, the head with its loss behind."""

from __future__ import annotations

import functools

from holmes_hpc.planner.cost.cpu import CPU, cpu_embedding_seconds, cpu_head_seconds
from holmes_hpc.planner.cost.gpu_constants import LAUNCH_SECONDS
from holmes_hpc.planner.cost.layer import accumulation_seconds
from holmes_hpc.planner.cost.matrix import product_seconds
from holmes_hpc.planner.cost.micro_batch import MicroBatch, Seconds

_EMBEDDING_KERNELS = (20, 6)
"""Reading a batch, its masks and positions, and the embedding itself; then its backward."""
_HEAD_KERNELS = (20, 16)
_TABLE_GRADIENT_BYTES = 12
"""For each element of the table: its gradient is zeroed, then added to the float32 buffer."""
_GRADIENT_RESULT_BYTES = 8


@functools.lru_cache(maxsize=16384)
def embedding_seconds(batch: MicroBatch) -> Seconds:
    """Return the time of looking up tokens and adding positions; the backward adds into the table's gradient."""
    if batch.gpu.name == CPU:
        return cpu_embedding_seconds(batch)
    architecture, e = batch.architecture, batch.element_bytes
    mask = 1 if batch.software.dropout else 0
    line = batch.replicated_tokens * architecture.hidden_size
    table = architecture.vocab_size * architecture.hidden_size / batch.tensor
    forward = line * (4 * e + mask) / batch.device.memory_speed
    backward = (line * (3 * e + mask) + table * _TABLE_GRADIENT_BYTES) / batch.device.memory_speed
    backward += accumulation_seconds(batch, table)
    sums = 1 if batch.tensor > 1 else 0
    return Seconds(forward, 0.0, backward, 0.0, sums, 0, *(count * LAUNCH_SECONDS for count in _EMBEDDING_KERNELS))


@functools.lru_cache(maxsize=16384)
def head_seconds(batch: MicroBatch) -> Seconds:
    """Return the time of the last norm, the product with the vocabulary, and the cross entropy."""
    if batch.gpu.name == CPU:
        return cpu_head_seconds(batch)
    device, e, hidden = batch.device, batch.element_bytes, batch.architecture.hidden_size
    words = batch.architecture.vocab_size / batch.tensor
    loss = batch.tokens * words * batch.software.loss_bytes / 2 / device.memory_speed
    norm = batch.replicated_tokens * hidden * e / device.memory_speed
    forward = product_seconds(device, batch.tokens, words, hidden, element_bytes=e) + loss + 2 * norm
    backward = product_seconds(device, batch.tokens, hidden, words, element_bytes=e) + loss + 5 * norm
    weight = product_seconds(device, words, hidden, batch.tokens, element_bytes=e, result_bytes=_GRADIENT_RESULT_BYTES)
    weight += accumulation_seconds(batch, words * hidden)
    sums = 1 if batch.tensor > 1 else 0
    return Seconds(forward, backward, weight, 0.0, 0, sums, *(count * LAUNCH_SECONDS for count in _HEAD_KERNELS))
