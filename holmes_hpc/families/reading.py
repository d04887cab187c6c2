"""What the `config.json` of a published model says, in our settings; what we do not know is refused by its name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.families.family import FAMILIES, Family
from holmes_hpc.foreign import number, whole_number

ACTIVATIONS = {True: {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "gelu_new": "geglu_tanh",
                      "gelu_pytorch_tanh": "geglu_tanh", "gelu_fast": "geglu_tanh"},
               False: {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
                       "gelu_fast": "gelu_tanh"}}
"""Our activation by theirs, for feed-forward layers with a gate and without."""
LONGEST_SAMPLE = 2048
"""Default of model.sequence_length, where a model takes longer samples."""
_LARGEST = 1 << 31

_INERT = frozenset("""_name_or_path _attn_implementation architectures attention_dropout attention_probs_dropout_prob
    attn_implementation attn_pdrop auto_map begin_suppress_tokens bad_words_ids bos_token_id cache_implementation
    chunk_size_feed_forward classifier_dropout cls_token_id decoder_start_token_id diversity_penalty do_sample dtype
    early_stopping embd_dropout embd_pdrop encoder_no_repeat_ngram_size eos_token_id
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing
    hidden_dropout id2label label2id length_penalty max_length max_window_layers min_length model_type
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states
    output_scores pad_token_id prefix pretraining_tp problem_type pruned_heads remove_invalid_values
    repetition_penalty resid_dropout resid_pdrop return_dict return_dict_in_generate sep_token_id
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens
    task_specific_params temperature tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config
    transformers_version typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache""".split())  # noqa: SIM905
"""Keys about training, generation and software: none changes what a model computes."""
_ROPE_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_SCALING_KEYS = {"linear": {"factor"}, "llama3": {"factor", "low_freq_factor", "high_freq_factor",
                                                  "original_max_position_embeddings"}}
_SHARED = {"tie_word_embeddings", "max_position_embeddings"}
_ROTARY = {"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"}
_ONE_WINDOW = ("mistral", "phi3")
"""Families whose window is that of all layers, whatever layer_types says."""
_WINDOWS = {"sliding_window", "use_sliding_window", "layer_types"}


class NotKnownError(ConfigurationError):
    """A published configuration says something that we do not know, or does not say what it must."""


def settings_of(configuration: Mapping[str, Any], sequence_length: int | None = None) -> dict[str, Any]:
    """Return our settings of the group `model` for a published configuration, `sequence_length` and `name` left out.

    Raises NotKnownError that names the key for anything that we do not know, and for a window of attention that is
    shorter than `sequence_length` (None: than LONGEST_SAMPLE or what the model takes).
    """
    family = _family(configuration)
    _check_keys(configuration, family)
    given = {**family.defaults, **configuration}
    settings: dict[str, Any] = {"family": family.model_type, **family.fixed}
    for ours, theirs in family.keys.items():
        if ours in ("normalization_epsilon", "initialization_std"):
            settings[ours] = _number(given, theirs)
        elif theirs in given and given[theirs] is not None:
            settings[ours] = _whole(given, theirs)
        elif ours not in ("num_kv_heads", "ffn_hidden_size") or (ours == "ffn_hidden_size" and family.gated):
            raise NotKnownError(f"it has no {theirs}")
    settings.setdefault("ffn_hidden_size", 4 * settings["hidden_size"])
    settings["tied_embeddings"] = _truth(given, "tie_word_embeddings")
    settings["activation"] = _activation(given, family)
    _heads(settings, given, family)
    if settings["position_embedding"] == "rotary":
        settings |= _rotary(given, family)
    if family.model_type == "gpt_neox":
        settings["parallel_residual"] = _truth(given, "use_parallel_residual")
    if family.model_type.startswith("gemma"):
        settings["embedding_scale"] = math.sqrt(settings["hidden_size"])
    if "query_pre_attn_scalar" in given:
        settings["attention_scale"] = _number(given, "query_pre_attn_scalar") ** -0.5
    _check_window(given, sequence_length or sample_length(configuration))
    return settings


def sample_length(configuration: Mapping[str, Any]) -> int:
    """Return the default length of samples: as the model takes, and not above LONGEST_SAMPLE."""
    key = "n_positions" if configuration.get("model_type") == "gpt2" else "max_position_embeddings"
    longest = whole_number(configuration.get(key), least=1)
    return min(longest or LONGEST_SAMPLE, LONGEST_SAMPLE)


def _family(configuration: Mapping[str, Any]) -> Family:
    model_type = configuration.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise NotKnownError(f"model_type={model_type}: this family is not known; known are {', '.join(FAMILIES)}")
    family = FAMILIES[model_type]
    classes = configuration.get("architectures")
    if isinstance(classes, list) and classes and not any(
            isinstance(each, str) and (each == family.class_name or each == family.class_name.removesuffix(
                "ForCausalLM").removesuffix("LMHeadModel") + "Model") for each in classes):
        raise NotKnownError(f"architectures={classes}: of the family {model_type} only {family.class_name} is known")
    return family


def _check_keys(configuration: Mapping[str, Any], family: Family) -> None:
    known = (_INERT | _SHARED | set(family.inert) | set(family.keys.values()) | set(family.defaults)
             | set(family.activation_keys) | set(family.neutral)
             | (_ROTARY | _WINDOWS if family.fixed["position_embedding"] == "rotary" else set())
             | ({"head_dim"} if family.head_dim or family.fixed["position_embedding"] == "rotary" else set())
             | ({"attention_bias"} if family.attention_bias else set()))
    for key, value in configuration.items():
        if key not in known and value not in (None, False, "", [], {}):
            raise NotKnownError(f"{key}={_shown(value)}: nothing is known of this key in the family "
                                f"{family.model_type}, and it may change what the model computes")
    for key, values in family.neutral.items():
        value = configuration.get(key, family.defaults.get(key, values[0]))
        if value not in values:
            raise NotKnownError(f"{key}={_shown(value)}: models of the family {family.model_type} are known only with "
                                f"{' or '.join(_shown(each) for each in values)}")


def _heads(settings: dict[str, Any], given: Mapping[str, Any], family: Family) -> None:
    heads, hidden = settings["num_heads"], settings["hidden_size"]
    settings.setdefault("num_kv_heads", heads)
    if heads % settings["num_kv_heads"]:
        raise NotKnownError(f"num_key_value_heads={settings['num_kv_heads']} does not divide the {heads} heads")
    size = _whole(given, "head_dim") if given.get("head_dim") is not None else None
    if size is None and hidden % heads:
        raise NotKnownError(f"hidden_size={hidden} is not divided by the {heads} heads, and there is no head_dim")
    size = size or hidden // heads
    if size * heads != hidden and not family.head_dim:
        raise NotKnownError(f"head_dim={size}: in the family {family.model_type} it is hidden_size / heads")
    settings["head_size"] = size
    if family.attention_bias:
        bias = _truth(given, "attention_bias") if "attention_bias" in given else False
        settings["attention_bias"] = "all" if bias else "none"
    elif not settings["bias"]:
        settings.setdefault("attention_bias", "none")


def _activation(given: Mapping[str, Any], family: Family) -> str:
    name = next((given[key] for key in family.activation_keys if given.get(key) is not None), None)
    known = ACTIVATIONS[family.gated]
    if not isinstance(name, str) or name not in known:
        raise NotKnownError(f"{family.activation_keys[0]}={_shown(name)}: known are {', '.join(known)}")
    return known[name]


def _rotary(given: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Return the rotary settings, from either spelling: one key `rope_parameters`, or `rope_theta` and others."""
    parameters = _rotary_parameters(given)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", *_SCALING_KEYS):
        raise NotKnownError(f"rope_type={_shown(kind)}: known are default, {', '.join(_SCALING_KEYS)}")
    for key, value in parameters.items():
        if key not in _ROPE_KEYS | _SCALING_KEYS.get(kind, set()) and value is not None and not (
                kind == "default" and key == "factor" and value == 1.0):
            raise NotKnownError(f"{key}={_shown(value)} of the rotary positions: nothing is known of it for "
                                f"rope_type={kind}")
    base = _once(given, parameters, "rope_theta", family.base_key, 10000.0)
    fraction = _once(given, parameters, "partial_rotary_factor", family.fraction_key, family.fraction)
    found = {"rotary_base": _number({"rope_theta": base}, "rope_theta"),
             "rotary_fraction": _number({"partial_rotary_factor": fraction}, "partial_rotary_factor"),
             "rotary_scaling": "none" if kind == "default" else kind}
    if found["rotary_fraction"] != 1.0 and not family.partial_rotary:
        raise NotKnownError(f"partial_rotary_factor={_shown(fraction)}: heads of the family {family.model_type} are "
                            "known only as turned whole")
    if kind != "default":
        found["rotary_factor"] = _number(parameters, "factor")
    if kind == "llama3":
        found |= {"rotary_low_frequency_factor": _number(parameters, "low_freq_factor"),
                  "rotary_high_frequency_factor": _number(parameters, "high_freq_factor"),
                  "rotary_original_length": _whole(parameters, "original_max_position_embeddings")}
    return found


