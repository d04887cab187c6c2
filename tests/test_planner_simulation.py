"""The simulator: published efficiencies over a slow hop, links that are shared, overlap, turns."""

import math

import pytest

from holmes_hpc.planner.network_cost import Traffic
from holmes_hpc.planner.schedules import make_schedule
from holmes_hpc.planner.simulation import Prices, simulate
from holmes_hpc.values import ActionKind, Group, Pipeline, ScheduleChoice, Stage

SECONDS = {ActionKind.FORWARD: 1, ActionKind.BACKWARD: 2, ActionKind.BACKWARD_INPUT: 1, ActionKind.BACKWARD_WEIGHT: 1}


def efficiency(depth: int, microbatches: int, delay: float, name: str, extra: int = 0) -> float:
    """Return ideal compute over the step, for F = 1 and B = 2 and one slow hop in the middle of the ranks.

    Half of the delay is the time on the wire and half latency, as in the published table.
    """
    chunks = 2 if name == "interleaved" else 1
    cut = depth // 2 - 1
    stages = tuple(Stage((s % depth,), s, 1) for s in range(depth * chunks))
    pipeline = Pipeline(microbatches, stages)
    slow = {frozenset((cut, cut + 1))} | ({frozenset((depth - 1, 0))} if chunks > 1 else set())
    edges = {frozenset((s % depth, (s + 1) % depth)) for s in range(len(stages) - 1)}
    groups = tuple(Group("pipeline", tuple(sorted(edge)), "ethernet" if edge in slow else "ib") for edge in edges)
    hop = round(1000 * delay)
    choice = ScheduleChoice(
        name, extra, chunks, stage_times=(((1000, 2000, 1000),) * depth,),
        hop_times=(tuple((hop, hop // 2) if s == cut else (0, 0) for s in range(depth - 1)),))
    schedule = make_schedule((pipeline,), groups, (), choice)
    messages = {}
    for edge in edges:
        for a, b in (tuple(edge), tuple(edge)[::-1]):
            part = delay / 2 if edge in slow else 0.0
            messages[a, b] = Traffic(part, part, {("link", f"{a}>{b}"): part} if part else {})
    compute = {(kind, 0, s): seconds / chunks for s in range(len(stages)) for kind, seconds in SECONDS.items()}
    prices = Prices(compute, messages, (), dict.fromkeys(range(depth), 0.0))
    return 3 * microbatches / simulate(schedule, (), prices).step_seconds


PUBLISHED = {
    (4, 32, 0.0): (0.914, 0.914, 0.914, 0.955, 0.941, 0.941),
    (4, 32, 0.1): (0.887, 0.913, 0.913, 0.950, 0.939, 0.939),
    (4, 32, 0.25): (0.850, 0.910, 0.910, 0.941, 0.937, 0.937),
    (4, 32, 0.5): (0.793, 0.906, 0.906, 0.928, 0.932, 0.932),
    (4, 32, 1.0): (0.701, 0.897, 0.897, 0.835, 0.850, 0.923),
    (4, 32, 2.0): (0.568, 0.881, 0.881, 0.602, 0.727, 0.906),
    (4, 32, 4.0): (0.412, 0.850, 0.667, 0.382, 0.536, 0.873),
    (4, 32, 8.0): (0.264, 0.627, 0.348, 0.220, 0.371, 0.644),
    (8, 32, 1.0): (0.653, 0.807, 0.807, 0.817, 0.814, 0.857),
    (8, 32, 2.0): (0.542, 0.793, 0.793, 0.611, 0.744, 0.842),
    (2, 16, 1.0): (0.716, 0.906, 0.906, 0.744, 0.814, 0.923),
    (4, 16, 2.0): (0.539, 0.787, 0.787, 0.571, 0.686, 0.828),
}
"""1F1B, 1F1B with k = ceil(2 D / (F + B)), GPipe, interleaved, split backward in the memory of 1F1B, and with k."""


@pytest.mark.parametrize("case", PUBLISHED)
def test_efficiency_over_a_slow_hop(case: tuple[int, int, float]) -> None:
    depth, microbatches, delay = case
    extra = math.ceil(2 * delay / 3)
    found = [efficiency(depth, microbatches, delay, *kind) for kind in (
        ("1f1b",), ("1f1b", extra), ("gpipe",), ("interleaved",), ("zero_bubble",), ("zero_bubble", extra))]
    assert found[:4] == pytest.approx(PUBLISHED[case][:4], abs=0.02)
    # The split orders are found by a greedy rule that leaves ties open: ours may be better, and is by up to 0.026.
    for ours, published in zip(found[4:], PUBLISHED[case][4:], strict=True):
        assert published - 0.02 <= ours <= published + 0.03
