"""Scaling curves: the speed of alike runs over the number of their GPUs, beside what would be ideal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import pandas as pd

from analysis.columns import Row, is_busy
from analysis.page.svg import Drawing, across, legend, ticks
from analysis.pictures import GREY, OTHER_COLOURS, STRATEGY_COLOURS

MOST_CURVES = 8
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 960.0, 380.0, 80.0, 300.0, 16.0, 330.0
_ALIKE = ("workload", "strategy", "machine", "precision")


@dataclass(frozen=True)
class Curve:
    """Tokens per second by the number of GPUs, from few to many; `kind` is `strong` or `weak`, `size` what is kept."""

    name: str
    strategy: str
    kind: str
    size: str
    points: tuple[tuple[int, float], ...]

    def efficiency(self) -> float:
        """Return the speed of the most GPUs by that of the fewest, as a part of what their number would give."""
        (few, slow), (many, fast) = self.points[0], self.points[-1]
        return fast / slow * few / many


def curves(rows: Sequence[Row]) -> list[Curve]:
    """Return the curves of runs that differ in their number of GPUs, those of most points first.

    Strong: the batch of all GPUs together stays; weak: that of each GPU. The point of several runs is their median.
    Runs that other programs disturbed are left out.
    """
    found: dict[tuple[object, ...], dict[int, list[float]]] = {}
    for row in rows:
        world, samples, rate = row["world_size"], row["global_batch_size"], row["tokens_per_second"]
        if any(pd.isna(value) for value in (world, samples, rate)) or is_busy(row) or world < 1:
            continue
        alike = tuple(row[name] for name in _ALIKE)
        for kind, size in (("strong", f"batch {samples:g}"), ("weak", f"batch {samples / world:g} a GPU")):
            found.setdefault((*alike, kind, size), {}).setdefault(int(world), []).append(float(rate))
    made = []
    for (workload, strategy, machine, precision, kept, batch), rates in found.items():
        if len(rates) > 1:
            points = tuple((world, median(rates[world])) for world in sorted(rates))
            made.append(Curve(", ".join(map(str, (strategy, workload, precision, machine))), str(strategy),
                              str(kept), str(batch), points))
    return sorted(made, key=lambda curve: -len(curve.points))


def scaling(found: Sequence[Curve]) -> tuple[Drawing, str] | None:
    """Return the drawing of curves, and what is to be said of them; None without any."""
    if not found:
        return None
    drawn = found[:MOST_CURVES]
    most = max(world for curve in drawn for world, _ in curve.points)
    ideal = [[(world, curve.points[0][1] * world / curve.points[0][0]) for world, _ in curve.points] for curve in drawn]
    high = max(rate for points in (*ideal, *(curve.points for curve in drawn)) for _, rate in points)
    drawing = Drawing(_WIDTH, max(_HEIGHT, 40.0 + 46 * len(drawn)), "scaling")

    def place(world: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * world / most

    def level(rate: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * rate / high

    across(drawing, ticks(most, 8), place, _TOP, _BOTTOM, lambda value: f"{value:g}")
    for value in ticks(high):
        drawing.line([(_LEFT, level(value)), (_WIDTH - _RIGHT, level(value))], "#E3E6EA", 1)
        drawing.write(_LEFT - 8, level(value), f"{value:,.0f}", anchor="end")
    drawing.write((_LEFT + _WIDTH - _RIGHT) / 2, _BOTTOM + 30, "GPUs, or the processes that stand for them",
                  anchor="middle")
    drawing.write(4, 8, "tokens/s")
    for number, (curve, straight) in enumerate(zip(drawn, ideal, strict=True)):
        colour = STRATEGY_COLOURS.get(curve.strategy, OTHER_COLOURS[number % len(OTHER_COLOURS)])
        drawing.line([(place(world), level(rate)) for world, rate in straight], GREY, 1, stroke_dasharray="4 4")
        drawing.line([(place(world), level(rate)) for world, rate in curve.points], colour, 2,
                     **({"stroke_dasharray": "8 3"} if curve.kind == "weak" else {}))
        for world, rate in curve.points:
            drawing.shape("circle", f"{curve.name}: {world} GPUs, {rate:,.0f} tokens/s", cx=place(world),
                          cy=level(rate), r=4, fill=colour)
        top = 20.0 + 46 * number
        legend(drawing, _WIDTH - _RIGHT + 16, top, [(colour, _cut(curve.name))])
        reached = f"{curve.kind}, {curve.size}: {100 * curve.efficiency():.0f} % of ideal at the end"
        drawing.write(_WIDTH - _RIGHT + 30, top + 16, reached)
    note = ("strong: the whole batch stays, weak (dashed): that of a GPU; grey: in proportion to the fewest GPUs; busy "
            "machines are left out")
    return drawing, note + (f"; {len(drawn)} of {len(found)} curves" if len(drawn) < len(found) else "")


def _cut(words: str) -> str:
    return words if len(words) <= 42 else f"{words[:39]}..."
