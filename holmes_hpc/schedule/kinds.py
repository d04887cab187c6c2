"""How the work of each schedule is ordered; what else is to know of them stands in `values/schedule_kinds.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holmes_hpc.schedule.interleaved import goes_round, interleaved_orders
from holmes_hpc.schedule.list_scheduling import Pass, order_passes
from holmes_hpc.schedule.one_f_one_b import is_unshared, one_f_one_b_orders
from holmes_hpc.schedule.policies import Place, gpipe_policy, one_f_one_b_policy, zero_bubble_policy
from holmes_hpc.values import Pipeline, ScheduleChoice
from holmes_hpc.values.schedule_kinds import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, ScheduleKind

Orders = Mapping[int, Sequence[Pass]]
Build = Callable[[Sequence[Pipeline], Mapping[Place, int], ScheduleChoice], Orders]
"""From pipelines, the extra warm-up forwards by hop, and the choice, to the work of every rank in order."""


def _gpipe(pipelines: Sequence[Pipeline], warmups: Mapping[Place, int], choice: ScheduleChoice) -> Orders:
    return order_passes(pipelines, gpipe_policy(pipelines))


def _one_f_one_b(pipelines: Sequence[Pipeline], warmups: Mapping[Place, int], choice: ScheduleChoice) -> Orders:
    if is_unshared(pipelines):
        return one_f_one_b_orders(pipelines, warmups)
    return order_passes(pipelines, one_f_one_b_policy(pipelines, warmups))


def _interleaved(pipelines: Sequence[Pipeline], warmups: Mapping[Place, int], choice: ScheduleChoice) -> Orders:
    if choice.chunks > 1 and goes_round(pipelines, choice.chunks):
        return interleaved_orders(pipelines, choice.chunks, warmups)
    return _one_f_one_b(pipelines, warmups, choice)


def _zero_bubble(pipelines: Sequence[Pipeline], warmups: Mapping[Place, int], choice: ScheduleChoice) -> Orders:
    return order_passes(pipelines, zero_bubble_policy(pipelines, warmups, choice))


ORDERS: Mapping[ScheduleKind, Build] = {
    GPIPE: _gpipe, ONE_F_ONE_B: _one_f_one_b, INTERLEAVED: _interleaved, ZERO_BUBBLE: _zero_bubble,
}
