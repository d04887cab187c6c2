"""The planner: from a configuration to a Plan. Needs no torch."""

from holmes_hpc.planner.binding import bind
from holmes_hpc.planner.making import plan
from holmes_hpc.planner.progress import search_progress
from holmes_hpc.planner.telling.describe import render

__all__ = ["bind", "plan", "render", "search_progress"]
