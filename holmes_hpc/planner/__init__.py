"""The planner: from a configuration to a Plan. Needs no torch."""

from holmes_hpc.planner.binding import bind
from holmes_hpc.planner.layout.library import for_library
from holmes_hpc.planner.making import plan
from holmes_hpc.planner.progress import search_progress
from holmes_hpc.planner.telling.describe import render
from holmes_hpc.planner.wind_tunnel import tunnel_prices

__all__ = ["bind", "for_library", "plan", "render", "search_progress", "tunnel_prices"]
