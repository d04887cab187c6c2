"""Schedules: the action lists that the simulator prices and the engine runs. Needs no torch."""

from holmes_hpc.schedule.building import build_schedule, plan_digest

__all__ = ["build_schedule", "plan_digest"]
