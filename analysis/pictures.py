"""Pictures of runs as PNG: throughput by run or by a column. Those of the loss and of a step are in `loss`, `timeline`.

Every picture is drawn on its own matplotlib Figure, which leaves pyplot and its backend alone: drawing works
without a display and inside a notebook. Colours are Okabe and Ito's, which colour-blind readers tell apart.
"""

from __future__ import annotations

import io
import math
from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analysis.columns import is_busy
from analysis.tables import COMPARABLE
from analysis.words import comparable, short
from holmes_hpc.runs.private import put_file

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY, INK = "#CC79A7", "#56B4E9", "#8A8F98", "#22262B"

STRATEGY_COLOURS = {"holmes": BLUE, "megatron": ORANGE, "flashflex": GREEN, "unlike": PURPLE,
                    "manual": GREY}
OTHER_COLOURS = [SKY, VERMILION, PURPLE, GREEN, BLUE, ORANGE]

BASELINE = "megatron"
"""Bars say how much faster they are than the fastest run of this strategy in their panel."""

DPI = 160
MOST_BARS = 24
"""Bars that one picture holds so that they are read."""

ROUND_STEPS = [1, 2, 5, 10]
"""Distances between ticks, up to a power of ten."""

MACHINES = {
    "emulated": "emulated cluster",
    "wind tunnel": "wind tunnel (emulated, timed)",
    "local": "local processes, NICs not emulated",
    "real": "real hardware",
}
"""The column `machine` in the words of titles."""


def fastest_rows(table: pd.DataFrame, most: int = MOST_BARS) -> pd.DataFrame:
    """Return at most so many rows of `runs` (or `grouped`), in the order of the table: the fastest of every panel.

    The fastest of the baseline, which the others of a panel are measured by, is among them.
    """
    if len(table) <= most:
        return table
    order = table.assign(
        later=table["strategy"].ne(BASELINE) if "strategy" in table else True,
        rate=-table["tokens_per_second"].fillna(0.0),
    )
    panels = order.groupby(COMPARABLE, dropna=False, sort=False)
    place = panels["rate"].rank(method="first")
    leading = order[~order["later"]].groupby(COMPARABLE, dropna=False, sort=False)["rate"].idxmin()
    place[leading.dropna()] = 0
    return table.loc[place.sort_values(kind="stable").index[:most].sort_values()]


plain_text = rc_context({"text.parse_math": False})
"""Decorates a function that draws: names stand in its picture as they are, and a `$` begins no formula."""


@plain_text
def throughput_picture(table: pd.DataFrame, path: Path, by: str | None = None) -> None:
    """Draw tokens per second as bars, one a row of `runs` (or of `grouped` by the column `by`).

    Rows that may not stand side by side (another cluster, workload, machine or precision) get a panel
    each, whose title says what it shows and whether it is emulated. Whiskers: the columns
    `tokens_per_second_low` and `_high`.
    """
    panels = list(table.groupby(COMPARABLE, dropna=False, sort=False))
    columns = 1 if len(panels) < 4 else 2
    lines = math.ceil(len(panels) / columns)
    heights = [max(len(rows) for _, rows in panels[i * columns : (i + 1) * columns]) for i in range(lines)]
    figure = new_figure(9.5 if columns == 1 else 13, 0.7 + sum(0.7 + 0.5 * height for height in heights))
    grid = figure.subplots(lines, columns, squeeze=False, height_ratios=[0.1 + height for height in heights])
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (_, rows) in zip(grid.flat, panels, strict=False):
        _throughput_panel(axes, rows.reset_index(drop=True), by)
    for axes in grid.flat[max(0, len(panels) - columns) : len(panels)]:
        axes.set_xlabel("tokens per second", fontsize=9, color=INK)
    spread = "slowest to fastest run" if by else "10th to 90th percentile of the steps"
    handles = [Line2D([], [], color=INK, linewidth=1.2, marker="|", markersize=6, label=spread)]
    if not by and any(_has_prediction(row) for row in table.to_dict("records")):
        handles.append(_prediction_mark([], []))
    figure.legend(handles=handles, loc="outside lower right", ncols=2, frameon=False, fontsize=8.5)
    save(figure, path)


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """Return a figure that lays itself out, with a margin all around."""
    margins = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    return Figure(figsize=(width_inches, height_inches), layout=margins)


def clean(axes: Axes) -> None:
    """Take away frame lines and ticks that carry nothing."""
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#B5BAC1")
    axes.tick_params(color="#B5BAC1", labelcolor=INK, labelsize=9)


def strategy_colours(strategies: list[str]) -> dict[str, str]:
    """Return a colour for each strategy, always the same for those that are known."""
    others = iter(OTHER_COLOURS * len(strategies))
    return {name: STRATEGY_COLOURS.get(name) or next(others) for name in dict.fromkeys(strategies)}


