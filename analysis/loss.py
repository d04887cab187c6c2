"""The picture of the loss of runs, by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.disturbed import spans
from analysis.pictures import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    ROUND_STEPS,
    SKY,
    VERMILION,
    clean,
    new_figure,
    plain_text,
    run_label,
    save,
)
from analysis.reading import Run
from analysis.tables import figures

MOST_LINES = 12
"""Runs that one picture holds so that they are told apart."""
_MOST_LINES_WITH_LEGEND_INSIDE = 4
_COLOURS = [BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY]
_DASHES: list[Any] = ["-", (0, (5, 2)), (0, (2, 1.2)), (0, (6, 1.5, 1.5, 1.5))]
_TITLE = "Training and validation loss"


def lowest_losses(found: Sequence[Run], most: int = MOST_LINES) -> list[Run]:
    """Return at most so many of the runs that have steps, in their order: those whose last loss is lowest."""
    measured = [run for run in found if run.metrics]
    if len(measured) <= most:
        return measured
    last = {run.folder: (figures(run.metrics, "loss") or [math.inf])[-1] for run in measured}
    kept = set(sorted(last, key=lambda folder: last[folder])[:most])
    return [run for run in measured if run.folder in kept]


@plain_text
def loss_picture(steps: pd.DataFrame, path: Path) -> None:
    """Draw the loss of every run by step, nats a token: training as lines, validation as circles."""
    names = list(dict.fromkeys(steps["run"]))
    alone = len(names) == 1
    figure = new_figure(9.5, 4.6 + 0.2 * max(0, len(names) - 4))
    axes = figure.subplots()
    for index, name in enumerate(names):
        rows = steps[steps["run"] == name]
        colour = _COLOURS[index % len(_COLOURS)]
        label = "training loss" if alone else run_label(rows.iloc[0])
        # Runs of one seed lie on each other whatever their layout: dashes and falling widths show them all.
        axes.plot(rows["step"], rows["loss"], color=colour, linestyle=_DASHES[index % len(_DASHES)],
                  linewidth=max(1.2, 2.4 - 0.4 * index), label=label)
        evaluated = rows.dropna(subset=["validation_loss"])
        axes.add_line(_circles(colour, evaluated["step"], evaluated["validation_loss"]))
        if alone and len(evaluated):
            last = evaluated.iloc[-1]
            axes.annotate(f"{last['validation_loss']:.2f}", (last["step"], last["validation_loss"]), xytext=(0, 9),
                          textcoords="offset points", ha="center", fontsize=9, color=INK)
    axes.autoscale_view()
    if alone:
        _shade_disturbed(axes, steps)
    _add_legend(figure, axes, len(names), has_validation=bool(steps["validation_loss"].notna().any()))
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("loss, nats per token", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=ROUND_STEPS))
    axes.set_title(f"{_TITLE} \N{MIDDLE DOT} {run_label(steps.iloc[0])}" if alone else _TITLE, loc="left", fontsize=11,
                   fontweight="bold", color=INK)
    axes.grid(color="#E3E6EA", linewidth=0.8)
    clean(axes)
    save(figure, path)


def _shade_disturbed(axes: Axes, steps: pd.DataFrame) -> None:
    """Shade the steps in which the run was disturbed on purpose."""
    if "disturbed" not in steps:
        return
    records = [{"step": step, "disturbed": acting if isinstance(acting, list) else None}
               for step, acting in zip(steps["step"], steps["disturbed"], strict=True)]
    for number, (first, last, _) in enumerate(spans(records)):
        axes.axvspan(first - 0.5, last + 0.5, color=GREY, alpha=0.18, linewidth=0,
                     label="disturbed on purpose" if number == 0 else None)


def _circles(colour: str, x: Any, y: Any, label: str | None = None) -> Line2D:
    return Line2D(x, y, linestyle="", marker="o", markersize=6.5, markerfacecolor="white", markeredgecolor=colour,
                  markeredgewidth=1.6, label=label)


def _add_legend(figure: Figure, axes: Axes, runs: int, *, has_validation: bool) -> None:
    handles, _ = axes.get_legend_handles_labels()
    if has_validation:
        handles.append(_circles(INK, [], [], "validation loss"))
    if runs <= _MOST_LINES_WITH_LEGEND_INSIDE:
        axes.legend(handles=handles, frameon=False, fontsize=9, loc="upper right")
    else:
        figure.legend(handles=handles, frameon=False, fontsize=9, loc="outside lower left", ncols=2)