def _rotary_parameters(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what either spelling says of the kind of rotary positions; {} where neither does."""
    said: dict[str, Mapping[str, Any]] = {}
    for key in ("rope_scaling", "rope_parameters"):
        value = given.get(key)
        if value is not None and not isinstance(value, dict):
            raise NotKnownError(f"{key}={_shown(value)}: expected an object or null")
        if value:
            said[key] = value
    if len(said) == 2 and said["rope_scaling"] != said["rope_parameters"]:
        raise NotKnownError("rope_scaling and rope_parameters say different things, and releases of transformers "
                            "differ in which of them they take")
    return next(iter(said.values()), {})


def _once(given: Mapping[str, Any], parameters: Mapping[str, Any], name: str, spelled: str, default: float) -> Any:
    """Return a value that may stand in several places, which must be the same in all: releases differ in which counts.

    `spelled` is what the family calls `name` outside of `parameters`.
    """
    places = [(name, parameters.get(name)), (spelled, given.get(spelled)), (name, given.get(name))]
    value = next((value for _, value in places[:2] if value is not None), default)
    for key, other in places:
        if other is not None and other != value:
            raise NotKnownError(f"{key}={_shown(other)}: elsewhere it is {_shown(value)}, and releases of transformers "
                                "differ in which of the two they take")
    return value


def _check_window(given: Mapping[str, Any], sequence_length: int) -> None:
    """Refuse a window of attention within the sequence; a longer one is plain causal attention."""
    kinds = given.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or not set(map(str, kinds)) <= {"full_attention",
                                                                                          "sliding_attention"}):
        raise NotKnownError(f"layer_types={_shown(kinds)}: known are full_attention and sliding_attention")
    window = given.get("sliding_window")
    used = given.get("use_sliding_window", given["model_type"] not in ("qwen2", "qwen3"))
    full = set(kinds or ()) == {"full_attention"} and given["model_type"] not in _ONE_WINDOW
    if window is None or not used or full:
        return
    window = _whole(given, "sliding_window")
    if window < sequence_length:
        raise NotKnownError(f"sliding_window={window}: attention within a window is not known, and with samples of "
                            f"model.sequence_length={sequence_length} tokens it matters; set model.sequence_length to "
                            f"{window} or less")


def _whole(given: Mapping[str, Any], key: str) -> int:
    found = whole_number(given.get(key), least=1, most=_LARGEST)
    if found is None:
        raise NotKnownError(f"{key}={_shown(given.get(key))}: expected a whole number from 1")
    return found


def _number(given: Mapping[str, Any], key: str) -> float:
    found = number(given.get(key))
    if found is None or found <= 0:
        raise NotKnownError(f"{key}={_shown(given.get(key))}: expected a number above 0")
    return found


def _truth(given: Mapping[str, Any], key: str) -> bool:
    value = given.get(key)
    if not isinstance(value, bool):
        raise NotKnownError(f"{key}={_shown(value)}: expected true or false")
    return value


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
