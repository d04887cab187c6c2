"""Saving and resuming: which rank writes which part, when, and how all agree on what to load."""
