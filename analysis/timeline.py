"""The picture of one step: what every rank did when, as measured or as predicted.

Each rank has a thick lane for what its processor computes and a thin one below for what it sends, receives
and reduces, so that communication under computation is seen as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from analysis.pictures import (
    BLUE,
    GREEN,
    INK,
    MACHINES,
    ORANGE,
    PURPLE,
    ROUND_STEPS,
    SKY,
    VERMILION,
    clean,
    new_figure,
    plain_text,
    save,
)
from analysis.words import short

Item = TypeVar("Item")


class Look(NamedTuple):
    """How a kind of action is drawn."""

    label: str
    colour: str
    ink: str = "white"
    thin: bool = False


LOOKS = {
    "F": Look("forward", BLUE),
    "B": Look("backward", ORANGE, INK),
    "I": Look("backward, inputs", VERMILION),
    "W": Look("backward, weights", "#F0E442", INK),
    "O": Look("optimizer", "#4A5058"),
    "SA": Look("send activations", SKY, thin=True),
    "SG": Look("send gradients", "#B8860B", thin=True),
    "RA": Look("wait for activations", "#BBD7EA", thin=True),
    "RG": Look("wait for gradients", "#F2DCA8", thin=True),
    "TT": Look("wait for the turn", "#9DB0B8", thin=True),
    "PT": Look("pass the turn", "#5E7A84", thin=True),
    "R": Look("reduce gradients", PURPLE, thin=True),
    "G": Look("gather parameters", GREEN, thin=True),
}
"""The kinds of `values.ActionKind`, in legend order; others are drawn as `OTHER`."""

STEP_END = "loss and norm"
"""The kind of what all ranks do at the end of a predicted step: small sums, and a barrier."""
LOOKS[STEP_END] = Look("loss, norm, barrier", "#C3C9D0", thin=True)

OTHER = Look("other", "#8A8F98", thin=True)

LANE, THIN_LANE = 0.56, 0.2
MOST_RANKS = 32
"""More rows than this are no longer read, and their labels would lie on one another."""
_MOST_LEGEND_COLUMNS = 8


def recorded_steps(actions: pd.DataFrame) -> list[int]:
    """Return the steps that `ranks`' table has a timeline of."""
    return sorted({int(step) for step in actions["step"].dropna()})


@dataclass(frozen=True)
class Panel:
    """One step: `rows` as `ranks`' table has them; `links` has the columns link, kind, start, end, in drawing order."""

    rows: pd.DataFrame
    title: str
    links: pd.DataFrame | None = None

    @property
    def end(self) -> float:
        """When the last thing in it ends, seconds."""
        ends = [float(self.rows["end"].max())]
        if self.links is not None and len(self.links):
            ends.append(float(self.links["end"].max()))
        return max(ends)


def timeline_picture(actions: pd.DataFrame, path: Path, step: int | None = None,
                     predictions: Mapping[str, Panel] | None = None) -> None:
    """Draw one step of each run in `ranks`' table, a panel a run, all on one time axis.

    `step`: which one; None: the last recorded of each run. `predictions`, by run, are drawn above what was measured.
    Raises ValueError when no run has it.
    """
    panels = []
    whole = actions.dropna(subset=["step", "rank", "kind", "start", "end"])
    # What was on its way (`R~`, `G~`) is no work of the rank, and lies under what is.
    whole = whole[~whole["kind"].astype(str).str.endswith("~")]
    for run, rows in whole.groupby("run", sort=False):
        steps = recorded_steps(rows)
        wanted = step if step is not None else steps[-1]
        if wanted in steps:
            if predictions and str(run) in predictions:
                panels.append(predictions[str(run)])
            panels.append(_measured_panel(rows[rows["step"] == wanted]))
    if not panels:
        raise ValueError(
            f"step {step} was not recorded; recorded: {', '.join(map(str, recorded_steps(actions)))}"
        )
    draw_timelines(panels, path)


