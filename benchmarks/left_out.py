"""How well series of rows are predicted that fixed nothing: each is left out of the fit that predicts it.

A series is one trainer on one machine: its rows share whatever was not published, so a row that is predicted by its
neighbours says nothing of another site. Of each GPU family one constant is fitted, `matrix_share`. A part of a step
changes as 1 / share; how large that is in a series, its first row tells.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean
from unittest import mock

from benchmarks.fit_constants import forget_costs
from benchmarks.public_runs import public_runs
from benchmarks.published import Row, korthikanti
from benchmarks.runs import seconds_anew
from holmes_hpc.planner.cost import gpu_constants

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "A100": ("a100-80g", "a100-40g"), "A800": ("a800-80g",), "H100": ("h100", "h800"), "V100": ("v100",),
    "MI250X": ("mi250x",)}
"""GPU kinds whose errors are told together."""
_FITTED_TOGETHER = {"A800": "A100"}
"""The same chip: one matrix share."""
_SLOWER = 0.95
"""Of the matrix share, for the second prediction."""


@dataclass(frozen=True)
class Series:
    """Rows of one trainer on one machine, and what part of their predicted steps matrix products are."""

    name: str
    family: str
    rows: tuple[Row, ...]
    share: float
    products: float

    def errors(self, share: float) -> list[float]:
        """Return the errors in percent with another matrix share."""
        factor = 1 + self.products * (self.share / share - 1)
        return [100 * (row.run.seconds * factor / row.seconds - 1) for row in self.rows]


def all_series() -> tuple[Series, ...]:
    """Return every series of which some constant is fitted: the public ones, and Korthikanti et al.'s."""
    return tuple(each for chip in dict.fromkeys(_chip(family) for family in FAMILIES) for each in _series_of(chip))


def _chip(family: str) -> str:
    return _FITTED_TOGETHER.get(family, family)


@functools.lru_cache(maxsize=8)
def _series_of(chip: str) -> tuple[Series, ...]:
    """Return the series that fix a chip's matrix share."""
    families = {kind: family for family, kinds in FAMILIES.items() for kind in kinds if _chip(family) == chip}
    groups = {name: rows for name, rows in {**public_runs(), "Korthikanti et al.": tuple(korthikanti())}.items()
              if rows[0].run.gpu in families}
    with _shares_times(_SLOWER):
        slower = {name: seconds_anew(rows[0].run) for name, rows in groups.items()}
    return tuple(Series(name, families[rows[0].run.gpu], rows,
                        gpu_constants.CONSTANTS[rows[0].run.gpu].matrix_share,
                        (slower[name] / rows[0].run.seconds - 1) / (1 / _SLOWER - 1))
                 for name, rows in groups.items())


@contextmanager
def _shares_times(factor: float) -> Iterator[None]:
    kinds = {name: replace(kind, matrix_share=kind.matrix_share * factor)
             for name, kind in gpu_constants.CONSTANTS.items()}
    with mock.patch.object(gpu_constants, "CONSTANTS", kinds):
        forget_costs()
        yield
    forget_costs()


def fitted_share(series: Sequence[Series]) -> float:
    """Return the matrix share at which the series' mean errors cancel, each weighing the root of its rows."""
    share = series[0].share
    now, slower = (_weighed_error(series, each) for each in (share, _SLOWER * share))
    return share / (1 - now / (slower - now) * (1 / _SLOWER - 1))


def _weighed_error(series: Sequence[Series], share: float) -> float:
    return fmean([fmean(each.errors(share)) for each in series], [sqrt(len(each.rows)) for each in series])


def fits_with(family: str) -> tuple[Series, ...]:
    """Return the series that fix a family's matrix share."""
    return _series_of(_chip(family))


def left_out_errors(one: Series) -> list[float]:
    """Return a series' errors in percent with the share that the others fix; as it is where there are no others."""
    others = [each for each in fits_with(one.family) if each is not one]
    return one.errors(fitted_share(others) if others else one.share)


def family_errors(family: str) -> list[float]:
    """Return the errors of a family's public rows, each predicted by the other series."""
    return [error for each in fits_with(family) if each.family == family and each.name in public_runs()
            for error in left_out_errors(each)]
