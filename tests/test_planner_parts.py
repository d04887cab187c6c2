"""Layer splits, pipelines through unequal stages, simulation of small schedules."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.cost.network import Traffic
from holmes_hpc.planner.layout.pipelines import apportion, build_pipelines, count_microbatches, overlaps
from holmes_hpc.planner.simulation.events import Prices, simulate
from holmes_hpc.planner.strategies import layer_split
from holmes_hpc.planner.strategies.layer_split import StageCost
from holmes_hpc.schedule.building import make_schedule
from holmes_hpc.values import ActionKind, Group, Reduction, ScheduleChoice
from tests.fuzzing import examples


def test_uniform_gives_the_remainder_to_the_first_stages() -> None:
    assert layer_split.uniform(30, 4) == (8, 8, 7, 7)
    assert layer_split.uniform(4, 4) == (1, 1, 1, 1)


@pytest.mark.parametrize(("layers", "expected"), [(48, (26, 22)), (30, (16, 14))])
def test_holmes_formula_gives_the_authors_splits(layers: int, expected: tuple[int, int]) -> None:
    assert layer_split.holmes(layers, [197, 160], alpha=1.05) == expected
    assert layer_split.holmes(layers, [160, 197], alpha=1.05) == expected[::-1]


def test_holmes_formula_with_equal_speeds_is_uniform() -> None:
    assert layer_split.holmes(10, [3.0, 3.0, 3.0], alpha=1.05) == (4, 3, 3)


@given(st.integers(2, 100), st.lists(st.floats(0.1, 10), min_size=1, max_size=6))
def test_splits_sum_to_the_layers(layers: int, speeds: list[float]) -> None:
    try:
        counts = layer_split.holmes(layers, speeds, alpha=1.05)
    except PlanRefusedError:
        return
    assert sum(counts) == layers
    assert min(counts) >= 1


@examples(80)
@given(st.integers(1, 12), st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 20), st.integers(0, 8)), min_size=1, max_size=4))
def test_adaptive_is_as_good_as_every_contiguous_cut(layers: int, stages: list[tuple[int, int, int]]) -> None:
    costs = [StageCost(float(layer), float(fixed), most) for layer, fixed, most in stages]

    def longest(counts: tuple[int, ...]) -> float:
        return max(c.fixed_seconds + n * c.layer_seconds for c, n in zip(costs, counts, strict=True))

    cuts = [counts for counts in itertools.product(range(1, layers + 1), repeat=len(costs))
            if sum(counts) == layers and all(n <= c.max_layers for n, c in zip(counts, costs, strict=True))]
    if not cuts:
        with pytest.raises(PlanRefusedError):
            layer_split.adaptive(layers, costs)
        return
    counts = layer_split.adaptive(layers, costs)
    assert counts in cuts
    assert longest(counts) == min(map(longest, cuts))


def test_refused_splits_say_why() -> None:
    with pytest.raises(PlanRefusedError, match="5 pipeline stages need at least as many layers"):
        layer_split.uniform(4, 5)
    with pytest.raises(PlanRefusedError, match="sums to 5, and the model has 4"):
        layer_split.explicit(4, [2, 3], 2)
    with pytest.raises(PlanRefusedError, match="names 3 stages"):
        layer_split.explicit(4, [1, 1, 2], 2)
    with pytest.raises(PlanRefusedError, match="at least 1"):
        layer_split.explicit(4, [4, 0], 2)
    with pytest.raises(PlanRefusedError, match="memory.*can hold 2, 1 layers"):
        layer_split.adaptive(4, [StageCost(1, 0, 2), StageCost(1, 0, 1)])


def test_overlaps_of_unequal_stages() -> None:
    six_beside_two = overlaps([6, 2])
    assert [way for _, way in six_beside_two] == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]
    assert {share for share, _ in six_beside_two} == {Fraction(1, 6)}
    five_beside_three = overlaps([5, 3])
    assert len(five_beside_three) == 7
    assert sum(share for share, _ in five_beside_three) == 1


def test_apportion_by_largest_remainder() -> None:
    assert apportion(15, [share for share, _ in overlaps([5, 3])]) == (3, 2, 1, 3, 1, 2, 3)
    assert apportion(7, [Fraction(9, 10), Fraction(1, 20), Fraction(1, 20)]) == (5, 1, 1)
    with pytest.raises(PlanRefusedError, match="each needs at least one"):
        apportion(2, [Fraction(1, 3)] * 3)


@given(st.integers(1, 200), st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_microbatches_sum_and_stages_share_evenly(total: int, widths: list[int]) -> None:
    ways = overlaps(widths)
    if total < len(ways):
        return
    stages = [[(100 * s + k,) for k in range(width)] for s, width in enumerate(widths)]
    pipelines = build_pipelines(stages, [1] * len(widths), total)
    assert sum(pipeline.microbatches for pipeline in pipelines) == total
    assert min(pipeline.microbatches for pipeline in pipelines) >= 1
    used = {stage.ranks for pipeline in pipelines for stage in pipeline.stages}
    assert used == {part for stage in stages for part in stage}


def test_batch_that_micro_batches_do_not_divide() -> None:
    assert count_microbatches(32, 4) == 8
    with pytest.raises(PlanRefusedError, match="global_batch_size=30.*one of 1, 2, 3, 5, 6, 10, 15, 30"):
        count_microbatches(30, 4)


FORWARD, BACKWARD = 1.0, 2.0


def simulated(depth: int, microbatches: int, hop: Traffic, name: str = "1f1b", extra: int = 0,
              cut: int | None = None) -> float:
    """A chain of equal stages; `hop` is the price of the hop after stage `cut`, the others cost nothing."""
    pipelines = build_pipelines([[(s,)] for s in range(depth)], [1] * depth, microbatches)
    groups = tuple(Group("pipeline", (s, s + 1), "ethernet" if s == cut else "local") for s in range(depth - 1))
    schedule = make_schedule(pipelines, groups, (), ScheduleChoice(name, extra))
    compute = {(kind, 0, s): seconds for s in range(depth)
               for kind, seconds in ((ActionKind.FORWARD, FORWARD), (ActionKind.BACKWARD, BACKWARD))}
    messages = {pair: hop if s == cut else Traffic(0.0) for s in range(depth - 1) for pair in ((s, s + 1), (s + 1, s))}
    return simulate(schedule, (), Prices(compute, messages, (), dict.fromkeys(range(depth), 0.0))).step_seconds


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("depth", "microbatches"), [(1, 4), (2, 4), (4, 8), (4, 32)])
def test_simulation_without_network_has_the_known_bubble(name: str, depth: int, microbatches: int) -> None:
    expected = (microbatches + depth - 1) * (FORWARD + BACKWARD)
    assert simulated(depth, microbatches, Traffic(0.0), name) == pytest.approx(expected)


@pytest.mark.parametrize(("delay", "efficiency", "extra", "warm"), [(1.0, 0.701, 1, 0.897), (2.0, 0.568, 2, 0.881)])
def test_extra_warmup_hides_a_slow_hop(delay: float, efficiency: float, extra: int, warm: float) -> None:
    """Ideal compute over the step for 4 stages, 32 micro-batches and a hop of half wire time, half latency."""
    out = Traffic(delay / 2, delay / 2, {("a", "out"): delay / 2})
    ideal = 32 * (FORWARD + BACKWARD)
    assert ideal / simulated(4, 32, out, cut=1) == pytest.approx(efficiency, abs=0.02)
    assert ideal / simulated(4, 32, out, cut=1, extra=extra) == pytest.approx(warm, abs=0.02)


def test_messages_over_one_nic_pass_one_after_the_other() -> None:
    pipelines = build_pipelines([[(0,), (1,)], [(2,), (3,)]], [1, 1], 2)
    schedule = make_schedule(pipelines, (), (), ScheduleChoice("1f1b"))
    compute = {(kind, p, s): 1.0 for p in range(2) for s in range(2)
               for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)}
    ends = []
    for nic in (("a", "a"), ("a", "b")):
        messages = {(r, r + 2): Traffic(5.0, 0.0, {(nic[r], "out"): 5.0}) for r in range(2)}
        messages |= {(r + 2, r): Traffic(0.0) for r in range(2)}
        prices = Prices(compute, messages, (), dict.fromkeys(range(4), 0.0))
        ends.append(simulate(schedule, (), prices).step_seconds)
    assert ends == [1 + 5 + 5 + 1 + 1 + 1, 1 + 5 + 1 + 1 + 1]


def test_ranks_that_share_cores_take_at_least_the_work() -> None:
    pipelines = build_pipelines([[(r,) for r in range(8)]], [1], 8)
    reductions = (Reduction(("layers.0",), tuple(range(8))),)
    schedule = make_schedule(pipelines, (), reductions, ScheduleChoice("1f1b"))
    compute = {(kind, p, 0): 1.0 for p in range(8) for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)}
    prices = Prices(compute, {}, (Traffic(0.5),), dict.fromkeys(range(8), 0.0), dict.fromkeys(range(8), "here"),
                    {"here": 2})
    timeline = simulate(schedule, reductions, prices)
    assert timeline.step_seconds == pytest.approx(8 * 2 / 2 + 0.5)
    assert sum(timeline.busy_seconds.values()) == pytest.approx(16)
    assert math.isclose(simulate(schedule, reductions, Prices(compute, {}, (Traffic(0.5),),
                                                              dict.fromkeys(range(8), 0.0))).step_seconds, 2.5)
