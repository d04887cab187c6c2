"""One core of this machine in the place of a GPU: emulated ranks compute on it.

A core does one operation after the other, so that products, attention core, elementwise work and Python's time for
each operation add up. The four constants were measured once with torch on one thread of an x86 server core, by
least squares over 18 layers (hidden 64 to 768, 64 to 2,048 tokens, GELU and SwiGLU): the thread's own time is met
within 25 % by each of them, within 6 % in the mean. `cluster/host.py` measures the core's speed itself.
"""

from __future__ import annotations

from holmes_hpc.planner.cost.micro_batch import MicroBatch, Seconds

CPU = "cpu"
MATRIX_SHARE = 0.92
"""Share of the measured speed of square products."""
CORE_SHARE = 0.19
"""The same for the attention core, of its causal half."""
ELEMENT_SHARE = 0.29
"""Share of the measured copy speed: GELU and SwiGLU compute more than they move."""
OPERATION_SECONDS = 11e-6
"""Python's and torch's own time for an operation."""
_OPERATIONS, _SWIGLU_OPERATIONS, _ROTARY_OPERATIONS = 12, 2, 12
_NORM_OPERATIONS = 1
_ELEMENT = 4
_LOSS_PASSES = 6
"""Times that cross entropy reads or writes the logits, in each direction."""


def cpu_layer_seconds(batch: MicroBatch) -> Seconds:
    """Return the time of a layer on one core; the backward does each product twice."""
    architecture, tensor, swiglu = batch.architecture, batch.tensor, batch.architecture.gated
    rotary = architecture.position_embedding == "rotary"
    flops = architecture.forward_flops_by_part("layers.0", batch.tokens)
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    heads = architecture.query_size + architecture.kv_size
    normed, more_norms = architecture.query_key_norm != "none", architecture.norms_of_layer - 2
    products = (flops["attention_projection"] + flops["feed_forward"]) / tensor / (_peak(batch) * MATRIX_SHARE)
    core = flops["attention_core"] / 2 / tensor / (_peak(batch) * CORE_SHARE)
    # Norms and sums; the activation; rotary turns.
    moved = batch.replicated_tokens * (10 + 2 * more_norms) * hidden + batch.tokens / tensor * (
        (5 if swiglu else 2) * ffn + 2 * heads * (rotary + normed))
    elements = moved * _ELEMENT / (_memory(batch) * ELEMENT_SHARE)
    operations = _OPERATIONS + swiglu * _SWIGLU_OPERATIONS + rotary * _ROTARY_OPERATIONS
    operations += (more_norms + 2 * normed) * _NORM_OPERATIONS
    calls = operations * OPERATION_SECONDS
    forward = products + core + elements + calls
    again = {"full": forward, "selective": core}.get(batch.recompute, 0.0)
    sums = 2 if tensor > 1 else 0
    return Seconds(forward, products + 2.5 * core + 2 * elements + calls, products + calls, again, sums, sums)


def cpu_head_seconds(batch: MicroBatch) -> Seconds:
    """Return the time of the head and its loss on one core."""
    architecture = batch.architecture
    product = architecture.forward_flops("head", batch.tokens) / batch.tensor / (_peak(batch) * MATRIX_SHARE)
    logits = batch.tokens * architecture.vocab_size / batch.tensor * _ELEMENT
    loss = _LOSS_PASSES * logits / (_memory(batch) * ELEMENT_SHARE)
    calls = 6 * OPERATION_SECONDS
    return Seconds(product + loss + calls, product + loss + calls, product + calls, 0.0, 0,
                   1 if batch.tensor > 1 else 0)


def cpu_embedding_seconds(batch: MicroBatch) -> Seconds:
    """Return the time of the embedding on one core; the backward writes the whole table's gradient."""
    architecture = batch.architecture
    speed = _memory(batch) * ELEMENT_SHARE
    line = batch.replicated_tokens * architecture.hidden_size * _ELEMENT
    table = architecture.vocab_size * architecture.hidden_size / batch.tensor * _ELEMENT
    calls = 4 * OPERATION_SECONDS
    return Seconds(4 * line / speed + calls, 0.0, (3 * line + 2 * table) / speed + calls, 0.0,
                   1 if batch.tensor > 1 else 0)


def _peak(batch: MicroBatch) -> float:
    return batch.gpu.peak_tflops[batch.precision] * 1e12


def _memory(batch: MicroBatch) -> float:
    return batch.gpu.memory_bandwidth_gb_per_second * 1e9
