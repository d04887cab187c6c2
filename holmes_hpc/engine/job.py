"""What a rank is told to train."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.data import Dataset
from holmes_hpc.engine.pace import Pace
from holmes_hpc.metrics import StepMetrics, Usage
from holmes_hpc.runs import RunFolder
from holmes_hpc.values import Plan
from holmes_hpc.values.timed import TimedPrices
from holmes_hpc.values.trackers import Tracker


@dataclass(frozen=True)
class Job:
    """Everything that a rank needs to train; `train` and `optimizer` are groups of the configuration.

    `say` tells the user a line; `stop_requested` says whether this rank was told to save and stop; `trackers` get the
    rows of the metrics on rank 0, beside the file that every run has; who opened them closes them. `pretrained`: folder
    of a published model whose weights training starts from. `pace`: what disturbs the rank on purpose, and when.
    `timed` are the prices of a wind tunnel's waits, and None where the rank computes; only a timed rank has no
    `dataset`.
    """

    plan: Plan
    rank: int
    architecture: Architecture
    dataset: Dataset | None
    communicator: Communicator
    folder: RunFolder
    metrics: StepMetrics
    usage: Usage
    train: Any
    optimizer: Any
    say: Callable[[str], None] = logging.getLogger(__name__).info
    stop_requested: Callable[[], bool] = bool
    trackers: Sequence[Tracker] = ()
    pretrained: str | None = None
    pace: Pace = field(default_factory=Pace)
    timed: TimedPrices | None = None
