"""What the steps of runs went into: computing, waiting for other stages, sums that nothing hid."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.columns import Row, seconds
from analysis.page.svg import Drawing, across, legend, ticks
from analysis.pictures import BLUE, ORANGE, PURPLE

MOST_BARS = 40
PARTS = (("computing and the rest", BLUE), ("waiting for other stages", ORANGE),
         ("gradient sums that nothing hid", PURPLE))
_WIDTH, _LEFT, _RIGHT, _BAR = 960.0, 290.0, 80.0, 22.0


def parts(row: Row) -> tuple[float, float, float] | None:
    """Return a run's median step in seconds by cause, in the order of `PARTS`; None where a figure is not known.

    Both waits are means over ranks of the same median step, and no time counts for both.
    """
    step, bubble, exposed = (row[name] for name in ("step_seconds", "bubble_fraction", "exposed_comm_seconds"))
    if any(pd.isna(value) for value in (step, bubble, exposed)) or step <= 0:
        return None
    waits = bubble * step, exposed
    return max(0.0, step - sum(waits)), *waits


def step_parts(rows: Sequence[Row]) -> tuple[Drawing, str] | None:
    """Return the bars of runs, and what is to be said of them; None where no run has the figures."""
    known = [(row, found) for row in rows if (found := parts(row)) is not None]
    if not known:
        return None
    drawn = known[:MOST_BARS]
    most = max(sum(found) for _, found in drawn)
    height = 40 + _BAR * len(drawn)
    drawing = Drawing(_WIDTH, height + 30, "step time by cause")

    def place(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / most

    legend(drawing, _LEFT, 10, [(colour, words) for words, colour in PARTS])
    across(drawing, ticks(most), place, 24, height - 10, lambda value: seconds(value) if value else "0")
    for number, (row, found) in enumerate(drawn):
        top, begin = 28 + _BAR * number, 0.0
        drawing.write(_LEFT - 8, top + 7, _label(row), anchor="end")
        for value, (words, colour) in zip(found, PARTS, strict=True):
            tip = f"{row['run']}: {words}, {seconds(value)} ({100 * value / sum(found):.0f} %)"
            drawing.shape("rect", tip, x=place(begin), y=top, width=place(begin + value) - place(begin), height=14,
                          fill=colour)
            begin += value
        drawing.write(place(begin) + 6, top + 7, seconds(begin))
    note = f"the first {len(drawn)} of {len(known)} runs" if len(drawn) < len(known) else ""
    return drawing, note


def _label(row: Row) -> str:
    words = f"{row['strategy']} {row['layout']}".rstrip() + f", {str(row['run']).rpartition('/')[2]}"
    return words if len(words) <= 46 else f"{words[:22]}...{words[-21:]}"
