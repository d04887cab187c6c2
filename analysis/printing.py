"""The tables that `python -m analysis.throughput` prints, each readable at 100 columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from holmes_hpc.quoting import for_table

Row = dict[str, Any]

MOST_RUNS = 30
"""Runs that the command prints."""
MOST_RUNS_WITH_RANKS = 4
"""Runs whose ranks the command prints."""
MOST_RANKS = 16
"""Ranks of a run that are printed; `analysis.by_rank` has all."""


def print_runs(console: Console, table: pd.DataFrame, most: int | None = None) -> None:
    """Print `runs`' table as three: what ran, how fast, and networks, prediction and loss.

    `most`: print so many, the newest ones, and say how to see the others; None: all.
    """
    whole, table = len(table), _newest(table, most)
    rows = _rows(table)
    _print(console, "Runs", rows, _WHAT_RAN,
           caption="steps: done (of these, first ones left out of the medians below)")
    _print(console, "Speed: medians over the measured steps", rows, _SPEED, caption=_machine_note(rows))
    _print(console, "Step time, networks, loss", rows, _STEP, caption=_prediction_note(rows))
    for row in rows:
        if pd.notna(row["error"]):
            console.print(for_table(f"{row['run']} {row['status']}: {row['error']}"), highlight=False)
    for row in rows:
        if row["damages"]:
            console.print(for_table(f"{row['run']} is damaged: {row['damages']}"), highlight=False)
    if len(rows) < whole:
        console.print(f"the newest {len(rows)} of {whole} runs; --csv FILE and --json have all, --by COLUMN puts alike "
                      "ones together, or name fewer", markup=False, highlight=False)


def _newest(table: pd.DataFrame, most: int | None) -> pd.DataFrame:
    """Return the runs that started last, by the time in the names of their folders, in the order of the table."""
    if most is None or len(table) <= most:
        return table
    stamps = table["run"].astype(str).str.rpartition("/")[2]
    return table.loc[stamps.sort_values(kind="stable").index[-most:].sort_values()]


def print_groups(console: Console, table: pd.DataFrame, by: str) -> None:
    """Print `grouped`'s table."""
    rows = _rows(table)
    _print(
        console,
        f"Medians by {by}",
        rows,
        {
            by: _text(by),
            "runs": _text("runs"),
            "cluster": _cluster,
            "model": _text("workload"),
            "measured on": _text("machine"),
            "tokens/s": _rate,
            "TFLOPS/GPU": _format("tflops_per_gpu", significant),
            "MFU": _format("mfu", percent),
            "bubble": _format("bubble_fraction", percent),
            "Ethernet / step": _format("bytes_ethernet", size),
        },
        caption="only runs alike in cluster, order, model, machine and precision are put together",
    )


def print_ranks(console: Console, table: pd.DataFrame, most: int | None = None) -> None:
    """Print `by_rank`'s table of the runs that have measured their ranks: those that need most, and stragglers.

    `most`: of so many runs, the newest ones, and say so; None: of all.
    """
    measured = table[table["measured_memory_gib"].notna() | (table["straggler_share"] > 0)]
    names = measured.drop_duplicates("run")
    shown_names = set(_newest(names, most)["run"])
    measured = measured[measured["run"].isin(shown_names)]
    if len(shown_names) < len(names):
        console.print(f"ranks of the newest {len(shown_names)} of {len(names)} runs follow; name fewer to choose",
                      markup=False, highlight=False)
    for run, ranks in measured.groupby("run", sort=False):
        order = ranks.sort_values(["straggler_share", "measured_memory_gib"], ascending=False)
        shown = _rows(order.head(MOST_RANKS).sort_values("rank"))
        left = len(ranks) - len(shown)
        _print(
            console,
            f"Ranks of {run}: memory in GiB, stragglers",
            shown,
            {
                "rank": _text("rank"),
                "node": _text("node"),
                "GPU": _text("gpu"),
                "predicted": _format("predicted_memory_gib", significant),
                "measured": _format("measured_memory_gib", significant),
                "measured / predicted": _format("measured_to_predicted", significant),
                "straggler in": _format("straggler_share", percent),
            },
            caption=f"{left} more ranks, which need less memory: analysis.by_rank" if left else None,
        )


def significant(value: float) -> str:
    """Return three significant digits, without an exponent: `0.0123`, `1.23`, `123`."""
    if value == 0:
        return "0"
    digits = max(0, 2 - int(f"{abs(value):e}".rpartition("e")[2]))
    return f"{value:,.{digits}f}"


