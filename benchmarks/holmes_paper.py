"""Holmes's published tables as the planner predicts them: three cells calibrate, the others are predicted.

Every figure here is an unverified recollection of the paper ([R] in every table that prints it), so that no test may
pass or fail on one. The structure is the paper's: two stages, tensor degree 1, micro-batch 4, fp16 gradients summed
behind the pipelines, blocking transfers, the tied table's gradient summed between the stages. The calibrated rates
stand in the cluster as links that a probe measured, the GPU's speed as one that finished runs corrected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import mean

from benchmarks.published import published_flops
from benchmarks.runs import Run, predicted_seconds
from benchmarks.trainers import MEGATRON_LLAMA
from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import ClusterDescription, Machine, Node
from holmes_hpc.cluster.calibrated import CalibratedGpu
from holmes_hpc.cluster.measured import MeasuredLink
from holmes_hpc.cluster.nics import NICS
from holmes_hpc.values import Synchronization

SOFTWARE = replace(MEGATRON_LLAMA, overlapped_collectives=False)
ETHERNET_GBPS = 25.0
"""One NIC of 25 Gb/s a node. Not calibrated: it is the fourth unknown."""
NETWORKS = ("InfiniBand", "RoCE", "Ethernet", "Hybrid")
NODES = (4, 6, 8)
TFLOPS = {"InfiniBand": (197, 188, 148), "RoCE": (160, 151, 145), "Ethernet": (122, 99, 83), "Hybrid": (149, 129, 112)}
"""Main table, group 1, TFLOP/s a GPU at 4, 6 and 8 nodes [R]."""
CALIBRATED = tuple((network, 4) for network in NETWORKS[:3])
CONTRADICTIONS = (
    "InfiniBand at 8 nodes (148): a step is (m + 1) c + m x + D with D nearly constant, and 4 and 6 nodes give "
    "0.58 s for each micro-batch, 6 and 8 nodes 0.12 s. From 4 and 6 follow 174 to 181 at 8.",
    "RoCE at 4, 6 and 8 nodes against Ethernet and Hybrid: its slope of 0.70 to 0.73 s for each micro-batch is larger "
    "than Ethernet's (0.52 to 0.57) and Hybrid's (0.51 to 0.60), on the same GPUs.",
    "Hybrid over RoCE falls from 0.93 to 0.77 with the nodes; any calibration on the 4-node cells makes it rise, "
    "because the sums take the same time while compute shrinks.",
    "Holmes in Figure 6 (190 to 199) against Holmes in the ablation (183), the same run.",
)
FIGURE_6 = {"Megatron-DeepSpeed": 1.68, "Megatron-LM": 1.40, "Megatron-LLaMA": 1.15}
"""Holmes over each framework, group 3 on 4 + 4 nodes, from the lengths of printed bars."""
ABLATION = {"Holmes": 183, "without the adaptive partition": 179, "without the overlapped optimizer": 170,
            "without both": 168, "Megatron-LM": 132}
"""TFLOP/s a GPU, group 3 on 4 + 4 nodes [R]."""


@dataclass(frozen=True)
class Calibration:
    """What the three cells fix: the GPU's time relative to the A100's constants, and what all NICs of a node give.

    `infiniband` and `roce` are 10^9 bit/s as a probe would find them, of which collectives reach `network_share`.
    """

    compute_scale: float
    infiniband: float
    roce: float


@dataclass(frozen=True)
class Cell:
    """One cell of the main table: published and predicted TFLOP/s a GPU."""

    network: str
    nodes: int
    published: float
    predicted: float

    @property
    def calibrated(self) -> bool:
        """Whether the cell fixed a constant."""
        return (self.network, self.nodes) in CALIBRATED

    @property
    def error_percent(self) -> float:
        """How far the prediction is above the published figure."""
        return 100 * (self.predicted / self.published - 1)


def model(hidden: int, layers: int) -> Architecture:
    """Return a model of the paper: rotary, SwiGLU of two thirds of the width, a tied table."""
    return Architecture(
        name=f"holmes-h{hidden}", num_layers=layers, hidden_size=hidden, num_heads=32, num_kv_heads=32,
        ffn_hidden_size=8 * hidden // 3, vocab_size=50304, sequence_length=2048, tied_embeddings=True,
        normalization="layernorm", activation="swiglu", position_embedding="rotary", rotary_base=10000.0, bias=True,
        normalization_epsilon=1e-5, initialization_std=0.02)


_WHOLE = Synchronization()
_OVERLAPPED = Synchronization(sharded=True, overlap_grad_reduce=True, overlap_param_gather=False,
                              bucket_mib=500e6 * 4 / 2**20)
"""An overlapped optimizer as the published code has it: buckets of 500 million elements are scattered under the last
backward, and parameters gathered in the open."""
_NICS = {"InfiniBand": ("hdr200", 8), "RoCE": ("roce200", 8), "Ethernet": ("eth25", 1)}
_SLOWEST, _FASTEST = 8.0, 1600.0
"""10^9 bit/s of a node, between which its rate is looked for."""
GROUP_1, GROUP_3 = (model(3072, 30), 768), (model(4096, 36), 1536)


def run(group: tuple[Architecture, int], nodes: int, layers: tuple[int, int] | None = None) -> Run:
    """Return a run of the paper on so many nodes of eight GPUs."""
    return Run(group[0], "a100-80g", group[1], micro_batch=4, pipeline=2, data=nodes * 8 // 2, software=SOFTWARE,
               stage_layers=layers)


@functools.lru_cache(maxsize=256)
def machine(network: str, nodes: int, calibration: Calibration) -> Machine:
    """Return the machine; `Hybrid` has its first half on InfiniBand and its second on RoCE, Ethernet between them."""
    halves = ("InfiniBand", "RoCE") if network == "Hybrid" else (network,)
    rates = {"InfiniBand": calibration.infiniband, "RoCE": calibration.roce}
    all_nodes = tuple(Node(slot=f"{name}/{i}", label=name, index=i, fabric=name, gpu="a100-80g", gpus=8, nic=nic,
                           nics=nics, ethernet_gbps=ETHERNET_GBPS)
                      for name in halves for nic, nics in (_NICS[name],) for i in range(nodes // len(halves)))
    links = tuple(MeasuredLink(NICS[nic].family, (name, name), (f"{name}/0", f"{name}/1"), rates[name] / nics,
                               NICS[nic].latency_us)
                  for name in halves if name in rates for nic, nics in (_NICS[name],))
    scale = calibration.compute_scale
    return Machine.described(ClusterDescription(
        f"{network} {nodes}", all_nodes, measured=links,
        calibrated=(CalibratedGpu("a100-80g", "float16", scale, scale, scale, 1),)))


def tflops(step: Run, seconds: float) -> float:
    """Return TFLOP/s a GPU as the paper counts, which is with a full recomputation that its runs do not make."""
    return published_flops(step.architecture, step.global_batch) / (seconds * step.gpus * 1e12)


def group_3(name: str, calibration: Calibration) -> float:
    """Return the predicted TFLOP/s a GPU of a row of the ablation, or of Megatron-LLaMA, on 4 + 4 nodes.

    The baselines have no group that knows its NICs, so that all their traffic takes Ethernet.
    """
    layers = (19, 17) if name in ("Holmes", "without the overlapped optimizer") else (18, 18)
    overlaps = name in ("Holmes", "without the adaptive partition", "Megatron-LLaMA")
    step = run(GROUP_3, 8, layers)
    seconds = predicted_seconds(step, machine("Hybrid", 8, calibration), _OVERLAPPED if overlaps else _WHOLE,
                                own_networks=not name.startswith("Megatron"))
    return tflops(step, seconds)


def calibrate() -> Calibration:
    """Return what meets the three homogeneous cells at 4 nodes; a fabric is at most as fast as 8 NICs of 200 Gb/s."""
    def reached(network: str) -> Callable[[Calibration], float]:
        step = TFLOPS[network][0]

        def error(calibration: Calibration) -> float:
            return predicted(network, 4, calibration) - step
        return error

    start = Calibration(1.0, _FASTEST, _FASTEST)
    scale = _root(lambda x: -reached("Ethernet")(replace(start, compute_scale=x)), 0.3, 3.0)
    fixed = replace(start, compute_scale=scale)
    infiniband = _root(lambda x: reached("InfiniBand")(replace(fixed, infiniband=x)), _SLOWEST, _FASTEST)
    roce = _root(lambda x: reached("RoCE")(replace(fixed, roce=x)), _SLOWEST, _FASTEST)
    return Calibration(scale, infiniband, roce)


def predicted(network: str, nodes: int, calibration: Calibration) -> float:
    """Return the predicted TFLOP/s a GPU of a cell of group 1."""
    step = run(GROUP_1, nodes, (16, 14) if network == "Hybrid" else None)
    return tflops(step, predicted_seconds(step, machine(network, nodes, calibration), _WHOLE, own_networks=True))


def cells(calibration: Calibration) -> Iterator[Cell]:
    """Yield the twelve cells of the main table."""
    for network in NETWORKS:
        for nodes, published in zip(NODES, TFLOPS[network], strict=True):
            yield Cell(network, nodes, published, predicted(network, nodes, calibration))


def mean_error_percent(table: list[Cell]) -> float:
    """Return the mean absolute error of the cells that fixed nothing."""
    return mean(abs(cell.error_percent) for cell in table if not cell.calibrated)


def _root(rises: Callable[[float], float], low: float, high: float) -> float:
    """Return where a rising function is nothing, or the nearer end, by bisection."""
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) < 0 else (low, middle)
    return (low + high) / 2
