"""The constants of the cost model: one set for each GPU kind, each with its source.

Fitted constants (`benchmarks/fit_constants.py` and `benchmarks/left_out.py` find them again):
- `matrix_share` and `ramp` of the A100, on the 8 rows of Korthikanti et al. 2022, Table 5: 0.829 and 306; and
  `matrix_share` on these and the public series of other trainers and sites: 0.777 with
  and 0.800 without those that their hosts slowed down (see `docs/accuracy.md`). Taken is about the mean of both.
- `matrix_share` of H100 and H800, V100, and MI250X, on their public series;
- `LAUNCH_SECONDS`, on the single-node rows of hidden size 1024, tensor degree 1, micro-batch 1 (128 rows).
All others are documented physics, or are carried over from the A100 where nothing was measured. Figures of public
benchmarks are recollections: they were not looked up again. `OVERLAPPED_COST` is an assumption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True)
class GpuConstants:
    """How a GPU kind falls short of its data sheet.

    `processors`: streaming multiprocessors (compute units), over which tiles of a product are dealt in waves.
    `matrix_share`: share of the peak inside a wave of the largest tiles. `ramp`: products of inner size K take the
    time of K + ramp (prologue and epilogue of a tile). `memory_share`: share of the memory bandwidth that
    elementwise kernels reach. `attention_share`: share of the peak of a fused attention core, whose backward takes
    2.5 times the operations. `ring_share`: share of the link inside a node that a ring of large messages reaches.
    `fixed_gib`: memory of the device context, the libraries' workspaces, and the communication library with as many
    communicators as `COMMUNICATORS_INCLUDED`.
    """

    processors: int
    matrix_share: float
    ramp: float
    memory_share: float
    attention_share: float
    ring_share: float
    fixed_gib: float = 2.0


_A100 = GpuConstants(
    processors=108,        # NVIDIA A100 white paper
    matrix_share=0.81,     # fitted: Korthikanti et al. and public series
    ramp=306.0,            # fitted: Korthikanti et al.
    memory_share=0.87,     # stream benchmarks on A100 80 GB: 1.75 to 1.8 of 2.04 TB/s
    attention_share=0.55,  # FlashAttention-2 (Dao 2023), figures for A100, forward and backward, causal
    ring_share=0.76,       # all-reduce of 1 GB over 8 A100: 228 GB/s of 300 (NCCL tests; vTrain's table: 229)
)


def _like_a100(processors: int, *, matrix_share: float = _A100.matrix_share, ring_share: float = _A100.ring_share,
               memory_share: float = _A100.memory_share, attention_share: float = _A100.attention_share
               ) -> GpuConstants:
    return replace(_A100, processors=processors, matrix_share=matrix_share, ring_share=ring_share,
                   memory_share=memory_share, attention_share=attention_share)


_PCIE_RING = 0.6
"""Rings over PCIe through the host's memory: about 60 % of a link with 16 lanes in public NCCL tests."""

COMMUNICATORS_INCLUDED = 8
"""Of a rank's communicators: what a rank of one pipeline has (tensor group, two an edge, sums in two levels)."""

CONSTANTS: Mapping[str, GpuConstants] = MappingProxyType({
    # Processors: vendors' white papers. Shares without a remark: carried over from the A100.
    "a100-40g": _A100,
    "a100-80g": _A100,
    "a100-pcie": _like_a100(108, ring_share=_PCIE_RING, matrix_share=0.75),  # 300 W
    "a800-80g": _A100,
    # Hopper under its power limit for days: matrix share fitted on llm-foundry's and FlagPerf's runs. Attention: 335
    # TFLOP/s of FlashAttention-2 on it (Dao 2023). Memory: elementwise kernels reach a smaller share of HBM3.
    "h100": _like_a100(132, matrix_share=0.6, attention_share=0.33, memory_share=0.8),
    "h100-pcie": _like_a100(114, matrix_share=0.55, attention_share=0.33, memory_share=0.8, ring_share=_PCIE_RING),
    "h800": _like_a100(132, matrix_share=0.6, attention_share=0.33, memory_share=0.8),
    "h200": _like_a100(132, matrix_share=0.6, attention_share=0.33, memory_share=0.8),  # the H100's processors
    "b200": _like_a100(148, matrix_share=0.6, attention_share=0.33, memory_share=0.8),  # carried over from the H100
    # Volta without asynchronous copies; matrix share fitted on Jean Zay's and Megatron's runs. Its core has no fused
    # attention of the second kind.
    "v100": _like_a100(80, matrix_share=0.67, attention_share=0.3),
    "v100-16g": _like_a100(80, matrix_share=0.67, attention_share=0.3),
    "p100": _like_a100(56, matrix_share=0.8, memory_share=0.75, attention_share=0.3),
    # 70 W: the clock falls under load to about 40 % of the peak's.
    "t4": _like_a100(40, matrix_share=0.4, memory_share=0.8, attention_share=0.25, ring_share=_PCIE_RING),
    "rtx8000": _like_a100(72, matrix_share=0.7, attention_share=0.3, ring_share=_PCIE_RING),
    "a10": _like_a100(72, matrix_share=0.6, ring_share=_PCIE_RING),   # 150 W
    "a30": _like_a100(56, matrix_share=0.75, ring_share=_PCIE_RING),
    "a40": _like_a100(84, matrix_share=0.75, ring_share=_PCIE_RING),
    "a6000": _like_a100(84, matrix_share=0.75, ring_share=_PCIE_RING),
    "l4": _like_a100(58, matrix_share=0.5, ring_share=_PCIE_RING),    # 72 W
    "l40s": _like_a100(142, matrix_share=0.65, ring_share=_PCIE_RING),
    "3080ti": _like_a100(80, ring_share=_PCIE_RING),
    "3090": _like_a100(82, ring_share=_PCIE_RING),
    "4090": _like_a100(128, ring_share=_PCIE_RING),
    # AMD: MI250X fitted on LUMI's runs; MI300X 55 % of the peak in public hipBLASLt benchmarks.
    "mi250x": _like_a100(110, matrix_share=0.46, memory_share=0.8, attention_share=0.3, ring_share=0.6),
    "mi300x": _like_a100(304, matrix_share=0.55, memory_share=0.8, attention_share=0.35, ring_share=0.6),
})

