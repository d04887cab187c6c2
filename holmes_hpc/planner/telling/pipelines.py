"""The pipelines of a plan for people: in one line, and as a table in which equal ones are folded."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from holmes_hpc.planner.telling.printing import plain_table
from holmes_hpc.values import Pipeline, Plan
from holmes_hpc.values.strategy_kinds import STRATEGY_KINDS
from holmes_hpc.words import counted, numbers, shorten

_MOST_KINDS = 8
_MOST_KINDS_IN_A_LINE = 4
_MOST_STAGE_COLUMNS = 5
_MOST_KIND_COLUMNS = 3


@dataclass(frozen=True)
class _Kind:
    """Pipelines that are equal but for which of equal nodes they run on; `places` are their numbers."""

    places: tuple[int, ...]
    pipelines: tuple[Pipeline, ...]

    @property
    def first(self) -> Pipeline:
        """The one that stands for all."""
        return self.pipelines[0]


def shape_words(plan: Plan) -> str:
    """Return the pipelines in a line: how many, and their layers by fabric and GPU: `16 x [roce v100: 8, ib a100: 24]`.

    What is equal but for the number of micro-batches counts as one kind.
    """
    kinds: dict[str, int] = {}
    for pipeline in plan.pipelines:
        words = _layers_words(plan, pipeline)
        kinds[words] = kinds.get(words, 0) + 1
    told = [f"{count} x [{words}]" for words, count in list(kinds.items())[:_MOST_KINDS_IN_A_LINE]]
    more = len(kinds) - len(told)
    return " and ".join(told) + (f" and {counted(more, 'other kind')}" if more else "")


def _layers_words(plan: Plan, pipeline: Pipeline) -> str:
    """Return the layers that follow one another on one kind of GPU in one fabric."""
    runs = itertools.groupby(pipeline.stages, key=lambda stage: _where(plan, stage.ranks))
    return ", ".join(f"{where}: {sum(stage.num_layers for stage in stages)}" for where, stages in runs)


def _where(plan: Plan, ranks: Sequence[int]) -> str:
    return "+".join(dict.fromkeys(f"{plan.ranks[rank].fabric} {plan.ranks[rank].gpu}" for rank in ranks))


def equal_words(plan: Plan) -> list[str]:
    """Say what the strategy's name means where it is known for what this plan does not have."""
    kinds = {(_layers_words(plan, pipeline), tuple((s.tensor, s.num_layers) for s in pipeline.stages))
             for pipeline in plan.pipelines}
    known = STRATEGY_KINDS.get(plan.strategy)
    if len(kinds) > 1 or len(plan.pipelines) == 1 or known is None or not known.cuts_layers:
        return []
    return [f"all pipelines are equal: {plan.strategy} is the strategy that proposed this layout, which would run "
            "alike under any other name"]


def pipelines_table(plan: Plan) -> Table:
    """Return the pipelines, a row for each kind; deep ones side by side, a row for each stage."""
    kinds = _kinds(plan)
    depth = max(len(pipeline.stages) for pipeline in plan.pipelines)
    if depth > _MOST_STAGE_COLUMNS:
        return _deep(plan, kinds, depth)
    table = plain_table("pipelines", "pipeline", "micro-batches", *(f"stage {s}" for s in range(depth)))
    shown = kinds if len(kinds) <= _MOST_KINDS else kinds[:_MOST_KINDS - 1]
    for kind in shown:
        each = " each" if len(kind.places) > 1 else ""
        table.add_row(_names(kind), f"{kind.first.microbatches}{each}", *_cells(plan, kind))
    if len(shown) < len(kinds):
        table.add_row("...", f"{len(kinds) - len(shown)} more", *[""] * depth)
    return table


def _deep(plan: Plan, kinds: Sequence[_Kind], depth: int) -> Table:
    shown = kinds[:_MOST_KIND_COLUMNS]
    more = sum(len(kind.places) for kind in kinds[len(shown):])
    table = plain_table(f"pipelines{f' ({more} more not shown)' if more else ''}", "stage",
                        *(f"pipeline {_names(kind)}: {counted(kind.first.microbatches, 'micro-batch')}"
                          for kind in shown))
    columns = [_cells(plan, kind, separator=", ") for kind in shown]
    for s in range(depth):
        table.add_row(str(s), *(cells[s] if s < len(cells) else "" for cells in columns))
    return table


def _kinds(plan: Plan) -> list[_Kind]:
    """Return the kinds of pipelines, in the order of their first ones."""
    found: dict[object, list[int]] = {}
    for place, pipeline in enumerate(plan.pipelines):
        stages = tuple((stage.num_layers, stage.tensor, _where(plan, stage.ranks)) for stage in pipeline.stages)
        found.setdefault((stages, pipeline.microbatches), []).append(place)
    return [_Kind(tuple(places), tuple(plan.pipelines[place] for place in places)) for places in found.values()]


def _names(kind: _Kind) -> str:
    count = len(kind.places)
    return f"{numbers(kind.places)}" + (f" ({count} equal)" if count > 1 else "")


def _cells(plan: Plan, kind: _Kind, separator: str = "\n") -> list[str]:
    """Return by stage all ranks of the kind, their nodes, and the layers that each pipeline has there."""
    cells = []
    for s, stage in enumerate(kind.first.stages):
        ranks = list(dict.fromkeys(rank for pipeline in kind.pipelines for rank in pipeline.stages[s].ranks))
        nodes = dict.fromkeys(plan.ranks[rank].node or plan.ranks[rank].slot for rank in ranks)
        last = stage.first_layer + stage.num_layers - 1
        layers = f"layer {last}" if stage.num_layers == 1 else f"layers {stage.first_layer}-{last}"
        tensor = f", tensor {stage.tensor}" if stage.tensor > 1 and len(ranks) > len(stage.ranks) else ""
        cells.append(f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers(ranks)} on {shorten(nodes)}{separator}"
                     f"{layers}{tensor}")
    return cells
