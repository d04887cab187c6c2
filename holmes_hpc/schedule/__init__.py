"""Schedules: the action lists that the simulator prices and the engine runs. Needs no torch."""
