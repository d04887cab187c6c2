"""The dimensions of a decoder: what its parameters, FLOPs and activations are counted from."""

from __future__ import annotations

from dataclasses import dataclass

from holmes_hpc.architecture.kinds import is_gated


@dataclass(frozen=True)
class Dimensions:
    """The fields are those of `config.model` with every default resolved."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    ffn_hidden_size: int
    vocab_size: int
    sequence_length: int
    tied_embeddings: bool
    normalization: str
    activation: str
    position_embedding: str
    rotary_base: float
    bias: bool
    normalization_epsilon: float
    initialization_std: float

    @property
    def head_size(self) -> int:
        """Return the width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def kv_size(self) -> int:
        """Return the width of all key heads together, which is also that of all value heads."""
        return self.num_kv_heads * self.head_size

    @property
    def gated(self) -> bool:
        """Return whether the feed-forward layer has a third matrix, the gate's. Raises ConfigurationError."""
        return is_gated(self.activation)
