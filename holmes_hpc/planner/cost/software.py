"""What the trainer's software does on the GPU: which operations are fused, what overlaps, what it moves.

The same GPU takes unlike times under unlike trainers. Predictions for this project use `ENGINE`; published
measurements are predicted with the trainer that made them. Every figure is a count or a documented default,
none is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Software:
    """How a trainer computes.

    `fused_attention`: scores never reach memory. `dropout`: masks are made and read. `fused_projections`: queries,
    keys and values (and gate and up) are one matrix product. `fused_bias`: the bias is added inside the product.
    `fused_activation`: SwiGLU's gate is one kernel. `forward_kernels`, `backward_kernels`: launches for a GPT layer;
    every collective counts as one more. `overlapped_collectives`: the backward's sums over tensor ranks run beside
    the weight gradients (not under sequence parallelism). `split_transfers`: tensor ranks each send a part of a
    stage's output, gathered behind the hop. `blocking_transfers`: a stage waits for its transfers.
    `optimizer_bytes`: bytes read and written for a parameter and step. `gradient_bytes`: bytes of a gradient
    that data-parallel ranks sum. `loss_bytes`: bytes moved for one logit by cross entropy, both directions.
    """

    name: str
    fused_attention: bool
    dropout: bool
    fused_projections: bool
    fused_bias: bool
    fused_activation: bool
    forward_kernels: int
    backward_kernels: int
    overlapped_collectives: bool
    split_transfers: bool
    blocking_transfers: bool
    optimizer_bytes: float
    gradient_bytes: int
    loss_bytes: float


_ADAM_BYTES = 28
"""Adam reads parameter, gradient and two moments and writes all but the gradient, in float32."""
_HALF_COPY_BYTES = 6
"""The float32 parameter read and its 16-bit copy written."""
_UNSCALE_NORM_CLIP_BYTES = 14
"""A 16-bit gradient read and written as float32, read for the norm, and zeroed: what fused optimizers save."""

ENGINE = Software(
    name="holmes_hpc",
    fused_attention=True, dropout=False, fused_projections=False, fused_bias=True, fused_activation=False,
    # Two norms, six products, the core, the activation, two sums; the backward does each product twice.
    forward_kernels=12, backward_kernels=22,
    overlapped_collectives=False, split_transfers=False, blocking_transfers=False,
    # AdamW of torch, the norm, clipping, and zeroing the float32 gradient.
    optimizer_bytes=_ADAM_BYTES + 4 + 8 + 4, gradient_bytes=4,
    loss_bytes=40,
)

MEGATRON_2021 = Software(
    name="Megatron-LM (SC'21)",
    fused_attention=False, dropout=True, fused_projections=True, fused_bias=False, fused_activation=True,
    # Norm, product, scores, softmax, dropout, context, copy, product, dropout and sum, norm, product, GELU,
    # product, dropout and sum; and what autograd and reshaping add.
    forward_kernels=16, backward_kernels=25,
    overlapped_collectives=False, split_transfers=True, blocking_transfers=True,
    optimizer_bytes=_ADAM_BYTES + _HALF_COPY_BYTES + _UNSCALE_NORM_CLIP_BYTES,
    # fp16 training sums gradients in fp16 unless --accumulate-allreduce-grads-in-fp32 is given.
    gradient_bytes=2,
    # Logits transposed and cast to float32; maximum, difference, exponential, sum, division; then the backward's
    # product and its cast back, transposed: 60 bytes; both reductions over the vocabulary run at half speed.
    loss_bytes=68,
)

MEGATRON_2022 = Software(**{**MEGATRON_2021.__dict__, "name": "Megatron-LM (2022)",
                            # --no-async-tensor-model-parallel-allreduce turned this default off.
                            "overlapped_collectives": True})

MEGATRON_DEEPSPEED = Software(**{**MEGATRON_2022.__dict__, "name": "Megatron-DeepSpeed",
                                 # Its fused Adam takes 16-bit gradients and unscales them on the way.
                                 "optimizer_bytes": _ADAM_BYTES + _HALF_COPY_BYTES})

MEGATRON_LLAMA = Software(**{**MEGATRON_2022.__dict__, "name": "Megatron-LLaMA",
                             "fused_attention": True, "dropout": False})
