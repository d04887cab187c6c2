"""Plans of earlier formats are still read, and a plan refuses what it cannot mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.planner import for_library
from holmes_hpc.planner.cost.network import NetworkCost
from holmes_hpc.planner.layout.groups import GroupRules, find_groups
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.schedule import build_schedule
from holmes_hpc.values import Plan, Stage
from holmes_hpc.values.plan import FORMAT_VERSION
from tests.schedule_rules import schedule_problems

OLD = sorted((Path(__file__).parent / "data" / "plans").glob("format_1_*.json"))


def read_plan(name: str) -> Any:
    return json.loads(next(path for path in OLD if path.stem == f"format_1_{name}").read_text())


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_plans_of_format_1_are_read_as_plans_of_this(path: Path) -> None:
    assert json.loads(path.read_text())["format_version"] == 1
    plan = Plan.from_json(path.read_text())
    assert plan.format_version == FORMAT_VERSION > 1
    assert all(stage.tensor == len(stage.ranks) for pipeline in plan.pipelines for stage in pipeline.stages)
    assert Plan.from_json(plan.to_json()) == plan


def old(name: str) -> Plan:
    return Plan.from_json(next(path for path in OLD if path.stem == f"format_1_{name}").read_text())


@pytest.mark.parametrize(("name", "operations"), [
    ("two_levels", ["reduce_scatter", "reduce_scatter", "all_reduce", "all_gather", "all_gather"]),
    ("megatron", ["all_reduce", "all_reduce"]),
    ("whole_sums", ["all_reduce", "all_reduce", "broadcast"]),
])
def test_sums_of_format_1_become_the_levels_that_its_engine_had(name: str, operations: list[str]) -> None:
    """Those inside nodes it made itself on gloo, as a run on gloo now fits the plan."""
    plan = for_library(old(name), knows_nodes=False)
    table = next(each for each in plan.reductions if each.owns == ("embedding.token",))
    assert [level.operation.value for level in (*table.levels, *table.gathers)] == operations
    before = read_plan(name)
    assert {(group.kind, group.ranks) for group in plan.groups} >= {
        (group["kind"], tuple(group["ranks"])) for group in before["groups"]}
    for reduction, earlier in zip(plan.reductions, before["reductions"], strict=True):
        sums = {plan.groups[i].ranks for i in (*reduction.groups, *reduction.copies)}
        assert sums >= {tuple(before["groups"][i]["ranks"]) for i in (*earlier["inner"], *earlier["outer"])}
    schedule = build_schedule(plan)
    assert schedule_problems(plan.pipelines, plan.reductions, schedule) == []


def test_a_plan_of_format_1_is_explained_and_predicted_as_it_was() -> None:
    """Its figures are of a machine whose CPU was slower, so those of its groups and levels alone are compared."""
    config = compose(["+cluster=mixed", "parallel=holmes", "parallel.pipeline=2", "parallel.micro_batch_size=1"])
    plan = old("two_levels")
    task, layout = restore(config, plan, "emulated")
    groups, reductions = find_groups(task.architecture, task.cluster, plan.pipelines, GroupRules(), sharded=True,
                                     in_nodes=True)
    assert {group for group in groups if group.kind != "turn"} == set(layout.groups)
    network, found = NetworkCost(task.machine), NetworkCost(task.machine)
    for ours, theirs in zip(reductions, layout.reductions, strict=True):
        assert network.summed(ours, groups, 1e8) == found.summed(theirs, layout.groups, 1e8)
        assert network.gathered(ours, groups, 1e8) == found.gathered(theirs, layout.groups, 1e8)


def test_a_format_that_is_not_known_is_refused() -> None:
    data = json.loads(OLD[0].read_text())
    with pytest.raises(ValueError, match=r"plan of format 99: this version reads the formats 1 and 2"):
        Plan.from_json(json.dumps(data | {"format_version": 99}))


def test_the_ranks_of_a_stage_are_the_product_of_its_degrees() -> None:
    assert Stage((4, 5), 0, 2).tensor == 2
    assert Stage((4, 5), 0, 2, tensor=2) == Stage((4, 5), 0, 2)
    with pytest.raises(ValueError, match=r"a stage of 4 ranks with the tensor-parallel degree 2.*Set tensor to 4"):
        Stage((0, 1, 2, 3), 0, 2, tensor=2)


def test_a_plan_file_with_another_degree_names_the_stage() -> None:
    data = json.loads(OLD[0].read_text())
    data["pipelines"][0]["stages"][1]["tensor"] = 3
    with pytest.raises(ValueError, match=r"plan\.pipelines\[0\]\.stages\[1\]: a stage of 1 ranks"):
        Plan.from_json(json.dumps(data))
