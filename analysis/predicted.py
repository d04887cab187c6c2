"""The simulated step of a plan as a panel of the timeline, and of the plan of a run. Needs no torch."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import words
from analysis.pictures import MACHINES
from analysis.reading import Run
from analysis.timeline import MOST_RANKS, STEP_END, Panel, draw_timelines, evenly
from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.config.kept import UNREADABLE, read_kept
from holmes_hpc.errors import HolmesError
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.simulation.predict import step_collectives
from holmes_hpc.planner.simulation.traffic import resource_words
from holmes_hpc.planner.task import Task
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.planner.telling.retrace import Trace, retrace
from holmes_hpc.values import ActionKind, Plan
from holmes_hpc.words import seconds_words

MOST_LINKS = 12
_TITLE_WIDTH, _SEPARATOR = 110, " \N{MIDDLE DOT} "
_MOST_ACTIONS = 6_000
"""More boxes than this nobody tells apart: longer steps are shortened."""
_TOLD_APART = 1000
"""Times that differ by less than this part of a step look the same."""
_UNSEEN = (ActionKind.TAKE_TURN, ActionKind.PASS_TURN)


def plan_picture(config: Any, plan: Plan, path: Path, mode: str | None = None,
                 cluster: ClusterDescription | None = None) -> None:
    """Draw the simulated timeline of a plan by rank, links below; `mode` and `cluster` as in `planner.plan`."""
    draw_timelines([predicted_panel(config, plan, mode, cluster)], path)


def run_panel(run: Run, measured_on: str) -> Panel | None:
    """Return the predicted step of a run, on the time axis of its plan's prediction.

    None where the prediction is for another machine than the one that measured, or the plan is of another version.
    A CPU's speed is measured again here, so times are scaled to the step that the plan predicted.
    """
    if not words.comparable(measured_on, (run.plan.get("predicted") or {}).get("machine")):
        return None
    try:
        plan = Plan.from_json(json.dumps(run.plan))
        config = read_kept(run.folder / "config.yaml")
        mode = {"emulated": "emulated", "local": "local"}.get(measured_on)
        panel = predicted_panel(config, plan, mode, name=run.name, scaled=True)
    except (HolmesError, OSError, *UNREADABLE):
        return None
    return panel


def predicted_panel(config: Any, plan: Plan, mode: str | None = None, cluster: ClusterDescription | None = None, *,
                    name: str = "", scaled: bool = False) -> Panel:
    """Return the simulated step of a plan. With `scaled` it takes as long as the plan says, if it is whole."""
    task, layout = restore(config, plan, mode, cluster)
    trace = retrace(task, layout, plan.schedule, _MOST_ACTIONS)
    whole = trace.step_seconds + step_collectives(task, layout.groups[0])
    stretch = plan.predicted.step_seconds / whole if scaled and not trace.shortened else 1.0
    drawn = _timelines(plan, layout, trace)
    rows = _rows(plan, trace, drawn, whole, stretch)
    busy = _busy_seconds(trace)
    parts = [_title(plan, trace, drawn, words.short(name or config.cluster.name))]
    if len(busy) > MOST_LINKS:
        parts.append(f"the {MOST_LINKS} busiest of {len(busy)} links")
    return Panel(rows, _wrapped(parts), _links(task, trace, busy, stretch))


def _timelines(plan: Plan, layout: Layout, trace: Trace) -> dict[int, int]:
    """Return the ranks to draw, and for how many each stands: one for each timeline that can be told apart.

    Of a tensor group it is one that does what most of its ranks do. As many pipelines are drawn as there is room for;
    of one that is too deep, stages at even distances.
    """
    timeline = _by_rank(trace)
    found: dict[Hashable, tuple[int, int]] = {}
    done: set[int] = set()
    for pipeline in layout.pipelines:
        more = dict(found)
        for stage in pipeline.stages:
            members = [rank for rank in stage.ranks if rank in timeline and rank not in done]
            done.update(members)
            for most, _ in Counter(timeline[rank] for rank in members).most_common(1):
                key = plan.ranks[members[0]].fabric, most
                rank, count = more.get(key, (next(r for r in members if timeline[r] == most), 0))
                more[key] = rank, count + sum(trace.stands_for[member] for member in members)
        if found and len(more) > MOST_RANKS:
            break
        found = more
    kept = dict(sorted(found.values()))
    return {rank: kept[rank] for rank in evenly(list(kept), MOST_RANKS)}


def _by_rank(trace: Trace) -> dict[int, Hashable]:
    """Return what can be seen of every traced rank: its actions, with times as fine as a picture shows them."""
    seen: dict[int, list[Hashable]] = {}
    for rank, action, start, end in trace.records:
        times = (round(time / trace.step_seconds * _TOLD_APART) for time in (start, end))
        seen.setdefault(rank, []).append((action.kind, action.stage, action.microbatch, *times))
    return {rank: tuple(actions) for rank, actions in seen.items()}


def _rows(plan: Plan, trace: Trace, drawn: Mapping[int, int], whole: float, stretch: float) -> pd.DataFrame:
    """Return the actions of the ranks to draw, and what all do at the end of a step that takes `whole` seconds."""
    seen = [(rank, action.kind.value, action.stage, action.microbatch, start, end)
            for rank, action, start, end in trace.records
            if rank in drawn and end > start and action.kind not in _UNSEEN]
    seen += [(rank, STEP_END, -1, -1, trace.step_seconds, whole) for rank in drawn]
    records = []
    for rank, kind, stage, microbatch, start, end in seen:
        place = plan.ranks[rank]
        records.append({"rank": rank, "node": place.node or place.slot, "fabric": place.fabric, "kind": kind,
                        "stage": stage, "microbatch": microbatch, "start": start * stretch, "end": end * stretch,
                        "stands_for": drawn[rank]})
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


def _title(plan: Plan, trace: Trace, drawn: Mapping[int, int], name: str) -> str:
    record = dataclasses.asdict(plan)
    machine = {"described": "the cluster as described"}.get(plan.predicted.machine) or MACHINES[plan.predicted.machine]
    parts = [name, f"{plan.strategy} {words.layout(record)}", words.schedule(record),
             f"predicted, {machine}: {seconds_words(plan.predicted.step_seconds)} a step"]
    if trace.shortened:
        planned = max(pipeline.microbatches for pipeline in plan.pipelines)
        parts.append(f"only {max(trace.microbatches)} of {planned} micro-batches drawn")
    if len(drawn) < plan.world_size:
        parts.append(f"{len(drawn)} timelines stand for {sum(drawn.values())} of {plan.world_size} ranks")
    return _SEPARATOR.join(parts)


def _wrapped(parts: Sequence[str]) -> str:
    return "\n".join(textwrap.wrap(_SEPARATOR.join(parts), _TITLE_WIDTH))
