"""Finds the fitted constants of the cost model again.

    python -m benchmarks.fit_constants

`matrix_share` and `ramp` of the A100: least squares of the relative error on the eight rows of Korthikanti et al.,
by a grid that narrows. `LAUNCH_SECONDS`: no mean error on the single-node rows of hidden size 1024, tensor degree 1,
micro-batch 1. All other constants stay as they are documented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from unittest import mock

from benchmarks.published import Row, fixes_launches, korthikanti, vtrain_single
from holmes_hpc.planner.cost import ends, gpu_constants, layer, micro_batch

_ROUNDS = 5
_POINTS = 7


def main() -> None:
    """Print the fitted constants."""
    share, ramp = fit_products(korthikanti())
    print(f"matrix_share = {share:.3f}, ramp = {ramp:.0f} (now {gpu_constants.CONSTANTS['a100-80g'].matrix_share}, "
          f"{gpu_constants.CONSTANTS['a100-80g'].ramp:.0f})")
    launch = fit_launches([row for row in vtrain_single() if fixes_launches(row)])
    print(f"LAUNCH_SECONDS = {launch * 1e6:.1f}e-6 (now {gpu_constants.LAUNCH_SECONDS * 1e6:.1f}e-6)")


def fit_products(rows: Sequence[Row]) -> tuple[float, float]:
    """Return matrix_share and ramp with the least squared error over the rows."""
    share, ramp, width = 0.85, 300.0, 0.3
    for _ in range(_ROUNDS):
        steps = [width * (2 * i / (_POINTS - 1) - 1) for i in range(_POINTS)]
        grid = [(share * (1 + a / 3), ramp * (1 + b)) for a in steps for b in steps]
        share, ramp = min(grid, key=lambda point: _squares(rows, *point))
        width /= 2
    return share, ramp


def _squares(rows: Sequence[Row], share: float, ramp: float) -> float:
    kinds = {name: replace(kind, matrix_share=share, ramp=ramp) for name, kind in gpu_constants.CONSTANTS.items()}
    with mock.patch.object(gpu_constants, "CONSTANTS", kinds):
        forget()
        squares = mean(row.error_percent**2 for row in rows)
    forget()
    return squares


def fit_launches(rows: Sequence[Row]) -> float:
    """Return the launch time at which the rows' errors cancel, by bisection."""
    low, high = 20e-6, 100e-6
    while high - low > 1e-8:
        middle = (low + high) / 2
        with mock.patch.object(layer, "LAUNCH_SECONDS", middle), mock.patch.object(ends, "LAUNCH_SECONDS", middle):
            forget()
            too_slow = mean(row.error_percent for row in rows) > 0
        low, high = (low, middle) if too_slow else (middle, high)
    forget()
    return (low + high) / 2


def forget() -> None:
    """Drop the cached times, which hold the constants that made them."""
    for function in (micro_batch._device, layer.layer_seconds, ends.embedding_seconds, ends.head_seconds):
        function.cache_clear()


if __name__ == "__main__":
    main()
