"""The 1F1B order in closed form, for ranks that are each in one stage (Narayanan et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holmes_hpc.schedule.list_scheduling import BACKWARD, FORWARD, Pass
from holmes_hpc.schedule.policies import Place, in_flight_caps
from holmes_hpc.values import Pipeline


def is_unshared(pipelines: Sequence[Pipeline]) -> bool:
    """Return whether every rank is in one stage of one pipeline."""
    ranks = [rank for pipeline in pipelines for stage in pipeline.stages for rank in stage.ranks]
    return len(set(ranks)) == len(ranks)


def one_f_one_b_orders(pipelines: Sequence[Pipeline], warmups: Mapping[Place, int]) -> dict[int, list[Pass]]:
    """Return each rank's work: forwards until as many are in flight as may be, then a backward for each forward.

    That is what list scheduling by `policies.one_f_one_b_policy` finds where no rank is shared; a test compares.
    """
    caps = in_flight_caps(pipelines, warmups)
    orders: dict[int, list[Pass]] = {}
    for p, pipeline in enumerate(pipelines):
        count = pipeline.microbatches
        for s, stage in enumerate(pipeline.stages):
            ahead = min(count, caps[p, s])
            order: list[Pass] = [(FORWARD, p, s, i) for i in range(ahead)]
            for i in range(count):
                order.append((BACKWARD, p, s, i))
                if ahead + i < count:
                    order.append((FORWARD, p, s, ahead + i))
            orders.update(dict.fromkeys(stage.ranks, order))
    return dict(sorted(orders.items()))
