"""Other trainers, described by their counts: they made the published steps that the planner is checked against.

Which figure a trainer has is read from its source and the defaults of its command line; none is fitted.
"""

from __future__ import annotations

from dataclasses import replace

from holmes_hpc.planner.software import ADAM_BYTES, Software

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
