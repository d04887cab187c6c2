"""What the trainer's software does on the GPU: which operations are fused, what overlaps, what it moves.

The same GPU takes unlike times under unlike trainers. What trains is a part of the task: plans are for this project's
`ENGINE`, and any other trainer is a value of its counts. Every figure is a count or a documented default, none is
fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

ADAM_BYTES = 28
"""Adam reads parameter, gradient and two moments and writes all but the gradient, in float32."""


@dataclass(frozen=True)
class Software:
    """How a trainer computes.

    `fused_attention`: scores never reach memory. `dropout`: masks are made and read. `fused_projections`: queries,
    keys and values (and gate and up) are one matrix product. `fused_bias`: the bias is added inside the product.
    `fused_activation`: SwiGLU's gate is one kernel. `forward_kernels`, `backward_kernels`: launches for a GPT layer;
    every collective counts as one more. `overlapped_collectives`: the backward's sums over tensor ranks run beside
    the weight gradients (not under sequence parallelism). `split_transfers`: tensor ranks each send a part of a
    stage's output, gathered behind the hop. `blocking_transfers`: a stage waits until what it sends has moved.
    `optimizer_bytes`: bytes of Adam's step for a parameter, all that runs over gradients before it included, at 16
    bit without the copy of the parameter. `gradient_bytes`: bytes of a gradient that data-parallel ranks keep and
    sum. `loss_bytes`: bytes moved for one logit by cross entropy, both directions. `accumulation_bytes`: bytes that
    each micro-batch moves for a parameter to add its gradient to the buffer, where the product itself does not.
    `full_shard`: parameters lie in shards (ZeRO-3, FSDP), so that every micro-batch gathers them for its forward and
    its backward and scatters the sum of their gradients, beside its compute. `step_gather_bytes`: bytes for each
    parameter that ranks gather behind the optimizer's step, where each updated a shard. `attention_speed`: of a fused
    core, relative to FlashAttention-2, of which GPUs' constants say the speed.
    """

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
    accumulation_bytes: float = 0.0
    full_shard: bool = False
    step_gather_bytes: float = 0.0
    attention_speed: float = 1.0


ENGINE = Software(
    fused_attention=True, dropout=False, fused_projections=False, fused_bias=True, fused_activation=False,
    # Two norms, six products, the core, the activation, two sums; the backward does each product twice.
    forward_kernels=12, backward_kernels=22,
    overlapped_collectives=False, split_transfers=False, blocking_transfers=False,
    # AdamW of torch, the norm, clipping, and zeroing the float32 gradient.
    optimizer_bytes=ADAM_BYTES + 4 + 8 + 4, gradient_bytes=4,
    loss_bytes=40,
)