def seconds(value: float) -> str:
    """Return a duration: `1.23 s`, `45.6 ms`."""
    return f"{significant(value)} s" if value >= 1 else f"{significant(value * 1000)} ms"


def size(value: float) -> str:
    """Return bytes in decimal units: `1.50 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{significant(value)} {unit}"
        value /= 1000
    return f"{significant(value)} TB"


def percent(value: float) -> str:
    """Return a fraction in per cent: `12.3 %`."""
    return f"{100 * value:.1f} %"


def loss(value: float) -> str:
    """Return a loss with three decimals."""
    return f"{value:.3f}"


def _print(
    console: Console,
    title: str,
    rows: list[Row],
    columns: dict[str, Callable[[Row], str]],
    caption: str | None = None,
) -> None:
    texts = {
        "#",
        "run",
        "cluster",
        "model",
        "measured on",
        "status",
        "strategy",
        "layout",
        "layers",
        "schedule",
        "for",
        "node",
        "GPU",
    }
    table = Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    for name in columns:
        table.add_column(name, justify="left" if name in texts else "right", overflow="fold")
    for index, row in enumerate(rows):
        table.add_row(*(for_table(cell({**row, "index": index})) for cell in columns.values()))
    console.print(table)
    console.print()


def _rows(table: pd.DataFrame) -> list[Row]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: str(row[name]) if pd.notna(row[name]) and row[name] != "" else "-"


def _format(name: str, form: Callable[[float], str]) -> Callable[[Row], str]:
    return lambda row: form(row[name]) if pd.notna(row[name]) else "-"


def _number(row: Row) -> str:
    return str(row["index"] + 1)


def _cluster(row: Row) -> str:
    name = _text("cluster")(row)
    return f"{name}, {row['order']}" if pd.notna(row["order"]) and row["order"] != "grouped" else name


def _steps(row: Row) -> str:
    return f"{row['steps']} ({row['warmup_steps']})"


def _rate(row: Row) -> str:
    return f"{row['tokens_per_second']:,.0f}" if pd.notna(row["tokens_per_second"]) else "-"


def _machine_note(rows: list[Row]) -> str | None:
    notes = {
        "emulated": "emulated: NICs of an emulated cluster and the CPU of this machine, not the cluster's",
        "wind tunnel": "wind tunnel: emulated NICs, timed waits in place of GPUs",
        "local": "local: processes of one machine, NICs not emulated",
    }
    present = dict.fromkeys(row["machine"] for row in rows)
    lines = [notes[name] for name in present if name in notes]
    busy = [row for row in rows if pd.notna(row["others_held_cores"])]
    if busy:
        most = max(row["others_held_cores"] for row in busy)
        lines.append(f"busy machine: in {len(busy)} of {len(rows)} runs other programs held up to {most:.1f} cores; "
                     "their speeds compare with no others")
    return "\n".join(lines) or None


def _prediction_note(rows: list[Row]) -> str | None:
    other = any(
        pd.notna(row["predicted_step_seconds"])
        and pd.isna(row["measured_to_predicted"])
        and row["measured_steps"]
        for row in rows
    )
    return (
        "no ratio where the prediction is for another machine than the one that measured" if other else None
    )


_WHAT_RAN: dict[str, Callable[[Row], str]] = {
    "#": _number,
    "run": _text("run"),
    "cluster": _cluster,
    "model": _text("workload"),
    "measured on": _text("machine"),
    "status": _text("status"),
    "steps": _steps,
}
_SPEED: dict[str, Callable[[Row], str]] = {
    "#": _number,
    "strategy": _text("strategy"),
    "layout": _text("layout"),
    "layers": _text("layers"),
    "schedule": _text("schedule"),
    "tokens/s": _rate,
    "TFLOPS/GPU": _format("tflops_per_gpu", significant),
    "MFU": _format("mfu", percent),
    "bubble": _format("bubble_fraction", percent),
    "exposed comm.": _format("exposed_comm_seconds", seconds),
}
_STEP: dict[str, Callable[[Row], str]] = {
    "#": _number,
    "step": _format("step_seconds", seconds),
    "predicted": _format("predicted_step_seconds", seconds),
    "for": _text("predicted_machine"),
    "measured / predicted": _format("measured_to_predicted", significant),
    "Ethernet / step": _format("bytes_ethernet", size),
    "fabric / step": _format("bytes_fabric", size),
    "loss": _format("final_loss", loss),
    "validation": _format("validation_loss", loss),
}
