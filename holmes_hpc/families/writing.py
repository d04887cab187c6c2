"""The `config.json` of a model of ours, as its family writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holmes_hpc.families.family import FAMILIES, Family, family_named
from holmes_hpc.families.reading import ACTIVATIONS, NotKnownError, settings_of

_ROTARY_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rotary_pct",
                "rotary_emb_base")
_TYPE_KEYS = ("dtype", "torch_dtype")


def configuration_of(model: Any, base: Mapping[str, Any], dtype: str) -> tuple[Family, dict[str, Any]]:
    """Return the family and the configuration of a model (an architecture) whose weights are of `dtype`.

    `base` is the configuration that the model came with, whose other keys are kept; empty for a model of our own, which
    gets the first family that has all it has. The configuration is read back, and compared. Raises NotKnownError with
    what no family has.
    """
    if model.family is not None:
        family = family_named(model.family)
        made = _written(model, family, base if base.get("model_type") == family.model_type else {}, dtype)
        different = _differences(model, made)
        if different:
            raise NotKnownError(f"model.family={family.model_type} has no model like this: {different}")
        return family, made
    reasons = []
    for family in FAMILIES.values():
        made = _written(model, family, base if base.get("model_type") == family.model_type else {}, dtype)
        different = _differences(model, made)
        if not different:
            return family, made
        reasons.append(f"{family.model_type}: {different}")
    raise NotKnownError("no family of Hugging Face has a model like this. " + ". ".join(reasons))


def _written(model: Any, family: Family, base: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    kept = {key: value for key, value in base.items()
            if key not in (*_ROTARY_KEYS, *_TYPE_KEYS)}
    made: dict[str, Any] = {**kept, "architectures": [family.class_name], "model_type": family.model_type}
    made["dtype" if "dtype" in base else "torch_dtype"] = dtype
    for ours, theirs in family.keys.items():
        made[theirs] = getattr(model, ours)
    made["tie_word_embeddings"] = model.tied_embeddings
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS[family.gated].items())}
    known = [key for key in family.activation_keys if key in base] or family.activation_keys[:1]
    written = base.get(known[0])
    for key in known:
        same = ACTIVATIONS[family.gated].get(str(written)) == model.activation
        made[key] = written if same else names.get(model.activation, model.activation)
    if family.head_dim or "head_dim" in base:
        made["head_dim"] = model.head_size
    if family.attention_bias:
        made["attention_bias"] = model.attention_bias == "all"
    if family.fixed["position_embedding"] == "rotary":
        made["max_position_embeddings"] = max(model.sequence_length, int(base.get("max_position_embeddings") or 0))
        made |= _rotary(model, family, base)
    if family.model_type == "gpt_neox":
        made["use_parallel_residual"] = model.parallel_residual
    if family.model_type == "gemma2":
        made |= {"query_pre_attn_scalar": _whole_where_it_is(model.attention_scale ** -2),
                 "attn_logit_softcapping": None, "final_logit_softcapping": None}
    if "sliding_window" in family.defaults and "sliding_window" not in base:
        # Every other layer of Gemma 2 has a window, which must be a number: one as long as any text is none.
        made["sliding_window"] = made["max_position_embeddings"] if family.model_type == "gemma2" else None
    return made


def _rotary(model: Any, family: Family, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of rotary positions in the spelling of `base`; without one, in that which all versions read."""
    scaling: dict[str, Any] = {}
    if model.rotary_scaling != "none":
        scaling = {"rope_type": model.rotary_scaling, "factor": model.rotary_factor}
    if model.rotary_scaling == "llama3":
        scaling |= {"low_freq_factor": model.rotary_low_frequency_factor,
                    "high_freq_factor": model.rotary_high_frequency_factor,
                    "original_max_position_embeddings": model.rotary_original_length}
    partial = {"partial_rotary_factor": model.rotary_fraction} if family.partial_rotary else {}
    if "rope_parameters" in base:
        return {"rope_parameters": {"rope_type": "default", "rope_theta": model.rotary_base, **partial, **scaling}}
    if family.model_type == "gpt_neox":
        return {"rotary_emb_base": model.rotary_base, "rotary_pct": model.rotary_fraction,
                "rope_scaling": scaling or None}
    return {"rope_theta": model.rotary_base, "rope_scaling": scaling or None, **partial}


def _differences(model: Any, configuration: Mapping[str, Any]) -> str:
    """Return what a configuration says otherwise than the model, in words; nothing where it says the same."""
    try:
        settings = settings_of(configuration, model.sequence_length)
    except NotKnownError as error:
        return str(error)
    plain = {"query_key_norm": "none", "norm_order": "before", "parallel_residual": False, "embedding_scale": 1.0,
             "attention_scale": model.head_size ** -0.5, "rotary_fraction": 1.0, "rotary_scaling": "none",
             "attention_bias": "all" if settings["bias"] else "none"}
    for name, value in {**plain, **settings}.items():
        if name != "family" and not _alike(getattr(model, name), value):
            return f"it has model.{name}={value}, and this model has {getattr(model, name)}"
    return ""


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and not isinstance(other, str):
        return abs(one - other) <= 1e-6 * abs(one)
    return bool(one == other)


def _whole_where_it_is(value: float) -> float | int:
    return round(value) if abs(value - round(value)) < 1e-6 * value else value
