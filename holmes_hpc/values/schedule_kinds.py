"""The schedules that there are, as facts: what configuration, planner and engine need to know of each.

To add one, write its row here and its orders in `schedule/`, and name them in `schedule/kinds.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holmes_hpc.errors import PlanRefusedError

AUTO = "auto"
"""What a setting says that leaves the choice to the planner."""


@dataclass(frozen=True)
class ScheduleKind:
    """One schedule: its name, a line of help, what it does, and where it is tried.

    `words` name it in a layout's words; the usual ones need none. With `splits` a backward has an input part and a
    weight part. `warms_up`: more forwards may run ahead upstream of a slow hop, and turns be taken on it. `keeps`: all
    micro-batches are in flight at once, so that a step does not repeat itself. `in_chunks`: a rank has several stages
    of a pipeline; otherwise it has one. `alternates`: forwards and backwards go strictly by turns, so that each
    micro-batch pays a slow hop, unless enough run ahead. `needs_times`: the order depends on the layout's own times.
    `compared`: `parallel.schedule=auto` looks at it, in the order of the table. `in_megatron`: Megatron-LM has it.
    """

    name: str
    help: str
    words: str = ""
    splits: bool = False
    warms_up: bool = True
    keeps: bool = False
    in_chunks: bool = False
    alternates: bool = False
    needs_times: bool = False
    compared: bool = True
    in_megatron: bool = False

    @property
    def is_capped(self) -> bool:
        """Whether `schedule.policies.in_flight_caps` says how many micro-batches are in flight."""
        return not (self.keeps or self.in_chunks)


GPIPE = ScheduleKind("gpipe", "all forwards, then all backwards; keeps all activations", words="gpipe",
                     warms_up=False, keeps=True, compared=False)
ONE_F_ONE_B = ScheduleKind("1f1b", "forwards and backwards by turns, activations of one micro-batch for each stage",
                           alternates=True, in_megatron=True)
INTERLEAVED = ScheduleKind("interleaved", "1f1b in parallel.chunks virtual stages a rank: shorter filling, more "
                                          "messages", in_chunks=True, alternates=True, in_megatron=True)
ZERO_BUBBLE = ScheduleKind("zero_bubble", "weight gradients fill the waits, with the memory of 1f1b",
                           words="zero bubble", splits=True, needs_times=True)

SCHEDULE_KINDS: Mapping[str, ScheduleKind] = {
    kind.name: kind for kind in (GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE)}


def schedule_kind(name: str) -> ScheduleKind:
    """Return the schedule of a name. Raises PlanRefusedError for one that this version does not know."""
    if name not in SCHEDULE_KINDS:
        *names, last = AUTO, *SCHEDULE_KINDS
        raise PlanRefusedError(f"parallel.schedule={name}: this version cannot build it. "
                               f"Set parallel.schedule to {', '.join(names)} or {last}.")
    return SCHEDULE_KINDS[name]


def compared_schedules(*, in_chunks: bool) -> tuple[ScheduleKind, ...]:
    """Return the schedules that are compared where the choice is the planner's, first the one to look at first."""
    return tuple(kind for kind in SCHEDULE_KINDS.values() if kind.compared and kind.in_chunks == in_chunks)
