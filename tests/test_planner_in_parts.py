"""Very large clusters: a part is searched, and what it finds is repeated on all parts and priced whole."""

from __future__ import annotations

import pytest

from holmes_hpc.planner.making import assemble, find_best
from holmes_hpc.planner.search import in_parts
from holmes_hpc.planner.search.candidate import evaluate_schedule, make_layout
from holmes_hpc.planner.search.in_parts import on_whole, part_of
from holmes_hpc.planner.search.search import search
from holmes_hpc.planner.task import Task
from holmes_hpc.schedule import build_schedule
from tests.planner_problems import IB, ROCE, A, Problem, V
from tests.schedule_rules import schedule_problems


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_parts, "_LARGE", 8)
    monkeypatch.setattr(in_parts, "_LEAST_RANKS", 6)


def task(*overrides: str, nodes: tuple[int, int] = (4, 8), batch: int = 64) -> Task:
    fabrics = ((A, IB, (2,) * nodes[0]), (V, ROCE, (2,) * nodes[1]))
    return Problem("many nodes", fabrics, batch=batch).task("parallel.leave_nodes_out=false", *overrides)


def test_a_part_has_its_share_of_every_kind_and_of_the_batch(small_parts: None) -> None:
    part = part_of(task())
    assert part is not None and part.number == 4
    assert [node.label for node in part.task.cluster.nodes] == ["f0", "f1", "f1"]
    assert part.task.settings.global_batch_size == 16
    assert part_of(task("parallel.data=8")).task.settings.data == 2  # type: ignore[union-attr]


def test_what_has_no_equal_parts_is_searched_whole(small_parts: None) -> None:
    assert part_of(task(nodes=(3, 8))) is None
    assert part_of(task(batch=63)) is None
    assert part_of(task("parallel=megatron")) is None
    assert part_of(task(nodes=(1, 2))) is None


@pytest.mark.parametrize("overrides", [[], ["parallel.leave_nodes_out=true"], ["parallel.turns=true"]])
def test_a_plan_of_parts_holds_together_on_all_ranks(small_parts: None, overrides: list[str]) -> None:
    given = task("parallel.search_seconds=0.2", *overrides)
    best, rejected = find_best(given)
    made = assemble(given, best, rejected)
    used = [rank for pipeline in made.pipelines for stage in pipeline.stages for rank in stage.ranks]
    assert set(used) == set(range(made.world_size)) and made.world_size in (24, 16, 8)
    assert sum(pipeline.microbatches for pipeline in made.pipelines) * made.micro_batch_size == 64
    assert schedule_problems(made.pipelines, made.reductions, build_schedule(made)) == []
    layout = make_layout(best.task, best.strategy, made.pipelines, made.micro_batch_size, best.rules)
    assert evaluate_schedule(best.task, best.facts, layout, best.rules, best.schedule).seconds == best.seconds


def test_ranks_of_all_parts_do_what_those_of_one_do_and_sum_over_all(small_parts: None) -> None:
    part = part_of(task("parallel.search_seconds=0.2"))
    assert part is not None
    found = search(part.task).candidates
    for each in on_whole(part, found):
        like = next(one for one in found if one.facts.form == getattr(each.facts.form, "form", each.facts.form)
                    and one.schedule.name == each.schedule.name)
        assert each.seconds >= like.seconds * 0.98, "more ranks sum the same gradients"
        assert len(each.layout.pipelines) == 4 * len(like.layout.pipelines)
        assert [4 * len(reduction.owners) for reduction in like.layout.reductions] == [
            len(reduction.owners) for reduction in each.layout.reductions]


def test_megatron_keeps_its_own_numbers_of_ranks_on_the_whole_cluster(small_parts: None) -> None:
    part = part_of(task("parallel.search_seconds=0.2"))
    assert part is not None
    for found in search(part.task).candidates:
        if found.strategy == "megatron" and found.schedule.chunks == 1:
            repeated = in_parts._repeated(part, found)
            assert repeated is not None
            depth, tensor = (len(repeated.layout.pipelines[0].stages), repeated.layout.pipelines[0].stages[0].tensor)
            assert [stage.ranks for stage in repeated.layout.pipelines[1].stages] == [
                tuple(s * 24 // depth + tensor + j for j in range(tensor)) for s in range(depth)]
            return
    raise AssertionError("no layout of megatron")
