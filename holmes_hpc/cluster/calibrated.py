"""How finished runs corrected the speed of GPU kinds: the file that `holmes calibrate` writes and `cluster.calibrated`
names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holmes_hpc.cluster.gpus import GPU_NAMES, PRECISIONS, TENSOR_FLOAT, Gpu
from holmes_hpc.cluster.records import ABOVE_ZERO, COUNT, FROM_ZERO, RecordFile, one_of

FORMAT_VERSION = 1

_FILE = RecordFile(
    "cluster.calibrated", "file of `holmes calibrate`", FORMAT_VERSION, "gpus",
    {"gpu": one_of(GPU_NAMES), "precision": one_of([name for name in PRECISIONS if name != TENSOR_FLOAT]),
     "slowdown": ABOVE_ZERO, "lowest": FROM_ZERO, "highest": ABOVE_ZERO, "actions": COUNT},
    "make it by `holmes calibrate RUN...`, or leave it out")


@dataclass(frozen=True)
class CalibratedGpu:
    """One GPU kind in one precision: its forwards and backwards take `slowdown` times what the model says.

    `lowest` and `highest` are the smallest and largest ratio of a stage, `actions` how many measured ones it rests on.
    """

    gpu: str
    precision: str
    slowdown: float
    lowest: float
    highest: float
    actions: int


def to_json(gpus: Sequence[CalibratedGpu], **further: Any) -> dict[str, Any]:
    """Return the content of the file; `further` are facts for people, such as the runs that it rests on."""
    return {"format": FORMAT_VERSION, **further, "gpus": [dataclasses.asdict(each) for each in gpus]}


def read_calibrated(path: str | None) -> tuple[CalibratedGpu, ...]:
    """Return the GPU kinds of `cluster.calibrated`; none where nothing is named. Raises ConfigurationError."""
    if path is None:
        return ()
    return tuple(CalibratedGpu(**each) for each in _FILE.read(path))


def calibrate_gpu(kind: Gpu, found: Sequence[CalibratedGpu]) -> Gpu:
    """Return a GPU kind with the slowdowns that were found for it."""
    slowdowns = {each.precision: each.slowdown for each in found if each.gpu == kind.name}
    return dataclasses.replace(kind, slowdowns=slowdowns) if slowdowns else kind
