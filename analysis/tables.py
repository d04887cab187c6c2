"""The tables of runs: `load` (steps), `runs`, `ranks` (recorded actions) and `links` (process groups).

Every function takes run folders, or folders that hold runs. Units stand in the column names; rates are per
second, `tflops_per_gpu` and `mfu` count the model's FLOPs only, `bytes_*` are of one step, all nodes
together.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis import words
from analysis.reading import Record, Run, read_runs
from holmes_hpc import foreign
from holmes_hpc.runs.result import is_disturbed

WARMUP_STEPS = 3
"""First steps that medians leave out; half of them where a run has fewer than twice as many."""

MEASURES = [
    "tokens_per_second",
    "samples_per_second",
    "step_seconds",
    "tflops_per_gpu",
    "mfu",
    "bubble_fraction",
    "exposed_comm_seconds",
    "bytes_ethernet",
    "bytes_fabric",
    "memory_gib",
]
"""The columns of metrics.jsonl of which `runs` holds the median."""

STEP_COLUMNS = ["step", "loss", "validation_loss", "tokens", "samples", *MEASURES, "grad_norm", "lr", "time"]

ACTION_COLUMNS = [
    "step",
    "rank",
    "node",
    "slot",
    "fabric",
    "action",
    "kind",
    "pipeline",
    "stage",
    "microbatch",
    "start",
    "end",
]

LINK_COLUMNS = ["group", "kind", "ranks", "nodes", "network"]


def load(*folders: str | os.PathLike[str]) -> pd.DataFrame:
    """Return one row a step and run, the run's columns repeated.

    Steps that a resumed run did again are there once. `warmup` marks the steps that medians leave out. Raises
    ConfigurationError for a path that is no run.
    """
    return steps_table(read_runs(*folders))


def runs(*folders: str | os.PathLike[str]) -> pd.DataFrame:
    """Return one row a run: what ran, medians over its measured steps, predicted against measured, losses.

    `warmup_steps` first steps are left out of the medians, and so are `disturbed_steps`, in which the cluster was
    disturbed on purpose: `analysis.disturbed` has those. `tokens_per_second_low` and `_high` are the 10th
    and the 90th percentile over the measured steps. `measured_to_predicted` is missing where the prediction
    is for another machine than the one that measured. Raises ConfigurationError for a path that is no run.
    """
    return runs_table(read_runs(*folders))


def ranks(*folders: str | os.PathLike[str]) -> pd.DataFrame:
    """Return one row a recorded action: run, step, rank, node, action, start and end in seconds of the step.

    Raises ConfigurationError for a path that is no run.
    """
    return actions_table(read_runs(*folders))


def links(*folders: str | os.PathLike[str]) -> pd.DataFrame:
    """Return one row a process group of the plan: its number there, kind, ranks, nodes (tuples) and network.

    Raises ConfigurationError for a path that is no run.
    """
    rows = []
    for run in read_runs(*folders):
        places = run.places()
        for number, group in enumerate(run.plan.get("groups") or []):
            nodes = tuple(dict.fromkeys(places.get(rank, {}).get("node") for rank in group["ranks"]))
            rows.append(
                {
                    **_identity(run),
                    "group": number,
                    "kind": group["kind"],
                    "ranks": tuple(group["ranks"]),
                    "nodes": nodes,
                    "network": group["network"],
                }
            )
    return _frame(rows, [*_IDENTITY, *LINK_COLUMNS])


def steps_table(found: list[Run]) -> pd.DataFrame:
    """Return `load`'s table of runs that were read before."""
    rows = []
    for run in found:
        described = describe(run)
        warmup = warmup_steps(len(run.metrics))
        for index, record in enumerate(run.metrics):
            # A step's own `emulated` wins over the run's.
            rows.append(
                {**described, "warmup": index < warmup, **{k: v for k, v in record.items() if v is not None}}
            )
    return _frame(rows, [*DESCRIPTION, "warmup", *STEP_COLUMNS], numeric=STEP_COLUMNS[:-1])


def runs_table(found: list[Run]) -> pd.DataFrame:
    """Return `runs`' table of runs that were read before."""
    rows = [summarise(run) for run in found]
    return _frame(rows, list(rows[0]) if rows else [])


def actions_table(found: list[Run]) -> pd.DataFrame:
    """Return `ranks`' table of runs that were read before."""
    rows: list[Record] = []
    for run in found:
        places, identity = run.places(), _identity(run)
        for rank, records in run.timeline().items():
            place = places.get(rank, {})
            where = {
                "rank": rank,
                "node": place.get("node"),
                "slot": place.get("slot"),
                "fabric": place.get("fabric"),
            }
            rows.extend({**identity, **where, **record} for record in records)
    return _frame(rows, [*_IDENTITY, *ACTION_COLUMNS], numeric=["start", "end"])


