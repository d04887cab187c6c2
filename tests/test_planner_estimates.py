"""The closed form against the simulation: near it for layouts of every kind, in one order with it, and with one cut."""

from __future__ import annotations

import functools
import statistics

import numpy
import pytest

from benchmarks.estimates import Compared, compare, order
from holmes_hpc.planner.strategies import holmes
from holmes_hpc.planner.strategies.closed_form import Hops, exposed_gathers, exposed_sums, passing
from holmes_hpc.planner.strategies.estimates import Estimated, ShapeSearch, estimate_shapes
from holmes_hpc.planner.strategies.fleets.shared_stages import shared_shapes
from holmes_hpc.planner.strategies.fleets.space import Space
from tests.planner_problems import Problem

FIXED = ("parallel.leave_nodes_out=false", "parallel.warmup_extra=0", "parallel.recompute=none")
SPREAD = (
    Problem("two kinds", (("a100-80g", "hdr200", (4,)), ("v100", "roce100", (4,))), layers=12, batch=32),
    Problem("slow Ethernet", (("a100-80g", "hdr200", (4,)), ("a100-80g", "roce100", (4,))), layers=12, batch=32,
            ethernet_gbps=5),
    Problem("tied, unequal", (("a100-80g", "hdr200", (2, 2)), ("v100", "roce100", (2,))), layers=12, batch=32,
            tied=True),
    Problem("one fabric of Ethernet", (("a100-80g", "eth25", (2, 2, 2)),), layers=12, batch=24),
)


@functools.cache
def compared() -> tuple[Compared, ...]:
    return tuple(each for problem in SPREAD for each in compare(problem.name, problem.task(*FIXED), most=6))


@pytest.mark.parametrize("form", ["holmes", "megatron", "shared stages", "fleets of flashflex", "fleets of unlike"])
def test_estimates_are_near_the_first_simulation(form: str) -> None:
    found = [each for each in compared() if each.form == form]
    assert len(found) >= 12
    assert statistics.mean(abs(each.ratio - 1) for each in found) < OFF[form], sorted(each.ratio for each in found)
    assert 0.5 < min(each.ratio for each in found) <= max(each.ratio for each in found) < 1.6


OFF = {"holmes": 0.12, "megatron": 0.1, "shared stages": 0.16, "fleets of flashflex": 0.12, "fleets of unlike": 0.12}
"""What estimates are off by on average, at most."""


def test_estimates_put_layouts_in_the_order_of_the_simulation() -> None:
    assert order(compared()) > 0.8


def hops_of(count: int, seconds: float) -> Hops:
    return Hops(*(numpy.full((1, count), seconds),) * 3)


def test_equal_pipelines_without_messages_fill_and_drain() -> None:
    """m micro-batches through p equal stages take m + p - 1 times."""
    found = passing(numpy.full((1, 4), 3.0), hops_of(3, 0.0), numpy.array([8.0]))
    assert 8 * found.period[0] + found.fill[0] == pytest.approx((8 + 4 - 1) * 3)


def test_micro_batches_that_may_all_start_at_once_wait_a_single_time() -> None:
    found = passing(numpy.full((1, 2), 3.0), hops_of(1, 1.0), numpy.array([1.0]))
    assert found.period[0] + found.fill[0] == pytest.approx(3 + 3 + 2)


def test_a_nic_that_sends_nothing_is_never_what_pipelines_wait_for() -> None:
    """One micro-batch fills and drains for the sum of its stages, which rounding put behind that of an idle NIC."""
    times = numpy.random.default_rng(0).uniform(0.1, 1.0, (200, 8))
    found = passing(times, hops_of(7, 0.0), numpy.ones(200), extra=None, nic=numpy.zeros(200))
    assert (found.period > 0).all()
    assert found.period + found.fill == pytest.approx(times.sum(axis=1))


def test_two_stages_over_a_slow_hop_take_a_round_trip_for_two_micro_batches() -> None:
    hops = hops_of(1, 5.0)
    found = passing(numpy.full((1, 2), 3.0), hops, numpy.array([8.0]))
    assert found.period[0] == pytest.approx((3 + 3 + 10) / 2)
    # Worked out by hand: the last backward ends three seconds after four round trips.
    assert 8 * found.period[0] + found.fill[0] == pytest.approx(4 * 16 + 3)
    assert passing(numpy.full((1, 2), 3.0), hops, numpy.array([8.0]), extra=None).period[0] == 3.0


def test_sums_hide_behind_the_backwards_of_earlier_stages() -> None:
    times, hops = numpy.full((1, 3), 3.0), hops_of(2, 0.0)
    sums, one = numpy.array([[1.0, 1.0, 7.0]]), numpy.ones((1, 3))
    assert exposed_sums(times, hops, sums, one, overlapped=False)[0] == pytest.approx(7 - 2 * 2)
    # On one NIC those of earlier stages come behind it.
    assert exposed_sums(times, hops, sums, one, numpy.ones((1, 3, 3), dtype=bool), overlapped=False)[0] == 5.0
    assert exposed_gathers(times, hops, sums, one)[0] == pytest.approx(7 - 2 * 1)


def like(problem: Problem) -> tuple[Estimated, Estimated, tuple[int, ...]]:
    """Return two stages of all GPUs of a kind each, as holmes', as shared stages, and as a template's cut."""
    task = problem.task(*FIXED, "parallel.micro_batch_size=1", "parallel.tensor=1")
    space = Space(task)
    shape = next(shape for shape in holmes.shapes(task, 1) if len(shape.stages) == 2)
    own = next(each for each in estimate_shapes(task, [shape]) if isinstance(each, Estimated))
    first = next(k for k, kind in enumerate(space.kinds) if kind.fabric == task.cluster.node_of(
        shape.stages[0][0][0]).fabric)
    stages = tuple((k, 1, space.kinds[k].total_gpus) for k in (first, 1 - first))
    [(used, shapes)] = shared_shapes(task, space.kinds, [stages], "holmes")
    [shared] = ShapeSearch(used, shapes).fitting(1)
    [template] = space.templates(1, [tuple((k, 1, 1) for k, _, _ in stages)])
    return own, shared, template.layers


@pytest.mark.parametrize("problem", SPREAD[:2], ids=lambda problem: problem.name)
def test_one_layout_has_one_cut_and_one_estimate_whoever_proposes_it(problem: Problem) -> None:
    own, shared, layers = like(problem)
    assert own.shape.stages == shared.shape.stages
    assert own.layers == shared.layers == layers
    assert own.seconds == shared.seconds
