"""Other trainers, described by their counts: they made the published steps that the planner is checked against.

Which figure a trainer has is read from its source and the defaults of its command line; none is fitted.
"""

from __future__ import annotations

from dataclasses import replace

from holmes_hpc.planner.software import ADAM_BYTES, ENGINE, Software

_UNSCALE_NORM_CLIP_BYTES = 14
"""A 16-bit gradient read and written as float32, read for the norm, and zeroed: what fused optimizers save."""

MEGATRON_2021 = Software(
    fused_attention=False, dropout=True, fused_projections=True, fused_bias=False, fused_activation=True,
    # Norm, product, scores, softmax, dropout, context, copy, product, dropout and sum, norm, product, GELU,
    # product, dropout and sum; and what autograd and reshaping add.
    forward_kernels=16, backward_kernels=25,
    overlapped_collectives=False, split_transfers=True, blocking_transfers=True,
    optimizer_bytes=ADAM_BYTES + _UNSCALE_NORM_CLIP_BYTES,
    # fp16 training sums gradients in fp16 unless --accumulate-allreduce-grads-in-fp32 is given.
    gradient_bytes=2,
    # Logits transposed and cast to float32; maximum, difference, exponential, sum, division; then the backward's
    # product and its cast back, transposed: 60 bytes; both reductions over the vocabulary run at half speed.
    loss_bytes=68,
)
"""Megatron-LM as of the SC'21 paper."""

MEGATRON_2022 = replace(MEGATRON_2021, overlapped_collectives=True)
"""Megatron-LM with sequence parallelism; --no-async-tensor-model-parallel-allreduce turned this default off."""

MEGATRON_DEEPSPEED = replace(MEGATRON_2022, optimizer_bytes=ADAM_BYTES)
"""Its fused Adam takes 16-bit gradients and unscales them on the way."""

MEGATRON_LLAMA = replace(MEGATRON_2022, fused_attention=True, dropout=False)
"""Megatron-LM with FlashAttention."""

MEGATRON_CORE = replace(MEGATRON_LLAMA, gradient_bytes=4)
"""Megatron-LM in bfloat16, which sums gradients in float32."""

BIGSCIENCE_FLOAT16 = replace(MEGATRON_DEEPSPEED, overlapped_collectives=False)
"""BigScience's branch of it, which left Megatron-LM in 2021."""

BIGSCIENCE_BFLOAT16 = replace(
    BIGSCIENCE_FLOAT16,
    # Gradients are summed in float32. Every micro-batch's are cast to it (read 2, write 4), added to the buffer (read
    # 8, write 4) and zeroed (2).
    gradient_bytes=4, accumulation_bytes=20,
)
"""The same with its optimizer for bfloat16, without ZeRO."""

BIGSCIENCE_SHARDED = replace(BIGSCIENCE_BFLOAT16, step_gather_bytes=2)
"""The same with ZeRO 1: whole gradients are summed, and parameters gathered behind the step."""

LLM_FOUNDRY = replace(
    ENGINE, fused_projections=True, gradient_bytes=2, full_shard=True,
    # Its core is FlashAttention in Triton: FlashAttention-2 is 1.3 to 2.5 times as fast (Dao 2023, section 4.1).
    attention_speed=1 / 1.8,
    # Logits cast to float32, log-softmax, its backward and the cast back; cast and log-softmax again for a metric.
    loss_bytes=58,
)
"""Composer's trainer with FSDP's full shards, parameters and gradients in bfloat16."""

TRAINERS = {
    "megatron_2021": MEGATRON_2021, "bigscience_float16": BIGSCIENCE_FLOAT16,
    "bigscience_bfloat16": BIGSCIENCE_BFLOAT16, "bigscience_sharded": BIGSCIENCE_SHARDED,
    "megatron_core": MEGATRON_CORE, "llm_foundry": LLM_FOUNDRY,
}
"""By the names that `tests/data/measured/public.csv` gives them."""
