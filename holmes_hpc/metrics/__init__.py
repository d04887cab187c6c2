"""What a run measures: one row a step, from what every rank reports."""

from holmes_hpc.metrics.step import RankReport, StepMetrics
from holmes_hpc.metrics.stragglers import Stragglers
from holmes_hpc.metrics.usage import Usage

__all__ = ["RankReport", "StepMetrics", "Stragglers", "Usage"]
