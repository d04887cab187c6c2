"""How far predicted seconds may be off: by what the figures of a GPU kind rest on.

The figures are root mean squares of errors of published steps, each predicted by constants that other series of runs
fixed (`benchmarks/left_out.py`, which a test compares): about two thirds of the steps lie within.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from holmes_hpc.cluster.calibrated import CalibratedGpu

PRIOR, FITTED, CALIBRATED, PROFILED = "prior", "fitted", "calibrated", "profiled"
FITTED_PERCENT: Mapping[str, float] = MappingProxyType({
    **dict.fromkeys(("a100-40g", "a100-80g"), 9.0), "a800-80g": 3.0, **dict.fromkeys(("h100", "h800"), 5.0),
    **dict.fromkeys(("v100", "v100-16g"), 28.0), "mi250x": 16.0})
"""GPU kinds whose constants published steps fixed."""
PRIOR_PERCENT = 25.0
"""Of all others: what the kinds above were off by, at most, before any of their steps was known."""
PROFILED_PERCENT = 8.0
"""Where layers of the model were timed on the GPU kind; what remains is how they run side by side."""
CALIBRATED_LEAST_PERCENT = 5.0
LAYOUT_PERCENT: Mapping[str, float] = MappingProxyType({PRIOR: 4.0, FITTED: 4.0, CALIBRATED: 3.0, PROFILED: 2.0})
"""Of one layout against another on the same GPUs, whose common error cancels: the scatter inside series."""


@dataclass(frozen=True)
class ErrorBand:
    """About two thirds of predictions lie within `percent` of the measurement.

    `basis` is what the compute of the least known GPU kind rests on. `layout_percent` is the same for one layout
    against another of the same task.
    """

    percent: float
    basis: str

    @property
    def layout_percent(self) -> float:
        """How far apart in percent the predictions of two layouts of a task are at least, if one is known as faster."""
        return LAYOUT_PERCENT[self.basis]


def error_band(gpus: Iterable[str], precision: str, calibrated: Iterable[CalibratedGpu] = (),
               profiled: Iterable[str] = ()) -> ErrorBand:
    """Return the widest band of some GPU kinds (`cpu`: a core of this machine)."""
    known, timed = list(calibrated), set(profiled)
    return max((_band(gpu, precision, known, timed) for gpu in gpus), key=lambda band: band.percent)


def _band(gpu: str, precision: str, calibrated: Iterable[CalibratedGpu], profiled: set[str]) -> ErrorBand:
    if gpu in profiled:
        return ErrorBand(PROFILED_PERCENT, PROFILED)
    for each in calibrated:
        if (each.gpu, each.precision) == (gpu, precision):
            off = max(each.highest / each.slowdown - 1, 1 - each.lowest / each.slowdown)
            return ErrorBand(max(CALIBRATED_LEAST_PERCENT, round(100 * off)), CALIBRATED)
    if gpu in FITTED_PERCENT:
        return ErrorBand(FITTED_PERCENT[gpu], FITTED)
    return ErrorBand(PRIOR_PERCENT, PRIOR)
