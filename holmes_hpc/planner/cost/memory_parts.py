"""Bytes of memory of one rank, part by part."""

from __future__ import annotations

import functools

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster.gpus import Gpu
from holmes_hpc.planner.cost.cpu import CPU, ELEMENT_SHARE
from holmes_hpc.planner.cost.gpu_constants import COMMUNICATORS_INCLUDED, CONSTANTS
from holmes_hpc.planner.software import ENGINE, Software

GIB = 2.0**30
_CPU_FIXED_GIB = 0.25
"""A process that has imported torch."""
_FLOAT32_BYTES = 4
_SPLIT_PARTS = ("attention_core", "query_key_norms", "feed_forward", "logits", "log_probabilities")


def state_bytes(precision: str, optimizer: str, software: Software = ENGINE) -> tuple[int, int, int]:
    """Return bytes for each parameter: of the parameter (at 16 bit with its float32 copy), gradient, moments.

    Gradients lie in flat buffers, of float32 in our engine, which are also the buckets that ranks sum.
    """
    return 4 if precision == "float32" else 6, software.gradient_bytes, 8 if optimizer == "adamw" else 4


def optimizer_seconds(gpu: Gpu, precision: str, optimizer: str, parameters: float, software: Software = ENGINE
                      ) -> float:
    """Return the time of one optimizer step over the parameters that a rank updates: it moves its states."""
    share = CONSTANTS[gpu.name].memory_share if gpu.name != CPU else ELEMENT_SHARE
    moved = software.optimizer_bytes + (6 if precision != "float32" else 0) - (0 if optimizer == "adamw" else 8)
    return parameters * moved / (gpu.memory_bandwidth_gb_per_second * 1e9 * share)


@functools.lru_cache(maxsize=4096)
def rank_parameters(architecture: Architecture, unit: str, tensor: int) -> float:
    """Return the parameters of a unit that one of `tensor` ranks holds: its share of split ones, all others."""
    return sum(info.count / (1 if info.split_dim is None else tensor) for info in architecture.unit_parameters(unit))


def fixed_bytes(gpu: Gpu, communicators: int = 0, each_gib: float = 0.0) -> float:
    """Return the memory of device context, libraries' workspaces, and the communication library.

    It has so many `communicators` on the GPU; those beyond the included ones take `each_gib`.
    """
    if gpu.name == CPU:
        return _CPU_FIXED_GIB * GIB
    more = max(0, communicators - COMMUNICATORS_INCLUDED)
    return (CONSTANTS[gpu.name].fixed_gib + more * each_gib) * GIB


def activation_parts(architecture: Architecture, unit: str, samples: int, *, tensor: int = 1, element_bytes: int = 2,
                     recompute: str = "none", sequence_parallel: bool = False, software: Software = ENGINE
                     ) -> dict[str, float]:
    """Return the bytes that a micro-batch keeps of a unit on one rank, from its forward to its backward, by part.

    `full` recomputation keeps a layer's input alone. `selective` drops what the attention core keeps beside its
    inputs and output. Inputs of products and norms are whole on every tensor rank; sequence parallelism splits what
    norms and dropout keep, and in software that gathers again in the backward the inputs of products too.
    """
    layer = unit.startswith("layers.")
    if layer and recompute == "full":
        whole = architecture.boundary_bytes(samples, element_bytes)
        return {"input": whole / (tensor if sequence_parallel else 1)}
    if not software.fused_attention:
        return _unfused_parts(architecture, unit, samples, tensor, element_bytes, recompute, sequence_parallel)
    parts: dict[str, float] = dict(architecture.activation_bytes_by_part(unit, samples, element_bytes))
    if layer and recompute == "selective":
        # Its inputs and its output stay; only the float32 log-sums go.
        parts["attention_core"] -= samples * architecture.sequence_length * architecture.num_heads * _FLOAT32_BYTES
    return {name: size / (tensor if name in _SPLIT_PARTS or (sequence_parallel and name in ("norms", "norm")) else 1)
            for name, size in parts.items()}


def _unfused_parts(architecture: Architecture, unit: str, samples: int, tensor: int, element_bytes: int,
                    recompute: str, sequence_parallel: bool) -> dict[str, float]:
    """Return what software with an unfused core and dropout keeps; masks take a byte for each element."""
    tokens, hidden = samples * architecture.sequence_length, architecture.hidden_size
    query, kv = architecture.query_size, architecture.kv_size
    ffn, e = architecture.ffn_hidden_size, element_bytes
    whole = tokens / (tensor if sequence_parallel else 1)
    share = tokens / tensor
    if unit == "head":
        return {"norm": whole * e * hidden, "head_input": whole * e * hidden,
                "logits": share * architecture.vocab_size * _FLOAT32_BYTES}
    if unit == "embedding.token":
        return {"mask": whole * hidden}
    if not unit.startswith("layers."):
        return {}
    heads, length = architecture.num_heads, architecture.sequence_length
    # Softmax' output, dropout's mask, dropout's output.
    core = {} if recompute == "selective" else {"scores": share * heads * length * (2 * e + 1)}
    doubled = 3 if architecture.gated else 2
    return {
        "norms": whole * architecture.norms_of_layer * e * hidden,
        "product_inputs": whole * 2 * e * hidden,
        "masks": whole * 2 * hidden,
        "attention": share * e * (2 * query + 2 * kv),
        "feed_forward": share * e * doubled * ffn,
        **core,
    }
