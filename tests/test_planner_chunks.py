"""Pipelines in chunks, which `auto` tries where it is free to."""

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner import plan
from holmes_hpc.planner.making import assemble, find_best
from holmes_hpc.planner.search.budget import SearchBudget
from holmes_hpc.planner.search.in_chunks import go_round
from holmes_hpc.schedule import build_schedule
from holmes_hpc.values import Pipeline, Plan, Stage
from tests.planner_problems import SMALL, Problem
from tests.schedule_rules import schedule_problems

TWO_NODES = Problem("two nodes of 3090s", (("3090", "eth25", (8, 8)),), layers=32, hidden=4096, batch=32)
MIXED = SMALL[0]


def test_chunks_are_taken_where_they_pay() -> None:
    task = TWO_NODES.task()
    found, rejected = find_best(task)
    plain, _ = find_best(TWO_NODES.task("parallel.chunks=1"))
    assert plain.schedule.chunks == 1
    assert found.schedule.name == "interleaved"
    assert found.seconds < 0.99 * plain.seconds
    made = assemble(task, found, rejected)
    assert Plan.from_json(made.to_json()) == made
    assert schedule_problems(made.pipelines, made.reductions, build_schedule(made)) == []
    for pipeline in made.pipelines:
        assert sum(stage.num_layers for stage in pipeline.stages) == 32
        assert len({stage.ranks for stage in pipeline.stages}) * made.schedule.chunks == len(pipeline.stages)


@pytest.mark.parametrize(("asked", "chunks"), [
    (["parallel.schedule=1f1b"], 1), (["parallel.schedule=zero_bubble"], 1), (["parallel.layer_split=uniform"], 1),
    (["parallel.chunks=2", "parallel.pipeline=4"], 2)])
def test_what_is_asked_for_is_kept(asked: list[str], chunks: int) -> None:
    found, _ = find_best(TWO_NODES.task(*asked, "parallel.micro_batch_size=1"))
    assert found.schedule.chunks == chunks


def test_over_slow_links_nothing_goes_round() -> None:
    found, _ = find_best(MIXED.task("parallel.leave_nodes_out=false"))
    assert found.schedule.chunks == 1


def test_chunks_may_take_a_tenth_of_the_work() -> None:
    budget = SearchBudget(None, 16)
    first, second = budget.allowance(), budget.allowance_to_improve()
    first.units -= 1000
    second.units -= 500
    assert budget.allowance_for_chunks().units == pytest.approx(150)


def test_ranks_keep_their_layers() -> None:
    pipeline = Pipeline(4, (Stage((0, 1), 0, 5), Stage((2, 3), 5, 2)))
    rounds = go_round(pipeline, 2)
    assert rounds is not None
    assert [(stage.ranks, stage.first_layer, stage.num_layers) for stage in rounds.stages] == [
        ((0, 1), 0, 3), ((2, 3), 3, 1), ((0, 1), 4, 2), ((2, 3), 6, 1)]
    assert go_round(pipeline, 3) is None


def manual(chunks: int, *pipelines: Pipeline) -> Plan:
    layers = sum(stage.num_layers for stage in pipelines[0].stages)
    written = ",".join(
        f"{{microbatches: {pipeline.microbatches}, stages: ["
        + ",".join(f"{{ranks: {list(stage.ranks)}, layers: {stage.num_layers}}}" for stage in pipeline.stages) + "]}"
        for pipeline in pipelines)
    return plan(compose(["+cluster=mixed", "parallel=manual", f"parallel.pipelines=[{written}]",
                         f"parallel.chunks={chunks}", f"model.num_layers={layers}"]), mode="slurm")


def test_pipelines_written_in_chunks_run_as_those_of_a_strategy() -> None:
    chosen = plan(compose(["+cluster=mixed", "parallel=holmes", "parallel.pipeline=2", "parallel.chunks=2"]),
                  mode="slurm")
    written = manual(2, *chosen.pipelines)
    assert written.pipelines == chosen.pipelines
    assert written.schedule.chunks == 2
    assert written.schedule.digest == chosen.schedule.digest
    assert written.predicted.step_seconds == pytest.approx(chosen.predicted.step_seconds, rel=1e-9)


@pytest.mark.parametrize("nodes", [(0, 1, 2, 3), (0, 1, 2, 3, 0), (0, 0, 1, 1, 2, 2, 3, 3), (0, 0, 1, 0, 0, 1, 2, 3)],
                         ids=["one round", "an odd number", "not round", "not alike"])
def test_pipelines_that_do_not_go_round_have_no_chunks(nodes: tuple[int, ...]) -> None:
    layers = [1] * (len(nodes) - 1) + [9 - len(nodes)]
    pipeline = Pipeline(32, tuple(Stage((2 * node, 2 * node + 1), 0, count)
                                  for node, count in zip(nodes, layers, strict=True)))
    with pytest.raises(PlanRefusedError, match=r"parallel.pipelines\[0\]: with parallel.chunks=2 .*0, 1, 0, 1, or"):
        manual(2, pipeline)
    assert manual(1, pipeline).schedule.chunks == 1
