"""The simulated step of a plan as a panel of the timeline, and of the plan of a run. Needs no torch."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from analysis import words
from analysis.pictures import MACHINES
from analysis.reading import Run
from analysis.timeline import Panel, draw_timelines
from holmes_hpc.errors import HolmesError
from holmes_hpc.planner.explain.restore import restore
from holmes_hpc.planner.explain.retrace import Trace, retrace
from holmes_hpc.planner.layouts import Layout
from holmes_hpc.planner.settings import Task
from holmes_hpc.planner.traffic import resource_words
from holmes_hpc.values import ActionKind, Pipeline, Plan

MOST_RANKS = 32
MOST_LINKS = 12
_TITLE_WIDTH, _SEPARATOR = 110, " \N{MIDDLE DOT} "
_MOST_ACTIONS = 6_000
"""More boxes than this nobody tells apart: longer steps are shortened."""
_UNSEEN = (ActionKind.TAKE_TURN, ActionKind.PASS_TURN)


def plan_picture(config: Any, plan: Plan, path: Path, mode: str | None = None) -> None:
    """Draw the simulated timeline of a plan by rank, with the links below; `mode` as in `planner.plan`."""
    draw_timelines([predicted_panel(config, plan, mode)], path)


def run_panel(run: Run, measured_on: str) -> Panel | None:
    """Return the predicted step of a run, on the time axis of its plan's prediction.

    None where the prediction is for another machine than the one that measured, or the plan is of another version.
    A CPU's speed is measured again here, so times are scaled to the step that the plan predicted.
    """
    if not words.comparable(measured_on, (run.plan.get("predicted") or {}).get("machine")):
        return None
    try:
        plan = Plan.from_json(json.dumps(run.plan))
        config = OmegaConf.load(run.folder / "config.yaml")
        mode = {"emulated": "emulated", "local": "local"}.get(measured_on)
        panel = predicted_panel(config, plan, mode, name=run.name, scaled=True)
    except (HolmesError, OmegaConfBaseException, OSError, ValueError):
        return None
    return panel


def predicted_panel(config: Any, plan: Plan, mode: str | None = None, *, name: str = "", scaled: bool = False) -> Panel:
    """Return the simulated step of a plan. With `scaled` it takes as long as the plan says, if it is whole."""
    task, layout = restore(config, plan, mode)
    drawn = _some_pipelines(layout)
    trace = retrace(task, layout, plan.schedule, _MOST_ACTIONS)
    stretch = plan.predicted.step_seconds / trace.step_seconds if scaled and not trace.shortened else 1.0
    rows = _rows(plan, trace, drawn, stretch)
    busy = _busy_seconds(trace)
    parts = [_title(plan, trace, rows, name or str(config.cluster.name))]
    if len(busy) > MOST_LINKS:
        parts.append(f"the {MOST_LINKS} busiest of {len(busy)} links")
    return Panel(rows, _wrapped(parts), _links(task, trace, busy, stretch))


def _some_pipelines(layout: Layout) -> set[int]:
    """Return the ranks of as many whole pipelines as a picture holds, at least of one."""
    drawn: set[int] = set()
    for pipeline in layout.pipelines:
        ranks = _ranks(pipeline)
        if drawn and len(drawn | ranks) > MOST_RANKS:
            break
        drawn |= ranks
    return drawn


def _ranks(pipeline: Pipeline) -> set[int]:
    return {rank for stage in pipeline.stages for rank in stage.ranks}


def _rows(plan: Plan, trace: Trace, drawn: set[int], stretch: float) -> pd.DataFrame:
    records = []
    for rank, action, start, end in trace.records:
        if rank in drawn and end > start and action.kind not in _UNSEEN:
            place = plan.ranks[rank]
            records.append({"rank": rank, "node": place.node or place.slot, "fabric": place.fabric,
                            "kind": action.kind.value, "stage": action.stage, "microbatch": action.microbatch,
                            "start": start * stretch, "end": end * stretch})
    return pd.DataFrame(records)


def _busy_seconds(trace: Trace) -> dict[tuple[str, str], float]:
    """Return how long each link that carried anything was busy."""
    busy: dict[tuple[str, str], float] = {}
    for transfer in trace.transfers:
        for key in transfer.resources if transfer.end > transfer.start else ():
            busy[key] = busy.get(key, 0.0) + transfer.end - transfer.start
    return busy


def _links(task: Task, trace: Trace, busy: Mapping[tuple[str, str], float], stretch: float) -> pd.DataFrame:
    """Return what the busiest links carried, in the order of the nodes."""
    kept = sorted(busy, key=lambda key: (-busy[key], key))[:MOST_LINKS]
    places = {node.slot: place for place, node in enumerate(task.cluster.nodes)}
    kept.sort(key=lambda key: (places.get(key[0], len(places)), key))
    rows: Sequence[dict[str, Any]] = [
        {"link": resource_words(key, task.cluster), "kind": transfer.kind.value, "start": transfer.start * stretch,
         "end": transfer.end * stretch}
        for key in kept for transfer in trace.transfers if key in transfer.resources and transfer.end > transfer.start]
    return pd.DataFrame(rows, columns=["link", "kind", "start", "end"])


def _title(plan: Plan, trace: Trace, rows: pd.DataFrame, name: str) -> str:
    record = dataclasses.asdict(plan)
    machine = {"described": "the cluster as described"}.get(plan.predicted.machine) or MACHINES[plan.predicted.machine]
    parts = [name, f"{plan.strategy} {words.layout(record)}", words.schedule(record),
             f"predicted, {machine}: {plan.predicted.step_seconds:.3g} s a step"]
    if trace.shortened:
        planned = max(pipeline.microbatches for pipeline in plan.pipelines)
        parts.append(f"{max(trace.microbatches)} of {planned} micro-batches")
    shown = rows["rank"].nunique()
    if shown < plan.world_size:
        parts.append(f"{shown} of {plan.world_size} ranks")
    return _SEPARATOR.join(parts)


def _wrapped(parts: Sequence[str]) -> str:
    return "\n".join(textwrap.wrap(_SEPARATOR.join(parts), _TITLE_WIDTH))
