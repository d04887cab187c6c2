"""Bytes that a forward keeps for its backward, by part."""

from __future__ import annotations

from holmes_hpc.architecture.dimensions import Dimensions

_FLOAT32_BYTES = 4
_TOKEN_BYTES = 8


def kept_bytes(architecture: Dimensions, unit: str, samples: int, element_bytes: int = 4) -> dict[str, int]:
    """Return the bytes that a unit keeps for its backward over `samples` samples, without recomputation.

    Derived from what torch saves (a test compares): for a layer the inputs of both norms with their
    statistics in float32, both norms' outputs (the inputs of the matrix products), queries, keys and values,
    and the output of a fused attention core with one float32 log-sum for each head and token; then GELU's
    input and output, or for SwiGLU the gate before and after its activation, the up-projection, and their
    product. There is no dropout, so no mask. For the GPT layer that is 16 s b h elements; Korthikanti et al.
    2022 count 34 s b h bytes at 16 bit (two of them masks), and beside it the scores, which a fused core does
    not keep. A fused RMSNorm keeps no normalised input; torch's on the CPU is not fused and does. Norms of
    queries and keys keep their inputs.

    The head keeps its norm, the input of its product and the float32 log-probabilities of the loss. Its
    logits are counted as well: they are alive until the loss's backward.
    """
    tokens = samples * architecture.sequence_length
    line = tokens * element_bytes
    hidden, ffn = architecture.hidden_size, architecture.ffn_hidden_size
    query, kv = architecture.query_size, architecture.kv_size
    statistics = (2 if architecture.normalization == "layernorm" else 1) * tokens * _FLOAT32_BYTES
    if unit == "embedding.token":
        return {"tokens": tokens * _TOKEN_BYTES}
    if unit == "head":
        logits = tokens * architecture.vocab_size * _FLOAT32_BYTES
        return {"norm": line * hidden + statistics, "head_input": line * hidden,
                "log_probabilities": logits, "logits": logits}
    if not unit.startswith("layers."):
        return {"positions": architecture.sequence_length * _TOKEN_BYTES}
    log_sums = tokens * architecture.num_heads * _FLOAT32_BYTES
    norms = architecture.norms_of_layer
    normed = {} if architecture.query_key_norm == "none" else {
        "query_key_norms": line * (query + kv) + tokens * _FLOAT32_BYTES * (
            2 if architecture.query_key_norm == "all" else architecture.num_heads + architecture.num_kv_heads)}
    return {
        "norms": norms * (line * hidden + statistics),
        "projection_inputs": 2 * line * hidden,
        "attention_core": line * (2 * query + 2 * kv) + log_sums,
        "feed_forward": line * ffn * (4 if architecture.gated else 2),
        **normed,
    }
