"""The tables that `python -m analysis.throughput` prints, each readable at 100 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from analysis.columns import (
    SPEED,
    STEP,
    WHAT_RAN,
    Column,
    Row,
    cluster_words,
    formatted,
    percent,
    rate,
    seconds,
    significant,
    size,
    text_of,
)
from holmes_hpc.quoting import for_table

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
    rows = rows_of(table)
    _print(console, "Runs", rows, _cells(WHAT_RAN),
           caption="steps: done (of these, first ones left out of the medians below)")
    _print(console, "Speed: medians over the measured steps", rows, _cells(SPEED), caption=machine_note(rows))
    _print(console, "Step time, networks, loss", rows, _cells(STEP), caption=prediction_note(rows))
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
    rows = rows_of(table)
    _print(
        console,
        f"Medians by {by}",
        rows,
        {
            by: text_of(by),
            "runs": text_of("runs"),
            "cluster": cluster_words,
            "model": text_of("workload"),
            "measured on": text_of("machine"),
            "tokens/s": rate,
            "TFLOPS/GPU": formatted("tflops_per_gpu", significant),
            "MFU": formatted("mfu", percent),
            "bubble": formatted("bubble_fraction", percent),
            "Ethernet / step": formatted("bytes_ethernet", size),
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
        shown = rows_of(order.head(MOST_RANKS).sort_values("rank"))
        left = len(ranks) - len(shown)
        _print(
            console,
            f"Ranks of {run}: memory in GiB, stragglers",
            shown,
            {
                "rank": text_of("rank"),
                "node": text_of("node"),
                "GPU": text_of("gpu"),
                "predicted": formatted("predicted_memory_gib", significant),
                "measured": formatted("measured_memory_gib", significant),
                "measured / predicted": formatted("measured_to_predicted", significant),
                "straggler in": formatted("straggler_share", percent),
            },
            caption=f"{left} more ranks, which need less memory: analysis.by_rank(RUN) in Python" if left else None,
        )


def print_disturbed(console: Console, table: pd.DataFrame, most: int | None = None) -> None:
    """Print `disturbed`'s table of the runs that have such steps; `most`: of so many runs, the newest ones."""
    shown = set(_newest(table.drop_duplicates("run"), most)["run"])
    for run, phases in table[table["run"].isin(shown)].groupby("run", sort=False):
        rows = rows_of(phases)
        _print(
            console,
            f"Disturbed on purpose: {run}",
            rows,
            {
                "steps": lambda row: (f"{row['first_step']}" if row["steps"] == 1
                                      else f"{row['first_step']} to {row['last_step']}"),
                "disturbed": lambda row: row["disturbed"] or "undisturbed",
                "step": formatted("step_seconds", seconds),
                "x undisturbed": formatted("times_undisturbed", significant),
                "predicted": formatted("predicted_step_seconds", seconds),
                "x undisturbed, predicted": formatted("predicted_times_undisturbed", significant),
            },
            caption="\n".join(_disturbed_notes(rows)),
        )


def _disturbed_notes(rows: list[Row]) -> Iterator[str]:
    """Yield what has to be known of a run's disturbed steps, with the reason of what is missing."""
    yield "medians; the tables above leave disturbed steps out"
    if all(pd.isna(row["times_undisturbed"]) for row in rows):
        yield "no x undisturbed: no step was undisturbed, but maybe the first ones, which medians leave out"
    if any(pd.isna(row["predicted_step_seconds"]) for row in rows):
        yield "no prediction where the plan's is for another machine than the one that measured, or cannot be read"


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
        "disturbed",
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


def _cells(columns: list[Column]) -> dict[str, Callable[[Row], str]]:
    """Return the columns behind the number of the run, by which the tables belong together."""
    return {"#": lambda row: str(row["index"] + 1), **{column.title: column.cell for column in columns}}


def rows_of(table: pd.DataFrame) -> list[Row]:
    """Return the rows of a table as mappings."""
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def machine_note(rows: list[Row]) -> str | None:
    """Return what has to be known of the machines that measured, and of other programs on them."""
    notes = {
        "emulated": "emulated: NICs of an emulated cluster and the CPU of this machine, not the cluster's",
        "wind tunnel": "wind tunnel (emulated, timed): emulated NICs, timed waits in place of GPUs",
        "local": "local: processes of one machine, NICs not emulated",
    }
    present = dict.fromkeys(row["machine"] for row in rows)
    lines = [notes[name] for name in present if name in notes]
    busy = [row for row in rows if pd.notna(row["others_held_cores"])]
    if busy:
        most = max(row["others_held_cores"] for row in busy)
        lines.append(f"busy: in {len(busy)} of {len(rows)} runs other programs held up to {most:.1f} cores; their "
                     "speeds compare with no others")
    lines += [f"{row['run']} has no speed: {row['no_speed']}" for row in rows if pd.notna(row.get("no_speed"))]
    return "\n".join(lines) or None


def prediction_note(rows: list[Row]) -> str | None:
    """Return why some runs have no ratio to their prediction."""
    other = any(
        pd.notna(row["predicted_step_seconds"])
        and pd.isna(row["measured_to_predicted"])
        and row["measured_steps"]
        for row in rows
    )
    return (
        "no ratio where the prediction is for another machine than the one that measured" if other else None
    )
