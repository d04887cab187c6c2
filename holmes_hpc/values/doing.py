"""What a rank does now: said by the rank, read by those that watch it."""

from __future__ import annotations

from dataclasses import dataclass

OUTSIDE = -1
"""Stands for the group of a rank that waits in no group."""


@dataclass(frozen=True)
class Doing:
    """One state of a rank; `group` is the index in `Plan.groups` of the group that it waits in, or OUTSIDE."""

    step: int = 0
    action: str = "start"
    group: int = OUTSIDE
    operation: str = ""
