"""Seconds of a transformer layer: products, attention core, memory-bound operations, launches.

Counts follow the operations one by one: what each reads and writes, in bytes for each token.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from holmes_hpc.planner.cost.cpu import CPU, cpu_layer_seconds
from holmes_hpc.planner.cost.gpu_constants import LAUNCH_SECONDS
from holmes_hpc.planner.cost.matrix import product_seconds
from holmes_hpc.planner.cost.micro_batch import MicroBatch, Seconds

_CORE_BACKWARD_OPERATIONS = 2.5
"""A fused core's backward makes the scores again and four more products, against two in the forward."""
_CAUSAL_SHARE = 0.5
"""A fused core skips the masked half of the scores."""
_GRADIENT_RESULT_BYTES = 8
"""A weight gradient is added to a float32 buffer."""
_SUMS = 2
"""Sums over the tensor ranks in each direction: behind the attention and behind the feed-forward."""


class Product(NamedTuple):
    """A weight matrix as one tensor rank holds it: results and inputs for each token."""

    results: float
    inputs: float


def layer_products(batch: MicroBatch) -> tuple[Product, ...]:
    """Return the weight matrices of a layer, each as a rank's share."""
    architecture, t = batch.architecture, batch.tensor
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    query, kv = architecture.query_size, architecture.kv_size
    up = [ffn, ffn] if architecture.gated else [ffn]
    entry = [query, kv, kv]
    if batch.software.fused_projections:
        up, entry = [sum(up)], [sum(entry)]
    return (*(Product(width / t, hidden) for width in entry), Product(hidden, query / t),
            *(Product(width / t, hidden) for width in up), Product(hidden, ffn / t))


@functools.lru_cache(maxsize=65536)
def layer_seconds(batch: MicroBatch) -> Seconds:
    """Return the time of one layer on one GPU, without the collectives of tensor parallelism."""
    if batch.gpu.name == CPU:
        return cpu_layer_seconds(batch)
    forward = sum(_product(batch, product) for product in layer_products(batch))
    weight = sum(product_seconds(batch.device, product.results, product.inputs, batch.tokens,
                                 element_bytes=batch.element_bytes, result_bytes=_GRADIENT_RESULT_BYTES)
                 for product in layer_products(batch))
    weight += sum(accumulation_seconds(batch, product.results * product.inputs) for product in layer_products(batch))
    core_forward, core_backward = core_seconds(batch)
    memory_forward, memory_backward = memory_bound_seconds(batch)
    backward = sum(product_seconds(batch.device, batch.tokens, product.inputs, product.results,
                                   element_bytes=batch.element_bytes) for product in layer_products(batch))
    return _launched(batch, core_forward, forward + core_forward + memory_forward,
                     backward + core_backward + memory_backward, weight)


def accumulation_seconds(batch: MicroBatch, parameters: float) -> float:
    """Return the time of adding gradients to their buffer, where the products do not do it themselves."""
    return parameters * batch.software.accumulation_bytes / batch.device.memory_speed


def _product(batch: MicroBatch, product: Product) -> float:
    return product_seconds(batch.device, batch.tokens, product.results, product.inputs,
                           element_bytes=batch.element_bytes)


def _launched(batch: MicroBatch, core: float, forward: float, backward_input: float, backward_weight: float) -> Seconds:
    """Add what recomputation repeats, the sums of tensor parallelism, and the CPU's time to launch."""
    sums = _SUMS if batch.tensor > 1 else 0
    again = {"full": forward, "selective": core}.get(batch.recompute, 0.0)
    return Seconds(forward, backward_input, backward_weight, again, sums, sums,
                   (batch.software.forward_kernels + sums) * LAUNCH_SECONDS,
                   (batch.software.backward_kernels + sums) * LAUNCH_SECONDS)


