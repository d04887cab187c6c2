"""The catalogue of GPUs: what the vendor's data sheet promises, without sparsity.

`peak_tflops` counts dense products with float32 accumulation, which is what PyTorch uses; `float32` is the
plain unit, `tf32` the tensor cores on float32 data. `memory_gib` is the number on the box.
`intra_node_gb_per_second` is one direction of one GPU to all others of its node together; vendors often print
the sum of both directions. PCIe counts as 16, 32 or 64 GB/s for generations 3, 4 and 5 with 16 lanes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from holmes_hpc.cluster.host import host_memory_gib, measured_speed
from holmes_hpc.cluster.lookup import find
from holmes_hpc.cluster.timed_units import OPTIMIZER, ProfiledUnit

TENSOR_FLOAT = "tf32"
"""What tensor cores make of float32: a peak of the data sheet, and no precision that a run is set to."""
PRECISIONS = ("float32", TENSOR_FLOAT, "float16", "bfloat16")

# gloo over the loopback interface moves about 4 Gbit/s before it fills two cores.
_LOOPBACK_GB_PER_SECOND = 0.5


@dataclass(frozen=True)
class Gpu:
    """One GPU kind. A precision that the hardware lacks is absent from `peak_tflops`."""

    name: str
    memory_gib: float
    peak_tflops: Mapping[str, float] = field(hash=False)
    memory_bandwidth_gb_per_second: float
    intra_node_gb_per_second: float
    slowdowns: Mapping[str, float] = field(default_factory=dict, hash=False)
    """by precision, what finished runs say: compute takes so many times what the cost model says"""
    profile: tuple[ProfiledUnit, ...] = ()
    """units of models that were timed on it"""

    def slowdown(self, precision: str) -> float:
        """Return how many times longer than modelled compute in a precision was found to take; 1 where nothing is."""
        return self.slowdowns.get(precision, 1.0)

    def slower(self, times: float) -> Gpu:
        """Return one whose forwards and backwards take so many times as long."""
        units = tuple(dataclasses.replace(each, forward_seconds=times * each.forward_seconds,
                                          backward_seconds=times * each.backward_seconds)
                      if each.unit != OPTIMIZER else each for each in self.profile)
        return dataclasses.replace(self, slowdowns={each: times * self.slowdown(each) for each in PRECISIONS},
                                   profile=units)


def _gpu(name: str, memory_gib: float, float32: float, tf32: float | None, float16: float,
         bfloat16: float | None, bandwidth: float, intra: float) -> Gpu:
    peaks = {"float32": float32, "tf32": tf32, "float16": float16, "bfloat16": bfloat16}
    return Gpu(name, memory_gib, {precision: peak for precision, peak in peaks.items() if peak is not None},
               bandwidth, intra)


_CATALOGUE = (
    #    name         GiB  float32  tf32   float16  bfloat16  GB/s  intra-node
    # NVIDIA A100 data sheet, SXM4 (NVLink 600 GB/s in both directions); a100-pcie: PCIe card of 80 GB.
    _gpu("a100-40g",   40,   19.5, 156.0,   312.0,   312.0,  1555,   300),
    _gpu("a100-80g",   80,   19.5, 156.0,   312.0,   312.0,  2039,   300),
    _gpu("a100-pcie",  80,   19.5, 156.0,   312.0,   312.0,  1935,    32),
    # NVIDIA A800 data sheet, SXM: an A100 with NVLink 400 GB/s.
    _gpu("a800-80g",   80,   19.5, 156.0,   312.0,   312.0,  2039,   200),
    # NVIDIA H100 architecture white paper, SXM5 and PCIe; H800: NVLink 400 GB/s.
    _gpu("h100",       80,   66.9, 494.7,   989.4,   989.4,  3350,   450),
    _gpu("h100-pcie",  80,   51.2, 378.0,   756.0,   756.0,  2000,    64),
    _gpu("h800",       80,   66.9, 494.7,   989.4,   989.4,  3350,   200),
    # NVIDIA H200 data sheet, SXM.
    _gpu("h200",      141,   66.9, 494.7,   989.4,   989.4,  4800,   450),
    # NVIDIA DGX B200 data sheet, an eighth of the system.
    _gpu("b200",      180,   75.0, 1125.0, 2250.0,  2250.0,  8000,   900),
    # NVIDIA V100 data sheet, SXM2 (NVLink 300 GB/s) of 32 and 16 GB; P100 data sheet, SXM2.
    _gpu("v100",       32,   15.7,  None,   125.0,    None,   900,   150),
    _gpu("v100-16g",   16,   15.7,  None,   125.0,    None,   900,   150),
    _gpu("p100",       16,   10.6,  None,    21.2,    None,   732,    80),
    # NVIDIA T4 data sheet; Quadro RTX 8000 data sheet and Turing architecture white paper.
    _gpu("t4",         16,    8.1,  None,    65.0,    None,   320,    16),
    _gpu("rtx8000",    48,   16.3,  None,   130.5,    None,   672,    16),
    # NVIDIA A10, A30, A40, RTX A6000, L4 and L40S data sheets.
    _gpu("a10",        24,   31.2,  62.5,   125.0,   125.0,   600,    32),
    _gpu("a30",        24,   10.3,  82.0,   165.0,   165.0,   933,    32),
    _gpu("a40",        48,   37.4,  74.8,   149.7,   149.7,   696,    32),
    _gpu("a6000",      48,   38.7,  77.4,   154.8,   154.8,   768,    32),
    _gpu("l4",         24,   30.3,  60.0,   121.0,   121.0,   300,    32),
    _gpu("l40s",       48,   91.6, 183.0,   362.0,   362.0,   864,    32),
    # NVIDIA GA102 (3080 Ti, 3090) and Ada (4090) white papers; float16 with float32 accumulation is half of
    # the float16 figure with float16 accumulation.
    _gpu("3080ti",     12,   34.1,  34.1,    68.2,    68.2,   912,    32),
    _gpu("3090",       24,   35.6,  35.6,    71.2,    71.2,   936,    32),
    _gpu("4090",       24,   82.6,  82.6,   165.2,   165.2,  1008,    32),
    # AMD MI250X data sheet, halved: a module has two dies, and Slurm and PyTorch count a die as a GPU.
    # Infinity Fabric 800 GB/s a module in both directions.
    _gpu("mi250x",     64,   47.9,  None,   191.5,   191.5,  1638,   200),
    # AMD MI300X data sheet (Infinity Fabric: 7 links of 128 GB/s in both directions).
    _gpu("mi300x",    192,  163.4, 653.7,  1307.4,  1307.4,  5300,   448),
)

GPUS: Mapping[str, Gpu] = MappingProxyType({kind.name: kind for kind in _CATALOGUE})
GPU_NAMES: tuple[str, ...] = (*GPUS, "cpu")


def gpu(name: str, path: str = "gpu") -> Gpu:
    """Return the GPU kind of this name; `cpu` is one core of this machine, measured on first use.

    `path` is the setting that named it. Raises ConfigurationError with the near match and all names.
    """
    check_gpu(name, path)
    return _this_cpu() if name == "cpu" else GPUS[name]


def check_gpu(name: str, path: str = "gpu") -> None:
    """Raise ConfigurationError as `gpu` does where the name is unknown, without measuring anything."""
    find(dict.fromkeys(GPU_NAMES), name, "GPU kind", path)


def _this_cpu() -> Gpu:
    """Return one core with the whole machine's memory; 16-bit products gain nothing on most CPUs."""
    speed = measured_speed()
    return Gpu("cpu", host_memory_gib(), dict.fromkeys(PRECISIONS, speed.matmul_gflops / 1000),
               speed.copy_gb_per_second, _LOOPBACK_GB_PER_SECOND)
