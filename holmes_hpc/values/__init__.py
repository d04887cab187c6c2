"""The values that all floors share: Plan, Action, Schedule. Standard library only."""

from holmes_hpc.values.plan import (
    NetworkBytes,
    Pipeline,
    Plan,
    Prediction,
    RankPlace,
    Rejected,
    ScheduleChoice,
    Stage,
    Synchronization,
)
from holmes_hpc.values.reductions import Group, Level, Operation, Reduction
from holmes_hpc.values.schedule import Action, ActionKind, Schedule

__all__ = [
    "Action",
    "ActionKind",
    "Group",
    "Level",
    "NetworkBytes",
    "Operation",
    "Pipeline",
    "Plan",
    "Prediction",
    "RankPlace",
    "Reduction",
    "Rejected",
    "Schedule",
    "ScheduleChoice",
    "Stage",
    "Synchronization",
]
