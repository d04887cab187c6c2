"""What the launcher tells each rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.launch.rank.spare import Spare
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.supervision import Limits
from holmes_hpc.values import Plan
from holmes_hpc.values.disturbances import Disturbance
from holmes_hpc.values.timed import TimedPrices, step_seconds_here


@dataclass(frozen=True)
class RankSettings:
    """Everything that one rank is told.

    `cluster` is that of `config`, read once. `interfaces` gives this node's interface of each network; `host` is an
    address of rank 0's node that every node reaches; `counts_bytes` marks the rank that reports its node's byte
    counters; `peak_tflops` is what the rank's device can do. `rendezvous_path` is where rank 0 publishes its
    address, in a file that no earlier start can have left; `secret` is what ranks prove to each other that they are
    of this run, None where rank 0 makes it and leaves it in a file beside the address; `stop_requested` says
    whether this rank was told to save and stop. `shares_gpus`: several ranks may have one.
    `device_queues`: the hardware queues of its GPU that its streams share. `job_id` is that of a
    Slurm job, whose rank 0 writes job.json, and `restarts` how often it was requeued. `backend` is the
    communication library, None where the rank is to look for GPUs itself. `disturbances` act on this run, and
    `wait_for_links` (step, the most seconds) waits until those of a step act on the emulated links. `timed` are the
    prices of a wind tunnel's waits, None where the rank computes.
    """

    rank: int
    node: str
    slot: str
    plan: Plan
    config: Any
    cluster: ClusterDescription
    folder: RunFolder
    interfaces: Mapping[str, str]
    host: str
    peak_tflops: float
    emulated: bool
    counts_bytes: bool
    rendezvous_path: Path
    secret: bytes | None = field(default=None, repr=False)
    stop_requested: Callable[[], bool] = bool
    job_id: str | None = None
    restarts: int = 0
    backend: str | None = None
    shares_gpus: bool = False
    device_queues: int = 8
    disturbances: tuple[Disturbance, ...] = ()
    wait_for_links: Callable[[int, float], None] = lambda step, timeout_seconds: None
    tell: Callable[[Mapping[str, Any]], None] = lambda report: None
    spare: Spare = field(default_factory=Spare, repr=False)
    timed: TimedPrices | None = field(default=None, repr=False)

    @property
    def training_seconds(self) -> float:
        """The longest wait for another rank while training."""
        return Limits.of_train(self.config.train, step_seconds_here(self.plan, self.timed)).training_seconds

    @property
    def log_path(self) -> Path:
        """Where the rank's output goes."""
        return self.folder.log_path(self.rank)
