"""How much the search may simulate. It counts work, not time, so that every machine finds the same plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.simulation.representatives import standing_for_all
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Pipeline, ScheduleChoice

_UNITS_A_SECOND = 60_000
"""Units of work that a slow core does in a second; a unit is about one simulated action."""
_UNITS_A_RANK = 60
_UNITS_A_LAYOUT = 150
_UNITS_LEAST = 6_000
"""For each strategy, where no time is asked for."""
_STRATEGIES = 5
_CHUNKS_SHARE = 0.1
_FEW_RANKS = 8
_LEAST_FACTOR = 2
_SMALL_FACTOR = 6
_ACTIONS = 6
"""Of a stage for each micro-batch: computing, sending and receiving, both ways."""
_LONGEST_PIPELINE = 60
"""Micro-batches that are simulated of a long step of alike pipelines."""


class Allowance:
    """The work that one part of the search may do."""

    def __init__(self, units: float) -> None:
        self.units = self.whole = units

    def spend(self, task: Task, layout: Layout, choice: ScheduleChoice) -> None:
        """Take off what the simulation of a layout with a schedule costs: nothing where it is known already."""
        if not task.layouts.predictions.has(layout, choice):
            self.units -= layout_units(task, layout, turns=choice.turns)

    def is_beyond(self, task: Task, layout: Layout) -> bool:
        """Return whether a layout alone costs more than all that there was, so that another one should go before it."""
        return layout_units(task, layout) > self.whole


class SearchBudget:
    """The work of a whole search, divided between its parts; and who is told about it."""

    def __init__(self, seconds: float | None, ranks: int, progress: Callable[[str], None] | None = None) -> None:
        self.ranks = ranks
        asked = _UNITS_LEAST * (_LEAST_FACTOR if ranks <= _FEW_RANKS else 1) + _UNITS_A_RANK * ranks
        self.units = asked if seconds is None else seconds * _UNITS_A_SECOND / _STRATEGIES
        self._progress = progress
        self._allowances: list[Allowance] = []

    def allowance(self) -> Allowance:
        """Return the allowance of one strategy."""
        return self._given(self.units)

    def allowance_to_improve(self) -> Allowance:
        """Return the allowance of small changes: more where few ranks make every simulation cheap."""
        return self._given(self.units * (_SMALL_FACTOR if self.ranks <= _FEW_RANKS else 1))

    def allowance_for_chunks(self) -> Allowance:
        """Return the allowance of pipelines in chunks: a tenth of all that was done so far."""
        return Allowance(_CHUNKS_SHARE * sum(each.whole - each.units for each in self._allowances))

    def _given(self, units: float) -> Allowance:
        self._allowances.append(Allowance(units))
        return self._allowances[-1]

    def say(self, words: str) -> None:
        """Tell what goes on."""
        if self._progress is not None:
            self._progress(words)


def layout_units(task: Task, layout: Layout, *, turns: bool = False) -> float:
    """Return about how many units of work the simulation of a layout is; what takes turns stands for nobody else."""
    actions = task.layouts.actions.of(layout, lambda: _actions(standing_for_all(task, layout, turns=turns)), turns)
    return _UNITS_A_LAYOUT + _UNITS_A_RANK / 10 * task.cluster.world_size + actions


def _actions(simulated: Sequence[Pipeline]) -> int:
    """Return about how many actions a step has; the tensor-parallel ranks of a stage are one."""
    alike = len({pipeline.microbatches for pipeline in simulated}) == 1
    return sum(_ACTIONS * len(pipeline.stages)
               * (min(pipeline.microbatches, _LONGEST_PIPELINE + _ACTIONS * len(pipeline.stages)) if alike
                  else pipeline.microbatches) for pipeline in simulated)
