"""One table for each family: the keys of its configuration, and where each of our parameters lies in its files.

Reading, writing and slices of weights all follow it. Keys and names are those of the library `transformers`
(`configuration_*.py` and `modeling_*.py` of each family), values where a key is absent too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from holmes_hpc.errors import ConfigurationError

LAYER = "layers.{}."
"""What our names of a layer's parameters begin with."""


class Sizes(Protocol):
    """What of a model says where its parameters lie in a family's fused tensors."""

    @property
    def query_size(self) -> int:
        """The width of all query heads."""

    @property
    def kv_size(self) -> int:
        """The width of all key heads."""

    @property
    def head_size(self) -> int:
        """The width of a head."""

    @property
    def ffn_hidden_size(self) -> int:
        """The width of the feed-forward layer."""


@dataclass(frozen=True)
class Source:
    """Where a parameter of ours lies in a stored tensor: row r at r // block * stride + begin + r % block.

    `transposed`: the stored tensor is the other way round, so that its columns are meant. `rows`: how many the stored
    tensor has where it holds other parameters as well. Without a block the rows lie together from `begin` on.
    """

    name: str
    transposed: bool = False
    begin: int = 0
    rows: int | None = None
    block: int | None = None
    stride: int = 0

    def shape(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the stored tensor, where our parameter has the shape `own`."""
        whole = (own[0] if self.rows is None else self.rows, *own[1:])
        return whole[::-1] if self.transposed else whole

    def spans(self, begin: int, end: int) -> list[tuple[int, int, int]]:
        """Return our rows from `begin` to `end` as runs (first of ours, first stored, count)."""
        if self.block is None:
            return [(begin, self.begin + begin, end - begin)] if end > begin else []
        runs = []
        while begin < end:
            count = min(end, (begin // self.block + 1) * self.block) - begin
            runs.append((begin, begin // self.block * self.stride + self.begin + begin % self.block, count))
            begin += count
        return runs


@dataclass(frozen=True)
class Family:
    """A family: `model_type`, its class, its `keys` by our setting, and the names of its tensors.

    `defaults`: values of keys that may be absent. `neutral`: keys that may only have these values. `inert`: keys that
    say nothing about what is computed, beside those that all families have. `fixed`: our settings that all models of
    the family have. `names`: theirs by our parameter without its last word, layers with `{}`. `fused`: our parts of a
    tensor, in their order. `by_head`: the fused tensor has them head by head. `base_key`, `fraction_key`: how the
    base of rotary positions and the part of a head that they turn are spelled; `fraction`: that part, if nothing says
    it.
    """

    model_type: str
    class_name: str
    keys: Mapping[str, str]
    names: Mapping[str, str]
    prefix: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    inert: tuple[str, ...] = ()
    activation_keys: tuple[str, ...] = ("hidden_act",)
    gated: bool = True
    head_dim: bool = False
    attention_bias: bool = True
    partial_rotary: bool = False
    base_key: str = "rope_theta"
    fraction_key: str = "partial_rotary_factor"
    fraction: float = 1.0
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    by_head: bool = False
    transposed: bool = False
    buffers: tuple[str, ...] = ("rotary_emb.inv_freq",)

    def source(self, sizes: Sizes, name: str) -> Source:
        """Return where our parameter `name` lies. Raises KeyError for one that the family has not."""
        stem, _, leaf = name.rpartition(".")
        words = stem.split(".")
        layer = words[1] if words[0] == "layers" else ""
        part = ".".join(words[2:]) if layer else stem
        theirs = self.names[LAYER + part if layer else stem].format(layer)
        fused = self.fused.get(part, ())
        ours = {"query": sizes.query_size, "key": sizes.kv_size, "value": sizes.kv_size}
        widths = [ours.get(each, sizes.ffn_hidden_size) for each in fused]
        transposed = self.transposed and bool(layer) and leaf == "weight" and "norm" not in part
        full = f"{theirs}.{leaf}"
        if not fused:
            return Source(full, transposed)
        index = fused.index(part.rpartition(".")[2])
        if self.by_head:
            size = sizes.head_size
            return Source(full, transposed, index * size, sum(widths), size, len(fused) * size)
        return Source(full, transposed, sum(widths[:index]), sum(widths))


_DIMENSIONS = {"num_layers": "num_hidden_layers", "hidden_size": "hidden_size", "num_heads": "num_attention_heads",
               "num_kv_heads": "num_key_value_heads", "ffn_hidden_size": "intermediate_size",
               "vocab_size": "vocab_size", "normalization_epsilon": "rms_norm_eps",
               "initialization_std": "initializer_range"}
_TOP = {"embedding.token": "model.embed_tokens", "head.norm": "model.norm", "head.output": "lm_head"}
_LAYER = "model.layers.{}."
_SEPARATE = {LAYER + f"attention.{ours}": f"{_LAYER}self_attn.{theirs}_proj"
             for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o"))}
_HEAD_NORMS = {LAYER + f"attention.{ours}_norm": f"{_LAYER}self_attn.{theirs}_norm"
               for ours, theirs in (("query", "q"), ("key", "k"))}
_GATED = {LAYER + f"feed_forward.{part}": f"{_LAYER}mlp.{part}_proj" for part in ("gate", "up", "down")}
_BEFORE = {LAYER + "attention_norm": _LAYER + "input_layernorm",
           LAYER + "feed_forward_norm": _LAYER + "post_attention_layernorm"}
_AFTER = {LAYER + "attention_post_norm": _LAYER + "post_attention_layernorm",
          LAYER + "feed_forward_post_norm": _LAYER + "post_feedforward_layernorm"}
_ON_BOTH_SIDES = {LAYER + "attention_norm": _LAYER + "input_layernorm",
                  LAYER + "feed_forward_norm": _LAYER + "pre_feedforward_layernorm", **_AFTER}
_LLAMA_NAMES = {**_TOP, **_SEPARATE, **_GATED, **_BEFORE}
_ROTARY = {"normalization": "rmsnorm", "position_embedding": "rotary", "bias": False}
_GEMMA = {**_ROTARY, "normalization": "rmsnorm_1p"}
_GEMMA_NEUTRAL = {"use_bidirectional_attention": (None, False)}
_LLAMA_DEFAULTS = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "initializer_range": 0.02, "tie_word_embeddings": False}

FAMILIES: dict[str, Family] = {family.model_type: family for family in (
    Family("llama", "LlamaForCausalLM", _DIMENSIONS, _LLAMA_NAMES, "model.", _ROTARY, _LLAMA_DEFAULTS,
           neutral={"mlp_bias": (False,), "rope_interleaved": (False,)}, inert=("is_llama_config",), head_dim=True),
    Family("gpt2", "GPT2LMHeadModel", {
        "num_layers": "n_layer", "hidden_size": "n_embd", "num_heads": "n_head", "ffn_hidden_size": "n_inner",
        "vocab_size": "vocab_size", "normalization_epsilon": "layer_norm_epsilon", "max_positions": "n_positions",
        "initialization_std": "initializer_range"}, {
        "embedding.token": "transformer.wte", "embedding.position": "transformer.wpe",
        "head.norm": "transformer.ln_f", "head.output": "lm_head",
        **{LAYER + f"attention.{part}": "transformer.h.{}.attn.c_attn" for part in ("query", "key", "value")},
        LAYER + "attention.output": "transformer.h.{}.attn.c_proj",
        LAYER + "feed_forward.up": "transformer.h.{}.mlp.c_fc",
        LAYER + "feed_forward.down": "transformer.h.{}.mlp.c_proj", LAYER + "attention_norm": "transformer.h.{}.ln_1",
        LAYER + "feed_forward_norm": "transformer.h.{}.ln_2"}, "transformer.",
        {"normalization": "layernorm", "position_embedding": "learned", "bias": True},
        {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "initializer_range": 0.02,
         "tie_word_embeddings": True},
        neutral={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,),
                 "add_cross_attention": (False,)},
        inert=("reorder_and_upcast_attn", "n_ctx"), activation_keys=("activation_function",), gated=False,
        attention_bias=False, fused={f"attention.{part}": ("query", "key", "value")
                                     for part in ("query", "key", "value")},
        transposed=True, buffers=("attn.bias", "attn.masked_bias")),
    Family("mistral", "MistralForCausalLM", _DIMENSIONS, _LLAMA_NAMES, "model.", _ROTARY,
           {**_LLAMA_DEFAULTS, "num_key_value_heads": 8, "sliding_window": 4096}, head_dim=True, attention_bias=False),
    Family("qwen2", "Qwen2ForCausalLM", _DIMENSIONS, _LLAMA_NAMES, "model.", {**_ROTARY, "attention_bias": "qkv"},
           {**_LLAMA_DEFAULTS, "num_key_value_heads": 32}, neutral={"use_mrope": (False,)}, attention_bias=False),
    Family("qwen3", "Qwen3ForCausalLM", _DIMENSIONS, {**_LLAMA_NAMES, **_HEAD_NORMS}, "model.",
           {**_ROTARY, "query_key_norm": "head"}, {**_LLAMA_DEFAULTS, "num_key_value_heads": 32, "head_dim": 128},
           head_dim=True),
    Family("phi3", "Phi3ForCausalLM", _DIMENSIONS, {
        **_TOP, **_BEFORE, **{LAYER + f"attention.{part}": _LAYER + "self_attn.qkv_proj"
                              for part in ("query", "key", "value")},
        LAYER + "attention.output": _LAYER + "self_attn.o_proj",
        **{LAYER + f"feed_forward.{part}": _LAYER + "mlp.gate_up_proj" for part in ("gate", "up")},
        LAYER + "feed_forward.down": _LAYER + "mlp.down_proj"},
        "model.", _ROTARY, {**_LLAMA_DEFAULTS, "rms_norm_eps": 1e-5}, attention_bias=False,
        partial_rotary=True, neutral={"attention_bias": (False,)}, inert=("original_max_position_embeddings",),
        fused={**{f"attention.{part}": ("query", "key", "value") for part in ("query", "key", "value")},
               **{f"feed_forward.{part}": ("gate", "up") for part in ("gate", "up")}}),
    Family("gpt_neox", "GPTNeoXForCausalLM", {
        **{ours: theirs for ours, theirs in _DIMENSIONS.items() if ours != "num_kv_heads"},
        "normalization_epsilon": "layer_norm_eps"}, {
        "embedding.token": "gpt_neox.embed_in", "head.norm": "gpt_neox.final_layer_norm", "head.output": "embed_out",
        **{LAYER + f"attention.{part}": "gpt_neox.layers.{}.attention.query_key_value"
           for part in ("query", "key", "value")},
        LAYER + "attention.output": "gpt_neox.layers.{}.attention.dense",
        LAYER + "feed_forward.up": "gpt_neox.layers.{}.mlp.dense_h_to_4h",
        LAYER + "feed_forward.down": "gpt_neox.layers.{}.mlp.dense_4h_to_h",
        LAYER + "attention_norm": "gpt_neox.layers.{}.input_layernorm",
        LAYER + "feed_forward_norm": "gpt_neox.layers.{}.post_attention_layernorm"}, "gpt_neox.",
        {"normalization": "layernorm", "position_embedding": "rotary", "bias": True},
        {"layer_norm_eps": 1e-5, "hidden_act": "gelu", "initializer_range": 0.02, "tie_word_embeddings": False,
         "use_parallel_residual": True, "attention_bias": True}, gated=False,
        partial_rotary=True, base_key="rotary_emb_base", fraction_key="rotary_pct", fraction=0.25,
        inert=("rotary_pct", "rotary_emb_base", "hidden_dropout_prob"),
        fused={f"attention.{part}": ("query", "key", "value") for part in ("query", "key", "value")}, by_head=True,
        buffers=("rotary_emb.inv_freq", "attention.bias", "attention.masked_bias")),
    Family("olmo2", "Olmo2ForCausalLM", _DIMENSIONS, {**_TOP, **_SEPARATE, **_GATED, **_HEAD_NORMS, **_AFTER}, "model.",
           {**_ROTARY, "query_key_norm": "all", "norm_order": "after"}, {**_LLAMA_DEFAULTS, "rms_norm_eps": 1e-5}),
    Family("gemma", "GemmaForCausalLM", _DIMENSIONS, _LLAMA_NAMES, "model.", _GEMMA,
           {"rms_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh", "initializer_range": 0.02,
            "tie_word_embeddings": True, "num_key_value_heads": 16, "head_dim": 256}, neutral=_GEMMA_NEUTRAL,
           activation_keys=("hidden_activation", "hidden_act"), head_dim=True),
    Family("gemma2", "Gemma2ForCausalLM", _DIMENSIONS, {**_TOP, **_SEPARATE, **_GATED, **_ON_BOTH_SIDES}, "model.",
           {**_GEMMA, "norm_order": "both"},
           {"rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "initializer_range": 0.02,
            "tie_word_embeddings": True, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256,
            "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
           neutral={**_GEMMA_NEUTRAL, "attn_logit_softcapping": (None,), "final_logit_softcapping": (None,)},
           activation_keys=("hidden_activation", "hidden_act"), head_dim=True),
)}
"""The families by `model_type`; where a model fits several, the first is written."""


def family_named(model_type: str, setting: str = "model.family") -> Family:
    """Return a family. Raises ConfigurationError that lists them."""
    if model_type not in FAMILIES:
        raise ConfigurationError(f"{setting}={model_type}: no such family; there are {', '.join(FAMILIES)}.")
    return FAMILIES[model_type]
