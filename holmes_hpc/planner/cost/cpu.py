"""One core of this machine in the place of a GPU: emulated ranks compute on it."""

from __future__ import annotations

from holmes_hpc.planner.cost.work import Seconds, Work

CPU = "cpu"
MATRIX_SHARE = 0.6
LAUNCH_SECONDS = 25e-6
MEMORY_SHARE = 0.5
_KERNELS = (14, 34)


def cpu_layer_seconds(work: Work) -> Seconds:
    raise NotImplementedError


def cpu_head_seconds(work: Work) -> Seconds:
    raise NotImplementedError
