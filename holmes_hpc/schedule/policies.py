"""What bounds and times the work of a schedule whose order is found by list scheduling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from holmes_hpc.values import Pipeline, ScheduleChoice

Place = tuple[int, int]
"""(pipeline, stage); of a hop, the stage before it."""

Item = TypeVar("Item")

_BACKWARD_FORWARDS = 2


@dataclass(frozen=True)
class Policy:
    """How work is ordered.

    `times[place]` are the whole-number times of a stage's forward, backward and weight part (0 unless `split`, and
    part of the backward's otherwise). `hops[place]` is the delay of a message to or from the next stage and how long
    it occupies the link. `caps[place]` is the number of micro-batches that may be in flight there; a missing key
    means no bound. `backward_first` prefers a backward that is ready to a forward.
    """

    times: Mapping[Place, tuple[int, int, int]]
    hops: Mapping[Place, tuple[int, int]] = field(default_factory=dict)
    caps: Mapping[Place, int] = field(default_factory=dict)
    backward_first: bool = True
    split: bool = False


def gpipe_policy(pipelines: Sequence[Pipeline]) -> Policy:
    """Return GPipe's policy: all forwards, then all backwards (Huang et al. 2019)."""
    return Policy(balanced_times(pipelines), backward_first=False)


def one_f_one_b_policy(pipelines: Sequence[Pipeline], warmups: Mapping[Place, int]) -> Policy:
    """Return the policy of 1F1B, with `warmups[hop]` more forwards in flight upstream of a hop.

    The extra forwards are only worth their memory while a message is on its way: a hop that deserves `k` of them
    takes 1.5 k forward times (k = 2 D / (F + B) with B = 2 F), and that is the delay that the ordering assumes.
    """
    times = balanced_times(pipelines)
    hops = {place: (round(1.5 * extra * times[place][0]), 0) for place, extra in warmups.items()}
    return Policy(times, hops, in_flight_caps(pipelines, warmups))


def zero_bubble_policy(pipelines: Sequence[Pipeline], warmups: Mapping[Place, int], choice: ScheduleChoice) -> Policy:
    """Return the policy of a split backward with the memory of 1F1B (like ZB-H1, Qi et al. 2024).

    The gradient that the stage before waits for comes first, then a forward while memory allows it; weight gradients
    fill the time that is left. What that is depends on the times, which the plan carries.
    """
    times = _given_times(pipelines, choice) or {
        place: (forward, forward, forward) for place, (forward, _, _) in balanced_times(pipelines).items()}
    hops = {(p, s): (row[s][0], row[s][1]) for p in range(len(pipelines))
            for row in [row_of(choice.hop_times, p)] for s in range(len(row))}
    hops = hops or {place: (round(1.5 * extra * times[place][0]), 0) for place, extra in warmups.items()}
    return Policy(times, hops, in_flight_caps(pipelines, warmups), split=True)


def in_flight_caps(pipelines: Sequence[Pipeline], warmups: Mapping[Place, int]) -> dict[Place, int]:
    """Return the most micro-batches in flight at every stage: those of the stages behind it, one more, and the extra.

    The bound is per stage, so that a rank that serves several stages of one pipeline cannot fill itself with the
    first and starve the last; over a rank it sums up.
    """
    caps = {}
    for p, pipeline in enumerate(pipelines):
        extra, depth = 0, len(pipeline.stages)
        for s in reversed(range(depth)):
            extra += warmups.get((p, s), 0)
            caps[p, s] = depth - s + extra
    return caps


def balanced_times(pipelines: Sequence[Pipeline]) -> dict[Place, tuple[int, int, int]]:
    """Return times under the assumption that the layer split has balanced the ranks over the step.

    A backward takes twice a forward, and a forward of a rank takes the less the more micro-batches the rank serves.
    All are even, so that half a forward is a whole number too.
    """
    load: dict[int, int] = {}
    for pipeline in pipelines:
        for stage in pipeline.stages:
            for rank in stage.ranks:
                load[rank] = load.get(rank, 0) + pipeline.microbatches
    busiest = {
        (p, s): max(load[rank] for rank in stage.ranks)
        for p, pipeline in enumerate(pipelines) for s, stage in enumerate(pipeline.stages)
    }
    common = math.lcm(*busiest.values())
    return {place: (forward, _BACKWARD_FORWARDS * forward, 0)
            for place, count in busiest.items() for forward in [2 * common // count]}


def row_of(rows: Sequence[Sequence[Item]], pipeline: int) -> Sequence[Item]:
    """Return the row of a pipeline in a table that has one for each, one for all, or none."""
    if not rows:
        return ()
    return rows[pipeline] if len(rows) > 1 else rows[0]


def _given_times(pipelines: Sequence[Pipeline], choice: ScheduleChoice) -> dict[Place, tuple[int, int, int]]:
    """Return the times that the plan carries, the backward's without its weight part."""
    if not choice.stage_times:
        return {}
    return {(p, s): (row[s][0], row[s][1] - row[s][2], row[s][2])
            for p, pipeline in enumerate(pipelines) for row in [row_of(choice.stage_times, p)]
            for s in range(len(pipeline.stages))}
