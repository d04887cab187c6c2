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
    head_size: int = 0
    attention_bias: str = ""
    query_key_norm: str = "none"
    norm_order: str = "before"
    parallel_residual: bool = False
    rotary_fraction: float = 1.0
    rotary_scaling: str = "none"
    rotary_factor: float = 1.0
    rotary_low_frequency_factor: float = 1.0
    rotary_high_frequency_factor: float = 4.0
    rotary_original_length: int = 8192
    max_positions: int = 0
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    family: str | None = None

    def __post_init__(self) -> None:
        """Resolve what is left open, as models were before these could be set."""
        head_size = self.head_size or self.hidden_size // self.num_heads
        for name, value in (("head_size", head_size),
                            ("attention_bias", self.attention_bias or ("all" if self.bias else "none")),
                            ("max_positions", self.max_positions or self.sequence_length),
                            ("attention_scale", self.attention_scale or head_size ** -0.5)):
            object.__setattr__(self, name, value)

    @property
    def query_size(self) -> int:
        """Return the width of all query heads together, which need not be the hidden size."""
        return self.num_heads * self.head_size

    @property
    def rotary_size(self) -> int:
        """Return how many elements of a head are turned by its position: the first ones."""
        return int(self.head_size * self.rotary_fraction) if self.position_embedding == "rotary" else 0

    @property
    def norms_of_layer(self) -> int:
        """Return the norms of a layer over the hidden dim: one for each of its two parts, or one on both sides."""
        return 4 if self.norm_order == "both" else 2

    @property
    def kv_size(self) -> int:
        """Return the width of all key heads together, which is also that of all value heads."""
        return self.num_kv_heads * self.head_size

    @property
    def gated(self) -> bool:
        """Return whether the feed-forward layer has a third matrix, the gate's. Raises ConfigurationError."""
        return is_gated(self.activation)
