"""What disturbances do to a plan's step, and what the planner would have chosen under them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.disturbed import under
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.simulation.predict import predict
from holmes_hpc.planner.task import Task, disturbed
from holmes_hpc.planner.telling.describe import in_a_line
from holmes_hpc.planner.telling.printing import plain_table
from holmes_hpc.quoting import for_table
from holmes_hpc.values import Plan, ScheduleChoice
from holmes_hpc.values.disturbances import Phase, phases
from holmes_hpc.words import seconds_words

_SAME = 0.005
"""A step that is faster by less is no reason to plan otherwise."""


@dataclass(frozen=True)
class Forecast:
    """A phase of a run, and the predicted seconds of a step of its plan in it."""

    phase: Phase
    seconds: float


def forecasts(task: Task, layout: Layout, choice: ScheduleChoice, steps: int) -> tuple[Forecast, ...]:
    """Return the phases of a run whose cluster is disturbed, with the step of one plan in each; else none.

    `task` is of the undisturbed cluster, or of it as disturbed in one step: then that is all there is to tell.
    """
    cluster = task.cluster
    if not cluster.disturbances or cluster.acting:
        return ()
    return tuple(Forecast(phase, predict(disturbed(task, phase.acting), layout, choice).step_seconds)
                 for phase in phases(cluster.disturbances, steps))


def in_notes(found: tuple[Forecast, ...], undisturbed_seconds: float) -> Iterator[str]:
    """Yield a note for every disturbed phase."""
    for each in found:
        if each.phase.acting:
            yield (f"disturbed on purpose in {each.phase.steps} ({each.phase.words}): predicted "
                   f"{seconds_words(each.seconds)} a step instead of {seconds_words(undisturbed_seconds)}")


def render_choices(found: tuple[Forecast, ...], plan_for: Callable[[ClusterDescription], Plan],
                   cluster: ClusterDescription) -> Table | None:
    """Return a table of the phases: this plan's step, and what a search for the disturbed cluster finds (`plan_for`).

    None where nothing is disturbed.
    """
    if not any(each.phase.acting for each in found):
        return None
    table = plain_table("under disturbance", "steps", "what acts", "this plan", "planned for it", "which would be")
    for each in found:
        seconds, words = each.seconds, "the same"
        if each.phase.acting:
            other = plan_for(under(cluster, each.phase.acting))
            if other.predicted.step_seconds < (1 - _SAME) * seconds:
                seconds, words = other.predicted.step_seconds, in_a_line(other).rpartition(", predicted")[0]
        table.add_row(each.phase.steps, for_table(each.phase.words), seconds_words(each.seconds),
                      seconds_words(seconds), for_table(words))
    return table


def planned_under(config: Any, make: Callable[..., Plan], mode: str | None) -> Callable[[ClusterDescription], Plan]:
    """Return what plans anew for a cluster that is disturbed already."""
    def plan_for(cluster: ClusterDescription) -> Plan:
        return make(config, mode, dataclasses.replace(cluster, disturbances=()))

    return plan_for
