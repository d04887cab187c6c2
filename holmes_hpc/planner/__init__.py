"""The planner: from a configuration to a Plan, and from a Plan to its schedule. Needs no torch."""

from holmes_hpc.planner.binding import bind
from holmes_hpc.planner.making import plan
from holmes_hpc.planner.progress import search_progress
from holmes_hpc.planner.telling.describe import render
from holmes_hpc.schedule.building import build_schedule

__all__ = ["bind", "build_schedule", "plan", "render", "search_progress"]
