"""The columns of tables that people read, and the units in them: for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd

Row = dict[str, Any]


class Column(NamedTuple):
    """A column: its title, the column of `runs` that it is sorted by, and the text of its cells."""

    title: str
    sorted_by: str
    cell: Callable[[Row], str]


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


def text_of(name: str) -> Callable[[Row], str]:
    """Return what writes a column as it is, and `-` for nothing."""
    return lambda row: str(row[name]) if pd.notna(row[name]) and row[name] != "" else "-"


def formatted(name: str, form: Callable[[float], str]) -> Callable[[Row], str]:
    """Return what writes a column of numbers in a form, and `-` for none."""
    return lambda row: form(row[name]) if pd.notna(row[name]) else "-"


def cluster_words(row: Row) -> str:
    """Return the cluster, with the order of its ranks where that is not the usual one."""
    name = text_of("cluster")(row)
    return f"{name}, {row['order']}" if pd.notna(row["order"]) and row["order"] != "grouped" else name


def rate(row: Row) -> str:
    """Return the tokens per second, and `(busy)` where other programs held cores of the machine meanwhile."""
    if pd.isna(row["tokens_per_second"]):
        return "-"
    return f"{row['tokens_per_second']:,.0f}" + (" (busy)" if is_busy(row) else "")


def is_busy(row: Mapping[str, Any]) -> bool:
    """Say whether other programs held cores that a run needed, so that its speed compares with no other."""
    return bool(pd.notna(row.get("others_held_cores")))


def steps_words(row: Row) -> str:
    """Return the steps done, and how many first ones of these the medians leave out."""
    return f"{row['steps']} ({row['warmup_steps']})"


WHAT_RAN = [
    Column("run", "run", text_of("run")),
    Column("cluster", "cluster", cluster_words),
    Column("model", "workload", text_of("workload")),
    Column("measured on", "machine", text_of("machine")),
    Column("status", "status", text_of("status")),
    Column("steps", "steps", steps_words),
]
SPEED = [
    Column("strategy", "strategy", text_of("strategy")),
    Column("layout", "layout", text_of("layout")),
    Column("layers", "layers", text_of("layers")),
    Column("schedule", "schedule", text_of("schedule")),
    Column("tokens/s", "tokens_per_second", rate),
    Column("TFLOPS/GPU", "tflops_per_gpu", formatted("tflops_per_gpu", significant)),
    Column("MFU", "mfu", formatted("mfu", percent)),
    Column("bubble", "bubble_fraction", formatted("bubble_fraction", percent)),
    Column("exposed comm.", "exposed_comm_seconds", formatted("exposed_comm_seconds", seconds)),
]
STEP = [
    Column("step", "step_seconds", formatted("step_seconds", seconds)),
    Column("predicted", "predicted_step_seconds", formatted("predicted_step_seconds", seconds)),
    Column("for", "predicted_machine", text_of("predicted_machine")),
    Column("measured / predicted", "measured_to_predicted", formatted("measured_to_predicted", significant)),
    Column("Ethernet / step", "bytes_ethernet", formatted("bytes_ethernet", size)),
    Column("fabric / step", "bytes_fabric", formatted("bytes_fabric", size)),
    Column("loss", "final_loss", formatted("final_loss", loss)),
    Column("validation", "validation_loss", formatted("validation_loss", loss)),
]
