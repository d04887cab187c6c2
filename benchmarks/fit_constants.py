"""Finds the fitted constants of the cost model again, with the planner's own predictions.

    python -m benchmarks.fit_constants

`matrix_share` and `ramp` of the A100: least squares of the relative error on the eight rows of Korthikanti et al.,
by Gauss and Newton; the share taken is the mean of this and of what all series fix (`left_out.py`).
`LAUNCH_SECONDS`: no mean error on the single-node rows of hidden size 1024, tensor degree 1, micro-batch 1. All other
constants stay as they are documented.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import mean
from unittest import mock

import numpy

from benchmarks import runs
from benchmarks.published import Row, fixes_launches, korthikanti, vtrain_single
from holmes_hpc.planner.cost import ends, gpu_constants, layer, micro_batch, stages

_START = 0.8, 300.0
_CHANGES = 0.01, 0.05
"""Parts of both constants by which they are changed to see what that does."""
_ROUNDS = 5
_CLOSE = 1e-8
"""Seconds of a launch that make no difference."""


def main() -> None:
    """Print the fitted constants."""
    share, ramp = fit_products(korthikanti())
    print(f"matrix_share = {share:.4f}, ramp = {ramp:.1f} (now {gpu_constants.CONSTANTS['a100-80g'].matrix_share}, "
          f"{gpu_constants.CONSTANTS['a100-80g'].ramp:.0f})")
    launch = fit_launches([row for row in vtrain_single() if fixes_launches(row)])
    print(f"LAUNCH_SECONDS = {launch * 1e6:.2f}e-6 (now {gpu_constants.LAUNCH_SECONDS * 1e6:.1f}e-6)")


def fit_products(rows: Sequence[Row], start: tuple[float, float] = _START, rounds: int = _ROUNDS
                 ) -> tuple[float, float]:
    """Return matrix_share and ramp with the least squared error over the rows, as near as some rounds come."""
    point = numpy.array(start)
    for _ in range(rounds):
        here = _errors(rows, *point)
        steps = point * _CHANGES
        slopes = numpy.stack([(_errors(rows, *(point + step)) - here) / step.sum()
                              for step in numpy.diag(steps)], axis=1)
        point = point - numpy.linalg.lstsq(slopes, here, rcond=None)[0]
    return float(point[0]), float(point[1])


def _errors(rows: Sequence[Row], share: float, ramp: float) -> numpy.ndarray:
    kinds = {name: replace(kind, matrix_share=share, ramp=ramp) for name, kind in gpu_constants.CONSTANTS.items()}
    with mock.patch.object(gpu_constants, "CONSTANTS", kinds), _anew():
        return numpy.array([_error_percent(row) for row in rows])


def fit_launches(rows: Sequence[Row]) -> float:
    """Return the launch time at which the rows' errors cancel, by the secant that two times before it make."""
    before, now = 50e-6, 60e-6
    error_before = _launch_error(rows, before)
    while abs(now - before) > _CLOSE:
        error = _launch_error(rows, now)
        before, now = now, now - error * (now - before) / (error - error_before)
        error_before = error
    return now


def _launch_error(rows: Sequence[Row], seconds: float) -> float:
    with mock.patch.object(layer, "LAUNCH_SECONDS", seconds), mock.patch.object(ends, "LAUNCH_SECONDS", seconds), \
            _anew():
        return mean(_error_percent(row) for row in rows)


def _error_percent(row: Row) -> float:
    return 100 * (runs.seconds_anew(row.run) / row.seconds - 1)


@contextmanager
def _anew() -> Iterator[None]:
    """Keep nothing from before, and nothing for afterwards: what is kept holds the constants that made it."""
    forget_costs()
    try:
        yield
    finally:
        forget_costs()


def forget_costs() -> None:
    """Drop the cached times of the cost model."""
    for function in (micro_batch._device, layer.layer_seconds, ends.embedding_seconds, ends.head_seconds,
                     stages._directions):
        function.cache_clear()
    runs.machine_of.cache_clear()


if __name__ == "__main__":
    main()
