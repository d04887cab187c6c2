"""Small clusters of unlike GPUs: what the closed forms say of tied tables and shared layers, and what is found."""

from __future__ import annotations

import pytest

from holmes_hpc.planner.making import find_best
from holmes_hpc.planner.simulation.replicas import likeness
from holmes_hpc.planner.strategies.estimates import Estimated, ShapeSearch
from holmes_hpc.planner.strategies.fleets.knapsack import Fleet
from holmes_hpc.planner.strategies.fleets.placed import Placed, placed_seconds
from holmes_hpc.planner.strategies.fleets.shared_stages import enumerate_stages, shared_shapes
from holmes_hpc.planner.strategies.fleets.space import Space
from holmes_hpc.planner.strategies.fleets.templates import Template
from holmes_hpc.values import Pipeline, Stage
from tests.planner_problems import Problem

ALL = "parallel.leave_nodes_out=false"
TWO = Problem("two", (("a100-80g", "hdr200", (2, 2)), ("t4", "eth25", (2,))), layers=6, batch=16, hidden=768,
              ethernet_gbps=10, tied=True, vocabulary=50257)
UNTIED = Problem("two", TWO.fabrics, layers=6, batch=16, hidden=768, ethernet_gbps=10, vocabulary=50257)
THREE = Problem("three", (("v100", "hdr200", (4, 4)), ("a100-80g", "roce100", (2,)), ("t4", "eth25", (2, 2))),
                layers=12, batch=64, hidden=768, tied=True, vocabulary=50257)


def shared(problem: Problem, stages: tuple[tuple[int, int, int], ...]) -> Estimated:
    """Return the estimate of stages of (kind, degree, width) that all pipelines share, in micro-batches of two."""
    space = Space(problem.task(ALL))
    [(task, shapes)] = shared_shapes(space.task, space.kinds, [stages], "auto")
    [found] = ShapeSearch(task, shapes).fitting(2)
    return found


def test_a_tied_table_between_fabrics_costs_what_ethernet_takes_for_it() -> None:
    """The table crosses 10 Gb/s of one node twice halved: its bytes times 2 (R - 1) / R of two ranks."""
    across = ((0, 1, 4), (1, 1, 2))
    table = 4 * 50257 * 768
    tied, untied = shared(TWO, across), shared(UNTIED, across)
    assert tied.layers == untied.layers
    assert tied.seconds - untied.seconds == pytest.approx(8 * table / 10e9, rel=0.3)


def test_stages_that_begin_and_end_on_one_kind_are_looked_at_where_the_table_is_tied() -> None:
    space = Space(THREE.task(ALL))
    plain = enumerate_stages(space.kinds, space.degrees, space.num_layers, may_idle=False)
    wrapped = enumerate_stages(space.kinds, space.degrees, space.num_layers, may_idle=False, wrap=True)
    assert set(plain) < set(wrapped)
    new = set(wrapped) - set(plain)
    assert all(stages[0][0] == stages[-1][0] and {kind for kind, _, _ in stages} == {0, 1, 2} for stages in new)


@pytest.mark.parametrize("problem", [TWO, THREE], ids=lambda problem: problem.name)
def test_the_plan_keeps_a_tied_table_inside_a_fabric(problem: Problem) -> None:
    best, _ = find_best(problem.task(ALL))
    ends = {best.task.cluster.node_of(pipeline.stages[s].ranks[0]).fabric
            for pipeline in best.layout.pipelines for s in (0, -1)}
    assert len(ends) == 1
    assert best.task.cluster.world_size == problem.task(ALL).cluster.world_size


def test_layers_that_unlike_pipelines_hold_in_unlike_fabrics_are_summed_across() -> None:
    space = Space(UNTIED.task(ALL))
    forth, back = space.templates(1, [((0, 1, 1), (1, 1, 1)), ((1, 1, 1), (0, 1, 1))])

    def seconds(*templates: Template) -> float:
        [found] = placed_seconds(space, [Placed(Fleet(tuple((each, 4) for each in templates), 0.0), 1, True)])
        return found

    crossing = sum(a != b for a, b in zip((0,) * forth.layers[0] + (1,) * forth.layers[1],
                                          (1,) * back.layers[0] + (0,) * back.layers[1], strict=True))
    alone = max(seconds(forth, forth), seconds(back, back))
    costs = space.stage_costs
    least = crossing * costs.layer_gradient_bytes() * costs.sync_seconds_a_byte(space.kinds, (2, 1))
    assert seconds(forth, back) >= max(seconds(forth), seconds(back)) + 0.99 * least
    assert seconds(forth, back) > alone


def test_layouts_are_alike_where_only_equal_nodes_change_names() -> None:
    cluster = TWO.task(ALL).cluster

    def layout(*ranks: tuple[int, int]) -> object:
        return likeness(cluster, [Pipeline(4, (Stage((a,), 0, 3), Stage((b,), 3, 3))) for a, b in ranks])

    assert layout((0, 2), (1, 3)) == layout((2, 0), (3, 1)) == layout((1, 3), (0, 2))
    assert layout((0, 2), (1, 3)) != layout((0, 1), (2, 3))
    assert layout((0, 4), (1, 5)) != layout((0, 2), (1, 3))
