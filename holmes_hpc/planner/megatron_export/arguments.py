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
    if model.num_kv_heads != model.num_heads:
        found += [("--group-query-attention",), ("--num-query-groups", str(model.num_kv_heads))]
    found += [
        ("--seq-length", str(model.sequence_length)),
        ("--max-position-embeddings", str(model.sequence_length)),
        ("--normalization", NORMALIZATIONS[model.normalization]),
        ("--norm-epsilon", f"{model.normalization_epsilon:g}"),
    ]
    if model.position_embedding == "rotary":
        found += [("--position-embedding-type", "rope"), ("--rotary-base", f"{model.rotary_base:.0f}")]
    else:
        found.append(("--position-embedding-type", "learned_absolute"))
    found += ACTIVATIONS[model.activation]
    if not model.bias:
        found.append(("--disable-bias-linear",))
    if not tied_embeddings:
        found.append(("--untie-embeddings-and-output-weights",))
    return [*found, ("--init-method-std", f"{model.initialization_std:g}"), ("--attention-dropout", "0"),
            ("--hidden-dropout", "0"), ("--make-vocab-size-divisible-by", "1")]