def _throughput_panel(axes: Axes, rows: pd.DataFrame, by: str | None) -> None:
    names = [str(name) for name in rows[by or "strategy"]]
    colours = strategy_colours(names)
    rates = rows["tokens_per_second"].fillna(0)
    places = range(len(rows))
    axes.barh(places, rates, height=0.62, color=[colours[name] for name in names])
    _draw_spread(axes, rows)
    if not by:
        _draw_predictions(axes, rows)
    reach = max(*(_reach(row, by) for row in rows.to_dict("records")), 1e-9)
    fair = [name == BASELINE and pd.isna(held) for name, held in zip(names, rows["others_held_cores"], strict=True)]
    baseline = rows.loc[fair, "tokens_per_second"].max()
    for place, row in enumerate(rows.to_dict("records")):
        _write_rate(axes, place, row, reach, colours[names[place]], None if names[place] == BASELINE else baseline)
    axes.set_yticks(places, [_bar_label(row, by) for row in rows.to_dict("records")])
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.set_xlim(0, reach * (1.12 if pd.isna(baseline) else 1.28))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=ROUND_STEPS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_title(_panel_title(rows.iloc[0]), loc="left", fontsize=10.5, fontweight="bold", color=INK)
    axes.grid(axis="x", color="#E3E6EA", linewidth=0.8)
    clean(axes)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _draw_spread(axes: Axes, rows: pd.DataFrame) -> None:
    for place, row in enumerate(rows.to_dict("records")):
        low, high = row["tokens_per_second_low"], row["tokens_per_second_high"]
        if pd.notna(low) and low < high:
            axes.plot([low, high], [place, place], color=INK, linewidth=1.2, marker="|", markersize=6)


def _draw_predictions(axes: Axes, rows: pd.DataFrame) -> None:
    points = [
        (row["predicted_tokens_per_second"], place)
        for place, row in enumerate(rows.to_dict("records"))
        if _has_prediction(row)
    ]
    if points:
        axes.add_line(_prediction_mark([x for x, _ in points], [y for _, y in points]))


def _prediction_mark(x: list[float], y: list[int]) -> Line2D:
    return Line2D(
        x,
        y,
        linestyle="",
        marker="D",
        markersize=6,
        markerfacecolor="white",
        markeredgecolor=INK,
        markeredgewidth=1.2,
        label="predicted by the plan",
        zorder=4,
    )


def _has_prediction(row: dict) -> bool:
    return bool(
        pd.notna(row["predicted_tokens_per_second"]) and comparable(row["machine"], row["predicted_machine"])
    )


def _reach(row: dict, by: str | None) -> float:
    """Return the largest value that is drawn for a row."""
    values = [row["tokens_per_second"], row["tokens_per_second_high"]]
    if not by and _has_prediction(row):
        values.append(row["predicted_tokens_per_second"])
    return max((float(value) for value in values if pd.notna(value)), default=0.0)


def _write_rate(axes: Axes, place: int, row: dict, reach: float, colour: str, baseline: float | None) -> None:
    """Write the measured tokens per second, and their ratio to the baseline, in the bar they are of, or below its end.

    Where other programs held cores meanwhile, that is written in place of the ratio.
    The end of a row may be that of its prediction, beside which a measured figure would be read as predicted.
    """
    rate = row["tokens_per_second"]
    if pd.isna(rate):
        _write(axes, _missing(row), 0, place)
        return
    text = f"{rate:,.0f}"
    if is_busy(row):
        text += " \N{MIDDLE DOT} machine was busy"
    elif pd.notna(baseline):
        text += f" \N{MIDDLE DOT} {rate / baseline:.2f}x {BASELINE}"
    if rate > (0.2 if pd.isna(baseline) else 0.4) * reach:
        _write(axes, text, 0, place, INK if colour in (ORANGE, SKY, PURPLE) else "white")
    else:
        _write(axes, text, rate, place + 0.24)


def _missing(row: dict) -> str:
    """Say why a row has no bar."""
    status = row.get("status", "running")
    return "no step measured yet" if status == "running" else f"{status} before a step was measured"


def _write(axes: Axes, text: str, x: float, y: float, colour: str = INK) -> None:
    axes.annotate(
        text, (x, y), xytext=(8, 0), textcoords="offset points", va="center", fontsize=9, color=colour
    )


def _bar_label(row: dict, by: str | None) -> str:
    if by:
        return f"{short(row[by])}\n{row['runs']} run{'s' if row['runs'] != 1 else ''}"
    return f"{short(row['strategy'])} {row['layout']}\n{short(row['run'])}"


def _panel_title(row: pd.Series) -> str:
    order = "" if pd.isna(row["order"]) or row["order"] == "grouped" else f", {row['order']} order"
    parts = [
        f"{short(row['cluster'])}{order}",
        short(row["workload"]) if pd.notna(row["workload"]) else None,
        row["precision"],
        MACHINES.get(row["machine"], row["machine"]),
    ]
    return " \N{MIDDLE DOT} ".join(str(part) for part in parts if pd.notna(part) and part)


def run_label(row: pd.Series) -> str:
    """Return what a picture calls a run: strategy, layout, name and the machine that measured it."""
    what = f"{short(row['strategy'])} {row['layout']}"
    return f"{what} \N{MIDDLE DOT} {short(row['run'])} ({row['machine']})"


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of its ending; a link in its place is not followed. Raises OSError."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DPI, facecolor="white", format=path.suffix[1:] or "png")
    put_file(path, drawn.getvalue())
