"""Tiny random models of published families, as the library `transformers` makes and saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

LENGTH = 48
_BASE: dict[str, Any] = {
    "vocab_size": 258, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_GPT2 = {"vocab_size": 257, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
         "eos_token_id": 2}
_NEOX = {"vocab_size": 258, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
         "num_attention_heads": 2, "max_position_embeddings": 128}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
_GEMMA2 = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 64, "attn_logit_softcapping": None,
           "final_logit_softcapping": None}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {**_BASE, "tie_word_embeddings": False}),
    "smollm2": ("Llama", {**_BASE, "tie_word_embeddings": True}),
    "llama3": ("Llama", {**_BASE, "rope_parameters": _LLAMA3}),
    "llama-linear-bias": ("Llama", {**_BASE, "attention_bias": True, "rope_parameters": {
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "mistral": ("Mistral", {**_BASE, "sliding_window": 128}),
    "mistral-nemo": ("Mistral", {**_BASE, "head_dim": 12, "sliding_window": None}),
    "phi3": ("Phi3", {**_BASE, "sliding_window": None}),
    "phi3-partial": ("Phi3", {**_BASE, "sliding_window": None, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    "qwen2": ("Qwen2", {**_BASE, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**_BASE, "head_dim": 12}),
    "gpt2": ("GPT2", _GPT2),
    "neox": ("GPTNeoX", _NEOX),
    "neox-serial": ("GPTNeoX", {**_NEOX, "use_parallel_residual": False}),
    "olmo2": ("Olmo2", _BASE),
    "gemma": ("Gemma", {**_BASE, "head_dim": 12}),
    "gemma2": ("Gemma2", {**_BASE, **_GEMMA2}),
}
"""By name: the class without `Config`, and its arguments."""

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "mlp bias": ("Llama", {**_BASE, "mlp_bias": True}, "mlp_bias=true"),
    "dynamic": ("Llama", {**_BASE, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
                "rope_type=dynamic"),
    "yarn": ("Llama", {**_BASE, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                                                    "original_max_position_embeddings": 64}}, "rope_type=yarn"),
    "window": ("Mistral", {**_BASE, "sliding_window": 16}, "sliding_window=16.*sequence_length to 16"),
    "window of some layers": ("Qwen2", {**_BASE, "use_sliding_window": True, "sliding_window": 16,
                                        "max_window_layers": 1}, "sliding_window=16"),
    "caps": ("Gemma2", {**_BASE, "head_dim": 16, "sliding_window": 128}, "logit_softcapping="),
    "gemma3": ("Gemma3Text", {**_BASE, "head_dim": 16}, "model_type=gemma3_text"),
    "experts": ("Mixtral", {**_BASE, "num_local_experts": 4}, "model_type=mixtral"),
    "granite": ("Granite", {**_BASE, "embedding_multiplier": 12.0}, "model_type=granite"),
}


def make_model(kind: str, arguments: dict[str, Any]) -> Any:
    """A model in float32 whose norms, biases and matrices all count."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{kind}Config")(**arguments))
    model = model.eval().float()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
        else:
            parameter.data.normal_(0, 0.15)
    return model


def save_model(name: str, folder: Path) -> Any:
    """Save a model of MODELS into a folder, and return it."""
    model = make_model(*MODELS[name])
    model.save_pretrained(folder)
    return model


def change(folder: Path, **values: Any) -> None:
    """Change keys of a folder's config.json; None removes one."""
    path = folder / "config.json"
    found = json.loads(path.read_text())
    for key, value in values.items():
        found[key] = value
        if value is None:
            del found[key]
    path.write_text(json.dumps(found))


def tokens() -> torch.Tensor:
    return torch.randint(3, 250, (2, LENGTH), generator=torch.Generator().manual_seed(1))