def warmup_steps(steps: int) -> int:
    """Return how many first steps of a run of `steps` the medians leave out."""
    return min(WARMUP_STEPS, steps // 2)


DESCRIPTION = [
    "run",
    "folder",
    "cluster",
    "order",
    "model",
    "workload",
    "strategy",
    "layout",
    "layers",
    "layer_split",
    "schedule",
    "precision",
    "world_size",
    "micro_batch_size",
    "global_batch_size",
    "emulated",
    "machine",
]


def describe(run: Run) -> dict[str, Any]:
    """Return what ran, and where: the columns `DESCRIPTION`, which `load` repeats on every step."""
    cluster, plan = run.config.get("cluster") or {}, run.plan
    emulated = _emulated(run)
    predicted_machine = (plan.get("predicted") or {}).get("machine")
    compute = (cluster.get("emulate") or {}).get("compute")
    return {
        "run": run.name,
        "folder": str(run.folder),
        "cluster": cluster.get("name"),
        "order": cluster.get("order"),
        "model": (run.config.get("model") or {}).get("name"),
        "workload": words.workload(run.config),
        "strategy": plan.get("strategy") or (run.config.get("parallel") or {}).get("strategy"),
        "layout": words.layout(plan),
        "layers": words.layers(plan),
        "layer_split": plan.get("layer_split"),
        "schedule": words.schedule(plan),
        "precision": (run.config.get("train") or {}).get("precision"),
        "world_size": plan.get("world_size"),
        "micro_batch_size": plan.get("micro_batch_size"),
        "global_batch_size": plan.get("global_batch_size"),
        "emulated": emulated,
        "machine": words.machine(emulated, predicted_machine, compute, on_slurm=run.job.get("job_id") is not None),
    }


def summarise(run: Run) -> dict[str, Any]:
    """Return the row of one run in `runs`."""
    described = describe(run)
    warmup = warmup_steps(len(run.metrics))
    measured = [record for record in run.metrics[warmup:] if not is_disturbed(record)]
    medians = {name: quantile(figures(measured, name), 0.5) for name in MEASURES}
    rates = figures(measured, "tokens_per_second")
    no_speed = run.result.get("no_speed")
    if no_speed:  # of a wind tunnel single steps may be valid, and the run is not
        medians |= {name: math.nan for name in MEASURES if not name.startswith("bytes")}
        rates = []
    last_loss = run.metrics[-1].get("loss") if run.metrics else run.result.get("final_loss")
    predicted = run.plan.get("predicted") or {}
    ratio = None
    if predicted.get("step_seconds") and words.comparable(described["machine"], predicted.get("machine")):
        ratio = medians["step_seconds"] / predicted["step_seconds"]
    return {
        **described,
        "status": words.status(run.config, run.result),
        "steps": int(run.metrics[-1]["step"]) if run.metrics else 0,
        "warmup_steps": warmup,
        "measured_steps": len(measured),
        "disturbed_steps": sum(map(is_disturbed, run.metrics)),
        **medians,
        "tokens_per_second_low": quantile(rates, 0.1),
        "tokens_per_second_high": quantile(rates, 0.9),
        "predicted_machine": predicted.get("machine"),
        "predicted_step_seconds": _number(predicted.get("step_seconds")),
        "predicted_tokens_per_second": _number(predicted.get("tokens_per_second")),
        "measured_to_predicted": _number(ratio),
        "final_loss": _number(foreign.number(last_loss)),
        "validation_loss": (figures(run.metrics, "validation_loss") or [math.nan])[-1],
        "others_held_cores": _number(foreign.number(run.result.get("others_held_cores"))),
        "no_speed": str(no_speed) if no_speed else None,
        "error": None if run.result.get("error") is None else str(run.result["error"]),
        "damages": "; ".join(run.damages),
    }


def grouped(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return one row for each value of column `by`: medians over its runs, and `runs`, how many they are.

    Runs are only put together where cluster, order, workload, machine and precision are alike: an emulated
    run is never averaged with a real one. `tokens_per_second_low` and `_high` are the slowest and the fastest
    run's median, `others_held_cores` the most of any. Runs without a measured step are left out.
    """
    keys = list(dict.fromkeys([*COMPARABLE, by]))
    measured = table[table["measured_steps"] > 0]
    numbers = [*MEASURES, "measured_to_predicted", "final_loss", "validation_loss"]
    numbers = [name for name in numbers if name not in keys]
    groups = measured.groupby(keys, dropna=False, sort=False)
    merged = groups[numbers].median()
    merged.insert(0, "runs", groups.size())
    merged["tokens_per_second_low"] = groups["tokens_per_second"].min()
    merged["tokens_per_second_high"] = groups["tokens_per_second"].max()
    merged["others_held_cores"] = groups["others_held_cores"].max()
    return merged.reset_index()


COMPARABLE = ["cluster", "order", "workload", "machine", "precision"]
"""Columns that must be alike before two runs' throughput may stand side by side."""

_IDENTITY = ["run", "cluster", "strategy", "layout", "emulated", "machine"]


def _identity(run: Run) -> dict[str, Any]:
    described = describe(run)
    return {name: described[name] for name in _IDENTITY}


def _emulated(run: Run) -> bool | None:
    """Return whether the NICs were emulated: as the steps say, else the result, else None (not known yet)."""
    records: list[Record] = [*reversed(run.metrics), run.result]
    return next((bool(record["emulated"]) for record in records if record.get("emulated") is not None), None)


def _frame(rows: list[Record], columns: list[str], numeric: list[str] | None = None) -> pd.DataFrame:
    """Return a table with `columns` first, there even where no row has them, then whatever else rows hold."""
    table = pd.DataFrame(rows, columns=None if rows else columns)
    extra = [name for name in table.columns if name not in columns]
    table = table.reindex(columns=[*columns, *extra])
    for name in numeric or []:
        table[name] = pd.to_numeric(table[name], errors="coerce")
    return table


def _number(value: Any) -> float:
    return float("nan") if value is None or pd.isna(value) else float(value)


def figures(records: Sequence[Record], name: str) -> list[float]:
    """Return what records say of a figure, in their order, without those that do not know it."""
    values: list[Any] = [record.get(name) for record in records]
    kinds = set(map(type, values))
    if kinds == {float} and all(map(math.isfinite, values)):  # as of most figures of most runs
        return values
    if kinds == {type(None)}:
        return []
    return [figure for value in values if (figure := foreign.number(value)) is not None]


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value below which a part of all lies, between two of them in proportion; NaN of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    below, rest = divmod(part * (len(ordered) - 1), 1.0)
    low, high = ordered[int(below)], ordered[min(int(below) + 1, len(ordered) - 1)]
    return low + (high - low) * rest
