"""Why a plan takes as long as it does, and what could be changed. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.planner.simulation.traffic import busy_seconds, loads, used_networks
from holmes_hpc.planner.telling.changes import Change, find_changes
from holmes_hpc.planner.telling.limits import Limits, find_limits
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.values import Plan

__all__ = ["Change", "Explanation", "Limits", "explain"]


@dataclass(frozen=True)
class Explanation:
    """What limits a plan and what the user could change."""

    limits: Limits
    changes: tuple[Change, ...]


def explain(config: Any, plan: Plan, mode: str | None = None,
            cluster: ClusterDescription | None = None) -> Explanation:
    """Return what limits a plan of a configuration and what could be changed.

    `mode` and `cluster` are as in `planner.plan`. The work is bounded: some simulations of the same layout, fewer
    where one of them is long.
    """
    task, layout = restore(config, plan, mode, cluster)
    busy = busy_seconds(loads(task, layout))
    return Explanation(find_limits(task, layout, plan.schedule, busy, plan.predicted.step_seconds),
                       find_changes(task, layout, plan, used_networks(busy)))
