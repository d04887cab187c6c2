"""Many fabrics: like ones are priced once, and what is looked at grows with their number, not with their orders."""

from __future__ import annotations

import dataclasses

import pytest

from holmes_hpc.cluster import Machine
from holmes_hpc.cluster.cluster import FabricLink
from holmes_hpc.planner.layout.node_kinds import alike_kinds, node_kinds, renamed
from holmes_hpc.planner.search.fewer_nodes import _some_kinds
from holmes_hpc.planner.strategies import flashflex, holmes
from holmes_hpc.planner.strategies.fleets.shared_stages import enumerate_stages
from holmes_hpc.planner.strategies.fleets.space import Space
from holmes_hpc.planner.strategies.fleets.templates import Batch, kind_orders, price_templates
from holmes_hpc.planner.task import Task
from tests.planner_problems import IB, ROCE, A, Problem, T, V

GPUS = (A, V, T)
NICS = (IB, ROCE)


def task(number: int, *, unlike: bool, overrides: tuple[str, ...] = ()) -> Task:
    fabrics = tuple((GPUS[f % 3] if unlike else A, NICS[f % 2] if unlike else IB, (4,) * (1 + f % 3 if unlike else 2))
                    for f in range(number))
    return Problem("many", fabrics, layers=48, batch=64).task("parallel.leave_nodes_out=false", *overrides)


def test_like_fabrics_are_one_sort_unless_a_link_tells_them_apart() -> None:
    given = task(3, unlike=False)
    assert alike_kinds(given) == (0, 0, 0)
    assert alike_kinds(task(3, unlike=True)) == (0, 1, 2)
    cluster = dataclasses.replace(given.cluster, links=(FabricLink(("f0", "f1"), 1.0, None, 10.0),))
    assert alike_kinds(dataclasses.replace(given, cluster=cluster, machine=Machine.described(cluster))) == (0, 1, 2)


def test_orders_that_differ_in_like_kinds_alone_have_one_name() -> None:
    like = (0, 1, 0, 1)
    orders = [(2, 1, 0), (0, 3, 2), (2, 3, 0)]
    assert {tuple(renamed(order, like)[k] for k in order) for order in orders} == {(0, 1, 2)}
    assert [renamed((1, 0), like)[k] for k in (1, 0)] == [1, 0]


def test_templates_of_like_kinds_cost_what_they_cost_alone() -> None:
    space = Space(task(3, unlike=False))
    found = {template.segments: template for template in space.templates(2)}
    alone = price_templates(space.stage_costs, space.kinds, list(found), space.num_layers, Batch(
        2, 32, space.extra_warmup, lambda segments: _hoped_for(space, segments)))
    assert len(alone) == len(found) > 100
    for template in alone:
        assert found[template.segments].layers == template.layers
        assert found[template.segments].period == pytest.approx(template.period, rel=1e-12)
        assert found[template.segments].fill == pytest.approx(template.fill, rel=1e-12)


def _hoped_for(space: Space, segments: tuple[tuple[int, int, int], ...]) -> object:
    from holmes_hpc.planner.strategies.fleets.memory import sharers_hoped_for

    return sharers_hoped_for(space.kinds, 32)(segments)


@pytest.mark.parametrize("unlike", [False, True])
def test_what_is_looked_at_does_not_explode_with_the_number_of_fabrics(unlike: bool) -> None:
    few, many = (Space(task(number, unlike=unlike)) for number in (6, 18))
    assert 0 < len(many.segments) < 4 * len(few.segments) + 2000
    kinds = {k for segments in many.segments for k, _, _ in segments}
    assert kinds == set(range(18)), "every fabric can be used"
    assert any(len(segments) == 18 for segments in many.segments), "and all of them by one pipeline"
    shared = enumerate_stages(many.kinds, many.degrees, 48, may_idle=False, like=many.like)
    assert 0 < len(shared) <= 1600
    vector = tuple(kind.total_gpus for kind in many.kinds)
    assert 0 < len(list(flashflex._exact(many, vector))) <= 8
    assert len(kind_orders(18, many.like)) < 200


def test_holmes_looks_at_a_bounded_number_of_counts_also_for_an_asked_depth() -> None:
    given = task(12, unlike=False, overrides=("parallel.pipeline=24",))
    counts = holmes._stage_counts(given, [8] * 12)
    assert 0 < len(counts) <= 2000
    assert (2,) * 12 in counts


def test_sets_of_nodes_left_out_that_differ_in_like_fabrics_alone_are_one() -> None:
    def sizes(given: Task) -> list[int]:
        return [len(node_kinds(some)) for some in _some_kinds(given)]

    assert sizes(task(3, unlike=False)) == [1, 2]
    assert sizes(task(3, unlike=True)) == [1, 1, 1, 2, 2, 2]
    assert sizes(task(8, unlike=False)) == [1, 4, 7]
