"""The command-line arguments of Megatron-LM that a plan decides, by their names in `megatron/training/arguments.py`."""

from __future__ import annotations

from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.planner.megatron_export.mapping import Grid
from holmes_hpc.values import Plan

NORMALIZATIONS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
"""Megatron's names of normalisations."""
ACTIVATIONS: dict[str, tuple[tuple[str, ...], ...]] = {"gelu": (), "swiglu": (("--swiglu",),)}
"""The arguments of an activation."""
_LLAMA3 = {"rotary_low_frequency_factor": 1.0, "rotary_high_frequency_factor": 4.0, "rotary_original_length": 8192}
"""What Megatron's scaled rotary positions have fixed."""
WITHOUT: dict[str, tuple[object, ...]] = {
    "norm_order": ("before",), "parallel_residual": (False,), "embedding_scale": (1.0,), "attention_scale": (None,),
    "query_key_norm": ("none", "head"), "attention_bias": (None, "qkv"),
}
"""Settings of a model that no argument of Megatron-LM stands for, with those of their values that need none."""


def plan_arguments(config: Any, plan: Plan, grid: Grid) -> list[tuple[str, ...]]:
    """Return what the plan decides: degrees, layers by stage, batch, recomputation, overlap, precision."""
    found: list[tuple[str, ...]] = [
        ("--tensor-model-parallel-size", str(grid.tensor)),
        ("--pipeline-model-parallel-size", str(grid.pipeline)),
    ]
    if grid.layout is not None:
        found.append(("--pipeline-model-parallel-layout", grid.layout))
    elif grid.chunks > 1:
        found.append(("--num-virtual-stages-per-pipeline-rank", str(grid.chunks)))
    if grid.pipelines_first:
        found.append(("--use-tp-pp-dp-mapping",))
    found += [("--micro-batch-size", str(plan.micro_batch_size)), ("--global-batch-size", str(plan.global_batch_size))]
    if plan.sequence_parallel:
        found.append(("--sequence-parallel",))
    if plan.recompute != "none":
        found.append(("--recompute-granularity", plan.recompute))
    if plan.recompute == "full":
        found += [("--recompute-method", "uniform"), ("--recompute-num-layers", "1")]
    return [*found, *_synchronization(plan), *_precision(config)]


def _precision(config: Any) -> list[tuple[str, ...]]:
    """Return the precision as our engine has it: gradients are added up and summed over ranks in float32.

    Megatron does that of itself for bfloat16 alone. For float16 the loss scale starts, grows and shrinks alike; a
    hysteresis of 1 halves it at every overflow.
    """
    precision = str(config.train.precision)
    if precision == "float32":
        return []
    found: list[tuple[str, ...]] = [({"bfloat16": "--bf16", "float16": "--fp16"}[precision],),
                                    ("--accumulate-allreduce-grads-in-fp32",)]
    if precision == "float16":
        found += [("--initial-loss-scale", f"{config.train.loss_scale:.15g}"),
                  ("--loss-scale-window", str(config.train.loss_scale_window)), ("--hysteresis", "1")]
    return found


def _synchronization(plan: Plan) -> list[tuple[str, ...]]:
    """Return the optimizer's arguments; Megatron overlaps gathers only where it overlaps reductions as well."""
    how = plan.synchronization
    found: list[tuple[str, ...]] = [("--use-distributed-optimizer",)] if how.sharded else []
    if how.overlap_grad_reduce:
        found += [("--overlap-grad-reduce",), ("--ddp-bucket-size", f"{how.bucket_mib * 2**20 / 4:.0f}")]
        found += [("--overlap-param-gather",)] if how.sharded and how.overlap_param_gather else []
    return found


def model_arguments(model: Architecture, tied_embeddings: bool) -> list[tuple[str, ...]]:
    """Return the architecture. The vocabulary is the tokenizer's, padded to a multiple of the tensor degree alone."""
    found: list[tuple[str, ...]] = [
        ("--num-layers", str(model.num_layers)),
        ("--hidden-size", str(model.hidden_size)),
        ("--ffn-hidden-size", str(model.ffn_hidden_size)),
        ("--num-attention-heads", str(model.num_heads)),
    ]
    if model.query_size != model.hidden_size:
        found.append(("--kv-channels", str(model.head_size)))
    if model.num_kv_heads != model.num_heads:
        found += [("--group-query-attention",), ("--num-query-groups", str(model.num_kv_heads))]
    found += [
        ("--seq-length", str(model.sequence_length)),
        ("--max-position-embeddings", str(model.max_positions)),
        ("--normalization", NORMALIZATIONS[model.normalization]),
        ("--norm-epsilon", f"{model.normalization_epsilon:g}"),
    ]
    if model.position_embedding == "rotary":
        found += [("--position-embedding-type", "rope"), ("--rotary-base", f"{model.rotary_base:.0f}")]
        found += _rotary_arguments(model)
    else:
        found.append(("--position-embedding-type", "learned_absolute"))
    found += ACTIVATIONS[model.activation]
    if not model.bias:
        found.append(("--disable-bias-linear",))
    if not model.bias and model.attention_bias == "qkv":
        found.append(("--add-qkv-bias",))
    if model.query_key_norm == "head":
        found.append(("--qk-layernorm",))
    if not tied_embeddings:
        found.append(("--untie-embeddings-and-output-weights",))
    return [*found, ("--init-method-std", f"{model.initialization_std:g}"), ("--attention-dropout", "0"),
            ("--hidden-dropout", "0"), ("--make-vocab-size-divisible-by", "1")]


def _rotary_arguments(model: Architecture) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    if model.rotary_fraction != 1.0:
        found.append(("--rotary-percent", f"{model.rotary_fraction:g}"))
    if model.rotary_scaling == "linear":
        found.append(("--rotary-seq-len-interpolation-factor", f"{model.rotary_factor:g}"))
    if model.rotary_scaling == "llama3":
        found += [("--use-rope-scaling",), ("--rope-scaling-factor", f"{model.rotary_factor:g}")]
    return found


def unknown_to_megatron(model_config: Any) -> str | None:
    """Return the first setting of a model that Megatron-LM has not, with the values that it has; None for none."""
    for key, values in WITHOUT.items():
        alike = key == "attention_bias" and model_config[key] == ("all" if model_config.bias else "none")
        if model_config[key] not in values and not alike:
            return f"model.{key}={model_config[key]}: Megatron-LM has none of it; it has {_words(values)}"
    if model_config.bias and model_config.attention_bias == "qkv":
        return "model.attention_bias=qkv beside model.bias=true: Megatron-LM has biases everywhere or of these alone"
    if model_config.rotary_scaling == "llama3":
        for key, value in _LLAMA3.items():
            if model_config[key] != value:
                return f"model.{key}={model_config[key]}: Megatron-LM has {value:g} alone"
    if model_config.rotary_scaling == "linear" and model_config.rotary_factor % 1:
        return f"model.rotary_factor={model_config.rotary_factor:g}: Megatron-LM has whole factors"
    return None


def _words(values: tuple[object, ...]) -> str:
    return " or ".join("null" if value is None else str(value).lower() for value in values)
