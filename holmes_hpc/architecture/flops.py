"""Floating-point operations and memory traffic of a unit's forward, by part."""

from __future__ import annotations

from holmes_hpc.architecture.dimensions import Dimensions
from holmes_hpc.architecture.parameters import unit_parameters


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
    hidden = architecture.hidden_size
    feed_forward_matrices = 3 if architecture.gated else 2
    return {
        "attention_projection": 2 * tokens * hidden * (2 * hidden + 2 * architecture.kv_size),
        "attention_core": 4 * tokens * architecture.sequence_length * hidden,
        "feed_forward": 2 * tokens * feed_forward_matrices * hidden * architecture.ffn_hidden_size,
    }


def forward_bytes(architecture: Dimensions, unit: str, tokens: int,
                  element_bytes: int = 4) -> dict[str, int]:
    """Return the bytes that a unit's forward moves to and from memory when no two operations are fused.

    `weights` are read once; `elementwise` are norms, residual sums, activation and rotary turns, each reading
    its inputs and writing its output; `matrix` are the inputs and outputs of the matrix products;
    `attention_core` is a fused core, which reads queries, keys and values and writes its output. The head's
    `loss` reads and writes the logits in float32.
    """
    weights = sum(info.count for info in unit_parameters(architecture, unit)) * element_bytes
    hidden, kv, ffn = architecture.hidden_size, architecture.kv_size, architecture.ffn_hidden_size
    line = tokens * element_bytes
    if unit == "head":
        tied = architecture.vocab_size * hidden * element_bytes if architecture.tied_embeddings else 0
        return {"weights": weights + tied, "elementwise": 2 * line * hidden,
                "matrix": line * (hidden + architecture.vocab_size),
                "loss": 2 * 4 * tokens * architecture.vocab_size}
    if not unit.startswith("layers."):
        return {"elementwise": 2 * line * hidden}
    gated = architecture.gated
    norms_and_sums = 2 * (2 + 3) * hidden
    rotary = 2 * (hidden + kv) if architecture.position_embedding == "rotary" else 0
    activation = (2 + 3 if gated else 2) * ffn
    # Three products read the first norm's output; queries, keys, values and the output are written.
    attention_matrices = 3 * hidden + (hidden + 2 * kv) + 2 * hidden
    feed_forward_matrices = (2 if gated else 1) * (hidden + ffn) + ffn + hidden
    return {
        "weights": weights,
        "elementwise": line * (norms_and_sums + rotary + activation),
        "matrix": line * (attention_matrices + feed_forward_matrices),
        "attention_core": line * (2 * hidden + 2 * kv),
    }