def core_seconds(batch: MicroBatch) -> tuple[float, float]:
    """Return forward and backward time of the attention core: scores, softmax, and the product with the values."""
    architecture, device = batch.architecture, batch.device
    length, width = architecture.sequence_length, architecture.head_size
    heads = batch.samples * architecture.num_heads / batch.tensor
    if batch.software.fused_attention:
        operations = _CAUSAL_SHARE * 4 * heads * length * length * width
        rate = device.peak * device.constants.attention_share * batch.software.attention_speed
        elements = batch.tokens * 2 * (architecture.query_size + architecture.kv_size)
        moved = elements / batch.tensor * batch.element_bytes
        forward = max(operations / rate, moved / device.memory_speed)
        return forward, _CORE_BACKWARD_OPERATIONS * forward
    size, element = heads * length * length, batch.element_bytes
    scores = product_seconds(device, length, length, width, batch=heads, element_bytes=element)
    values = product_seconds(device, length, width, length, batch=heads, element_bytes=element)
    mask = 1 if batch.software.dropout else 0
    dropout = 2 * element + mask if batch.software.dropout else 0
    forward = scores + values + size * (2 * element + dropout) / device.memory_speed
    # Gradients of the probabilities (like the scores), of the values, queries and keys (like the values).
    backward = scores + 3 * values + size * (3 * element + dropout) / device.memory_speed
    return forward, backward


def memory_bound_seconds(batch: MicroBatch) -> tuple[float, float]:
    """Return forward and backward time of everything beside products and core: norms, sums, activation, copies."""
    forward, backward = (batch.replicated_tokens * whole + batch.tokens / batch.tensor * split
                         for whole, split in (_forward_bytes(batch), _backward_bytes(batch)))
    return forward / batch.device.memory_speed, backward / batch.device.memory_speed


def _forward_bytes(batch: MicroBatch) -> tuple[float, float]:
    """Return bytes for each token: of what every tensor rank does, and of what they share."""
    architecture, software, e = batch.architecture, batch.software, batch.element_bytes
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    query, kv = architecture.query_size, architecture.kv_size
    mask = 1 if software.dropout else 0
    norms = architecture.norms_of_layer * 2 * e * hidden
    sums = 2 * (3 * e + mask) * hidden
    activation = (2 if not architecture.gated else 3 if software.fused_activation else 5) * e * ffn
    # A bias outside the product: its copy is written, then read back as the product's start.
    bias = 2 * e * (query + 2 * kv) if architecture.attention_bias != "none" and not software.fused_bias else 0
    rotary = 2 * e * (query + kv) if architecture.position_embedding == "rotary" else 0
    normed = 2 * e * (query + kv) if architecture.query_key_norm != "none" else 0
    context = 0 if software.fused_attention else 2 * e * query
    return norms + sums, activation + bias + rotary + normed + context


def _backward_bytes(batch: MicroBatch) -> tuple[float, float]:
    """Return the backward's bytes for each token, as `_forward_bytes` does."""
    architecture, software, e = batch.architecture, batch.software, batch.element_bytes
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    query, kv = architecture.query_size, architecture.kv_size
    # A norm reads its input and gradient twice (for its weights, for its input) and writes once.
    norms = architecture.norms_of_layer * 5 * e * hidden
    dropout = 2 * (2 * e + 1) * hidden if software.dropout else 0
    sums = 2 * 3 * e * hidden
    biases = e * hidden * ((architecture.attention_bias == "all") + architecture.bias)
    split_biases = e * (ffn * architecture.bias + (query + 2 * kv) * (architecture.attention_bias != "none"))
    activation = (3 if not architecture.gated else 5 if software.fused_activation else 8) * e * ffn
    rotary = 2 * e * (query + kv) if architecture.position_embedding == "rotary" else 0
    normed = 5 * e * (query + kv) if architecture.query_key_norm != "none" else 0
    joined = 2 * e * (query + 2 * kv) if software.fused_projections else 0
    context = 0 if software.fused_attention else 2 * e * query
    return (norms + dropout + sums + biases,
            activation + split_biases + rotary + normed + joined + context)
