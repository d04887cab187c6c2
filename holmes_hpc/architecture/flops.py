"""Floating-point operations of a unit's forward, by part."""

from __future__ import annotations

from holmes_hpc.architecture.dimensions import Dimensions


def forward_flops(architecture: Dimensions, unit: str, tokens: int) -> dict[str, int]:
    """Return the operations of a unit's forward over `tokens` tokens of full samples, by part.

    Parts of a layer: `attention_projection`, `feed_forward` (matrix products) and `attention_core` (scores
    and their product with the values). Part of the head: `head`, whether tied or not. Looking up an embedding
    costs none. A product of [m, k] and [k, n] counts 2mkn. The core counts the whole square of the scores,
    though the causal mask needs half of it, so that figures compare with published ones (Narayanan et al.
    2021, appendix: 24 B s h^2 + 4 B s^2 h for the forward of a GPT layer, 2 B s h V for the head).
    """
    if unit == "head":
        return {"head": 2 * tokens * architecture.hidden_size * architecture.vocab_size}
    if not unit.startswith("layers."):
        return {"embedding": 0}
    hidden, query = architecture.hidden_size, architecture.query_size
    feed_forward_matrices = 3 if architecture.gated else 2
    return {
        "attention_projection": 2 * tokens * hidden * (2 * query + 2 * architecture.kv_size),
        "attention_core": 4 * tokens * architecture.sequence_length * query,
        "feed_forward": 2 * tokens * feed_forward_matrices * hidden * architecture.ffn_hidden_size,
    }