TILES: Mapping[tuple[int, int], float] = MappingProxyType({
    (256, 128): 1.0, (128, 256): 1.0, (128, 128): 0.93, (256, 64): 0.87, (64, 256): 0.87, (128, 64): 0.8,
    (64, 128): 0.8, (64, 64): 0.65,
})
"""Tiles of a matrix product (rows, columns) and their speed relative to the largest: a tile of m x n reads m + n
lines for m n results, and fewer results hide less of the latency. Assumed, not fitted."""
ALIGNED = 8
"""Elements of 16 bit that a thread loads at once (16 bytes)."""
ALIGNMENT_SPEED: Mapping[int, float] = MappingProxyType({8: 1.0, 4: 0.8, 2: 0.5, 1: 0.5})
"""Speed of a product whose lines begin at multiples of so many elements only. Assumed, not fitted: padding a
vocabulary of 50,257 to 50,304 is known to save a quarter of a GPT-2's step, of which a third is the head."""
UNALIGNED_BATCH_SPEED = 1 / 8
"""The same of the many small products of an attention core, which then run without tensor cores. Fixed by Jean
Zay's two runs with heads of 150."""
SPLITS = (1, 2, 4, 8)
"""Parts of the inner size that separate processors may sum; the parts are then added in float32."""
SHORTEST_SPLIT = 512

LAUNCH_SECONDS = 56.4e-6
"""CPU time of Python and the launch for each kernel. Fitted: see above."""
COLLECTIVE_LAUNCH_SECONDS = 25e-6
"""From the launch of a collective to its first byte: an empty all-reduce in NCCL's own tests."""
RING_STEP_SECONDS = 3.4e-6
"""One step of a ring inside a node (NCCL's own tuning table, simple protocol over NVLink)."""
NETWORK_SHARE: Mapping[str, float] = MappingProxyType({"ethernet": 0.94, "opa": 0.5})
"""Share of a NIC's rate that large messages reach: TCP's and Ethernet's headers; Omni-Path's messages are made by
the host's processors (fixed by Jean Zay's runs of one model in 2 and in 12 stages, whose sums differ sixfold)."""
NETWORK_SHARE_ELSE = 0.8
"""The same for collectives over RDMA: 80 % of the sum of a node's NICs in NCCL tests on 8 HDR NICs."""
_LOOPBACK_SHARE = 0.75
"""gloo over the loopback interface while the same cores compute."""
OVERLAPPED_COST = 0.5
"""Share of a collective's time that remains when it runs beside products: it takes processors and bandwidth."""


def constants(gpu: str) -> GpuConstants:
    """Return the constants of a GPU kind; for `cpu`, see `cpu.py`. Raises KeyError for an unknown kind."""
    return CONSTANTS[gpu]


def local_share(gpu: str) -> float:
    """Return the share of the link inside a node that large messages reach; on CPUs, of the loopback interface."""
    return CONSTANTS[gpu].ring_share if gpu in CONSTANTS else _LOOPBACK_SHARE


def network_share(network: str) -> float:
    """Return the share of a network's rate that large messages reach."""
    return NETWORK_SHARE.get(network, NETWORK_SHARE_ELSE)
