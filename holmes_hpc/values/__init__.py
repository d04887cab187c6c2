"""The values that all floors share: Plan, Action, Schedule. Standard library only."""

from holmes_hpc.values.plan import (
    Group,
    NetworkBytes,
    Pipeline,
    Plan,
    Prediction,
    RankPlace,
    Reduction,
    Rejected,
    ScheduleChoice,
    Stage,
    Synchronization,
)
from holmes_hpc.values.schedule import Action, ActionKind, Schedule

__all__ = [
    "Action",
    "ActionKind",
    "Group",
    "NetworkBytes",
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
