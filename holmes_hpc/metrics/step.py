"""The metrics of a step, summed up over the reports of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.metrics.wind_tunnel import timed_row
from holmes_hpc.values import Plan
from holmes_hpc.values.timed import TimedPrices

NOT_MEASURED = -1.0
"""Stands for a byte counter that this rank does not report."""

BY_RANK_EVERY = 50
"""Steps between rows that hold figures of every rank; the last row has them too."""


@dataclass(frozen=True)
class RankReport:
    """What one rank reports of a step; seconds, GiB, and bytes that its node sent (first rank of a node only).

    `stop` is 1 where the rank was told to save and stop; `own_seconds` is the time since the last report that the rank
    spent outside collectives and transfers. `busy_ethernet` and `busy_fabric` are the seconds since then in which bytes
    waited in the node's NICs. `late_mean_seconds` and `late_worst_seconds`: how late a timed rank has woken up.
    """

    loss: float
    receive_wait_seconds: float
    exposed_comm_seconds: float
    memory_gib: float
    bytes_ethernet: float = NOT_MEASURED
    bytes_fabric: float = NOT_MEASURED
    stop: float = 0.0
    own_seconds: float = 0.0
    busy_ethernet: float = 0.0
    busy_fabric: float = 0.0
    late_mean_seconds: float = 0.0
    late_worst_seconds: float = 0.0

    @classmethod
    def length(cls) -> int:
        """Return how many numbers a report has."""
        return len(fields(cls))

    def row(self) -> list[float]:
        """Return the report as numbers, in field order."""
        return list(astuple(self))


@dataclass(frozen=True)
class StepMetrics:
    """Turns the ranks' reports into a row of `metrics.jsonl`.

    TFLOPS count the model's floating-point operations (no recomputation). `peak_tflops` is what one rank's device
    can do; on a CPU it is the measured matrix-product peak of the cores that the rank has to itself. In a wind tunnel
    (`timed`) seconds and bytes are those of the cluster, and what nobody computed is null.
    """

    plan: Plan
    architecture: Architecture
    peak_tflops: float
    emulated: bool
    timed: TimedPrices | None = None

    def row(self, step: int, reports: Sequence[RankReport], *, step_seconds: float, grad_norm: float,
            learning_rate: float) -> dict[str, Any]:
        """Return the row of `step`; means and the maximum are over ranks, bytes are sums over nodes."""
        samples, ranks = self.plan.global_batch_size, len(reports)
        tokens = samples * self.architecture.sequence_length
        step_seconds = step_seconds if self.timed is None else step_seconds / self.timed.dilation
        flops = self.architecture.model_flops_per_sample() * samples
        tflops = flops / step_seconds / self.plan.world_size / 1e12
        row = {
            "step": step,
            "loss": sum(report.loss for report in reports),
            "tokens": tokens,
            "samples": samples,
            "step_seconds": step_seconds,
            "tokens_per_second": tokens / step_seconds,
            "samples_per_second": samples / step_seconds,
            "tflops_per_gpu": tflops,
            "mfu": tflops / self.peak_tflops,
            "grad_norm": grad_norm,
            "lr": learning_rate,
            "memory_gib": max(report.memory_gib for report in reports),
            "bytes_ethernet": _total([report.bytes_ethernet for report in reports]),
            "bytes_fabric": _total([report.bytes_fabric for report in reports]),
            "exposed_comm_seconds": sum(report.exposed_comm_seconds for report in reports) / ranks,
            "bubble_fraction": sum(report.receive_wait_seconds for report in reports) / ranks / step_seconds,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "emulated": self.emulated,
        }
        if self.timed is None:
            return row
        worst = max(report.late_worst_seconds for report in reports)
        mean = sum(report.late_mean_seconds for report in reports) / ranks
        return timed_row(row, worst, mean, self.plan, self.timed)


def by_rank(reports: Sequence[RankReport]) -> dict[str, list[Any]]:
    """Return what a row holds now and then: the most memory that each rank has used so far, what each node sent.

    The bytes of a node stand at its first rank, null at the others; a network that no node counts has no list.
    """
    sent = {"bytes_ethernet_per_rank": [report.bytes_ethernet for report in reports],
            "bytes_fabric_per_rank": [report.bytes_fabric for report in reports]}
    counted = {name: [None if value == NOT_MEASURED else int(value) for value in values]
               for name, values in sent.items() if any(value != NOT_MEASURED for value in values)}
    return {"memory_gib_per_rank": [round(report.memory_gib, 3) for report in reports], **counted}


def _total(values: Sequence[float]) -> int | None:
    measured = [value for value in values if value != NOT_MEASURED]
    return int(sum(measured)) if measured else None