@plain_text
def draw_timelines(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels below one another on one time axis, each with its links, where they are known, below its ranks."""
    span = max(panel.end for panel in panels)
    unit, scale = ("ms", 1000.0) if span < 1.0 else ("s", 1.0)
    heights: list[float] = []
    for panel in panels:
        heights.append(0.5 + 0.43 * panel.rows["rank"].nunique())
        if panel.links is not None and len(panel.links):
            heights.append(0.35 + 0.24 * panel.links["link"].nunique())
    figure = new_figure(11, 0.9 + sum(heights))
    grid = figure.subplots(len(heights), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    drawn: list[tuple[Axes, Panel]] = []
    for axes in (free := iter(grid)):
        panel = panels[len(drawn)]
        axes.set_xlim(0, span * scale * 1.01)
        _draw_panel(axes, panel, scale)
        drawn.append((axes, panel))
        if panel.links is not None and len(panel.links):
            draw_links(next(free), panel.links, scale)
    grid[-1].set_xlabel(f"time since the step began, {unit}", fontsize=9.5, color=INK)
    kinds = {kind for panel in panels for kind in panel.rows["kind"]}
    kinds |= {kind for panel in panels if panel.links is not None for kind in panel.links["kind"]}
    handles = [Patch(color=look.colour, label=look.label) for kind, look in LOOKS.items() if kind in kinds]
    if kinds - set(LOOKS):
        handles.append(Patch(color=OTHER.colour, label=OTHER.label))
    _add_legend(figure, handles)
    # Widths in pixels are known only after the layout, which stays as it is: numbers go where they fit.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes, panel in drawn:
        _write_numbers(axes, panel.rows, scale)
    save(figure, path)


def _add_legend(figure: Figure, handles: Sequence[Patch]) -> None:
    """Put the legend below, in as many columns as are not cut off at the edges."""
    for columns in range(min(len(handles), _MOST_LEGEND_COLUMNS), 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5,
                               handlelength=1.2, columnspacing=1.3, handletextpad=0.5)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def draw_links(axes: Axes, links: pd.DataFrame, scale: float) -> None:
    """Draw when each link carried what, one lane a link; what overlaps shares the link and is darker."""
    names = list(dict.fromkeys(links["link"]))
    for (name, kind), group in links.groupby(["link", "kind"], sort=False):
        spans = [
            (start * scale, (end - start) * scale)
            for start, end in zip(group["start"], group["end"], strict=True)
        ]
        axes.broken_barh(
            spans,
            (names.index(str(name)) - 0.35, 0.7),
            facecolors=LOOKS.get(str(kind), OTHER).colour,
            alpha=0.75,
            linewidths=0.0,
        )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.xaxis.set_major_locator(MaxNLocator(12, steps=ROUND_STEPS))
    axes.grid(axis="x", color="#E9ECEF", linewidth=0.8)
    clean(axes)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0, labelsize=8)


def _draw_panel(axes: Axes, panel: Panel, scale: float) -> None:
    rows = panel.rows
    ordered = by_stage(rows)
    places = {rank: place for place, rank in enumerate(ordered)}
    members = rows.drop_duplicates("rank").set_index("rank", drop=False).loc[ordered].to_dict("records")
    for (rank, kind), group in rows.groupby(["rank", "kind"], sort=False):
        look = LOOKS.get(str(kind), OTHER)
        spans = [
            (start * scale, (end - start) * scale)
            for start, end in zip(group["start"], group["end"], strict=True)
        ]
        axes.broken_barh(
            spans,
            _lane(places[rank], look),
            facecolors=look.colour,
            edgecolors="white",
            linewidths=0.0 if look.thin else 0.6,
        )
    axes.set_yticks(range(len(members)), [_rank_label(member, rows) for member in members])
    axes.set_ylim(len(members) - 0.45, -0.6)
    for place in range(1, len(members)):
        if members[place]["node"] != members[place - 1]["node"]:
            other_fabric = members[place]["fabric"] != members[place - 1]["fabric"]
            axes.axhline(
                place - 0.52,
                color="#6B7280" if other_fabric else "#D5D9DE",
                linewidth=0.9,
                linestyle="-" if other_fabric else (0, (2, 2)),
                zorder=0,
            )
    axes.set_title(panel.title, loc="left", fontsize=10.5, fontweight="bold", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(12, steps=ROUND_STEPS))
    axes.grid(axis="x", color="#E9ECEF", linewidth=0.8)
    clean(axes)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _measured_panel(rows: pd.DataFrame) -> Panel:
    """Return the panel of one run's step, of its ranks at even distances where there are too many to draw."""
    ranks = sorted(rows["rank"].unique())
    shown = evenly(ranks, MOST_RANKS)
    part = f" \N{MIDDLE DOT} {len(shown)} of {len(ranks)} ranks" if len(shown) < len(ranks) else ""
    rows = rows[rows["rank"].isin(shown)].reset_index(drop=True)
    return Panel(rows, _measured_title(rows) + part)


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most so many of the items, at even distances, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _measured_title(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    return (
        f"{short(first['run'])} \N{MIDDLE DOT} step {int(first['step'])} \N{MIDDLE DOT} {short(first['strategy'])} "
        f"{first['layout']} \N{MIDDLE DOT} measured, {MACHINES.get(first['machine'], first['machine'])}"
    )


def by_stage(rows: pd.DataFrame) -> list[Any]:
    """Return the ranks in the order in which they are drawn: as micro-batches pass them, by their first stage."""
    first = rows[rows["stage"] >= 0].groupby("rank")["stage"].min()
    return sorted(rows["rank"].unique(), key=lambda rank: (first.get(rank, -1), rank))


def _lane(place: int, look: Look) -> tuple[float, float]:
    """Return bottom and height of a lane, in rows counted downwards."""
    top = place - 0.42
    return (top + LANE + 0.03, THIN_LANE) if look.thin else (top, LANE)


def _rank_label(member: dict, rows: pd.DataFrame) -> str:
    stages = rows.loc[(rows["rank"] == member["rank"]) & (rows["stage"] >= 0), "stage"]
    served = ", ".join(str(int(stage)) for stage in sorted(set(stages)))
    node = f"  {short(member['node'], 24)}" if pd.notna(member["node"]) else ""
    if pd.notna(member["fabric"]) and str(member["fabric"]) not in node:
        node += f" ({short(member['fabric'], 24)})"
    alike = int(member.get("stands_for", 1))
    below = [*[f"stage {served}"] * bool(served), *[f"{alike} ranks alike"] * (alike > 1)]
    return f"rank {member['rank']}{node}" + (f"\n{', '.join(below)}" if below else "")


def _write_numbers(axes: Axes, rows: pd.DataFrame, scale: float) -> None:
    """Write the micro-batch into every block of a thick lane that is wide enough for it."""
    places = {rank: place for place, rank in enumerate(by_stage(rows))}
    pixels = axes.get_window_extent().width / (axes.get_xlim()[1] - axes.get_xlim()[0])
    points_per_pixel = 72 / axes.figure.dpi
    for row in rows.to_dict("records"):
        look = LOOKS.get(row["kind"], OTHER)
        if look.thin or pd.isna(row["microbatch"]) or row["microbatch"] < 0:
            continue
        text = str(int(row["microbatch"]))
        width_points = (row["end"] - row["start"]) * scale * pixels * points_per_pixel
        if width_points > 5.5 * len(text) + 2:
            bottom, height = _lane(places[row["rank"]], look)
            axes.text(
                (row["start"] + row["end"]) / 2 * scale,
                bottom + height / 2,
                text,
                ha="center",
                va="center",
                fontsize=8,
                color=look.ink,
            )
