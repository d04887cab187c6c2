"""What a rank does now: said by the rank, read by those that watch it."""

from __future__ import annotations

from dataclasses import dataclass

OUTSIDE = -1
"""Stands for the group of a rank that waits in no group."""

MEETING, CONNECTING, AWAITING_DATA = "meeting the other ranks", "connecting", "waiting for data"
"""How what a rank does at the start begins where it does it together with others, and may have to wait for them."""


@dataclass(frozen=True)
class Doing:
    """One state of a rank; `group` is the index in `Plan.groups` of the group that it waits in, or OUTSIDE."""

    step: int = 0
    action: str = "start"
    group: int = OUTSIDE
    operation: str = ""
