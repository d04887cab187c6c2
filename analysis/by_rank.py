"""The table of ranks: memory, predicted against measured, and who was a straggler."""

from __future__ import annotations

import os
from collections import Counter

import pandas as pd

from analysis import words
from analysis.reading import Record, Run, read_runs
from analysis.tables import describe

COLUMNS = [
    "run",
    "rank",
    "node",
    "gpu",
    "predicted_memory_gib",
    "measured_memory_gib",
    "measured_to_predicted",
    "straggler_share",
]


def by_rank(*folders: str | os.PathLike[str]) -> pd.DataFrame:
    """Return one row a rank and run: the plan's memory, the most that was used, the share of steps as a straggler.

    `measured_memory_gib` is missing until a run has written it (every 50 steps and after the last). It is what torch
    reserved on a GPU, else the resident size of the process with Python and torch in it; `measured_to_predicted` is
    missing where the prediction is for another machine than the one that measured. Raises ConfigurationError for a
    path that is no run.
    """
    return by_rank_table(read_runs(*folders))


def by_rank_table(found: list[Run]) -> pd.DataFrame:
    """Return `by_rank`'s table of runs that were read before."""
    rows = [row for run in found for row in _rows(run)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    for name in COLUMNS[4:]:
        table[name] = pd.to_numeric(table[name], errors="coerce")
    return table


def _rows(run: Run) -> list[Record]:
    predicted = run.plan.get("predicted") or {}
    expected = dict(enumerate(predicted.get("memory_gib_per_rank") or []))
    written = [record["memory_gib_per_rank"] for record in run.metrics if record.get("memory_gib_per_rank")]
    measured = dict(enumerate(written[-1])) if written else {}
    comparable = words.comparable(describe(run)["machine"], predicted.get("machine"))
    # Of steps that do not name stragglers, such as the first ones, nothing is known.
    watched = [record["stragglers"] for record in run.metrics if record.get("stragglers") is not None]
    slow = Counter(rank for ranks in watched for rank in ranks)
    rows = []
    for rank, place in run.places().items():
        both = comparable and expected.get(rank) and measured.get(rank) is not None
        rows.append({
            "run": run.name,
            "rank": rank,
            "node": place["node"],
            "gpu": place["gpu"],
            "predicted_memory_gib": expected.get(rank),
            "measured_memory_gib": measured.get(rank),
            "measured_to_predicted": measured[rank] / expected[rank] if both else None,
            "straggler_share": slow[rank] / len(watched) if watched else None,
        })
    return rows
