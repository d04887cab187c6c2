"""The levels in which a plan's gradients are summed: what the planner makes, what stands ready, what is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.planner import for_library, plan
from holmes_hpc.planner.cost.network import NetworkCost
from holmes_hpc.planner.task import task_of
from holmes_hpc.schedule import build_schedule, plan_digest
from holmes_hpc.values import ActionKind, Group, Level, Operation, Plan, Reduction
from holmes_hpc.values.capabilities import ENGINE, unable_to_sum, unsupported
from tests.schedule_rules import schedule_problems
from tests.tiny_plans import tiny_reduction

MIXED = ["+cluster=mixed", "parallel=holmes", "parallel.pipeline=2", "parallel.tensor=1", "parallel.schedule=1f1b",
         "parallel.turns=false"]
SCATTER, SUM, SHARE, GATHER = Operation


def made(*overrides: str, mode: str = "emulated") -> Plan:
    return plan(compose([*MIXED, *overrides]), mode=mode)


def ranks_of(groups: tuple[Group, ...], level: Level) -> list[tuple[int, ...]]:
    return [groups[index].ranks for index in level.groups]


def table_of(given: Plan) -> Reduction:
    return next(each for each in given.reductions if each.owns == ("embedding.token",))


def test_the_levels_of_a_tied_table_go_inside_nodes_then_fabrics_then_between() -> None:
    found = made()
    table = table_of(found)
    assert [(level.operation, level.parts) for level in table.levels] == [(SCATTER, 2), (SCATTER, 4), (SUM, 4)]
    inside, across, between = (ranks_of(found.groups, level) for level in table.levels)
    assert inside == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert across == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert between == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [(level.operation, level.groups) for level in table.gathers] == [
        (GATHER, table.levels[1].groups), (GATHER, table.levels[0].groups)], "back the same way"
    assert [found.groups[i].ranks for i in table.copies] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [found.groups[i].ranks for i in table.norm] == [(0, 1, 2, 3)], "each shard counts once in the norm"
    networks = {found.groups[i].kind: found.groups[i].network for level in table.levels[:2] for i in level.groups}
    assert networks == {"data_inside": "local", "data_across": "roce"}


def test_whole_sums_end_whole_on_every_owner() -> None:
    found = made("optimizer.sharded=false")
    table = table_of(found)
    assert [(level.operation, level.parts) for level in table.levels] == [(SUM, 1), (SUM, 4), (SHARE, 4)]
    assert table.levels[0].groups == table.levels[2].groups
    assert not table.divides and table.gathers == () and table.shards == 1
    assert not any(group.is_inside for group in found.groups)


def test_fabrics_of_unlike_nodes_have_a_level_each_inside() -> None:
    """Two nodes of two beside four of one, and beside two of three, of whose six ranks four have shards."""
    groups = [Group("data", (0, 1, 2, 3), "ib"), Group("data", (4, 5, 6, 7), "roce"),
              *(Group("data", (j, 4 + j), "ethernet") for j in range(4))]
    slots = "aabbcdef"
    reduction, all_groups = tiny_reduction(groups, tuple(range(8)), (1, 2), (3, 4, 5, 6), True, sharded=True,
                                           slot_of=slots.__getitem__)
    ranks = [[all_groups[i - 1].ranks for i in level.groups] for level in reduction.levels]
    assert ranks == [[(0, 1), (2, 3)], [(0, 2), (1, 3), (4, 5, 6, 7)], [(j, 4 + j) for j in range(4)]]
    groups[1] = Group("data", tuple(range(4, 10)), "roce")
    slots = "aabbcccddd"
    reduction, all_groups = tiny_reduction(groups, tuple(range(10)), (1, 2), (3, 4, 5, 6), True, sharded=True,
                                           slot_of=slots.__getitem__)
    ranks = [[all_groups[i - 1].ranks for i in level.groups] for level in reduction.levels]
    assert ranks == [[(0, 1), (2, 3)], [(0, 2), (1, 3), tuple(range(4, 10))], [(j, 4 + j) for j in range(4)]]
    assert reduction.shards == 4


@pytest.mark.parametrize("overrides", [[], ["parallel.two_level=false"], ["optimizer.sharded=false"]])
def test_a_plan_is_fitted_to_the_library_and_back(overrides: list[str]) -> None:
    """What a GPU cluster's plan becomes on gloo is what the planner makes for gloo, but for the order of groups."""
    described = made(*overrides, mode="slurm")
    on_gloo = for_library(described, knows_nodes=False)
    assert for_library(described, knows_nodes=True) is described
    assert for_library(on_gloo, knows_nodes=False) is on_gloo
    assert for_library(on_gloo, knows_nodes=True) == described
    assert on_gloo.predicted == described.predicted, "the prediction is that of the machine it is for"
    assert plan_digest(on_gloo) == on_gloo.schedule.digest
    assert schedule_problems(on_gloo.pipelines, on_gloo.reductions, build_schedule(on_gloo)) == []
    assert set(on_gloo.groups) == set(made(*overrides).groups)
    assert Plan.from_json(on_gloo.to_json()) == on_gloo


def test_groups_of_unlike_fabrics_do_not_wait_for_each_other_before_they_meet() -> None:
    """Sums inside the nodes of one fabric and across them follow each other, beside those of the other fabric."""
    task = task_of(compose(MIXED), "emulated")
    network = NetworkCost(task.machine)
    found = made()
    table, size = table_of(found), 1e8
    alone = [dataclasses.replace(table, levels=tuple(
        dataclasses.replace(level, groups=tuple(i for i in level.groups if set(found.groups[i].ranks) <= members))
        for level in table.levels[:2])) for members in ({0, 1, 2, 3}, {4, 5, 6, 7})]
    inside = [network.summed(each, found.groups, size).seconds for each in alone]
    between = network.summed(dataclasses.replace(table, levels=table.levels[2:]), found.groups, size).seconds
    assert inside[0] < inside[1], "RoCE is emulated slower"
    assert network.summed(table, found.groups, size).seconds == pytest.approx(inside[1] + between)


def every(given: Plan, steps: int) -> Plan:
    """Return a plan whose fabrics meet in every so many steps only."""
    return dataclasses.replace(given, reductions=tuple(
        dataclasses.replace(each, levels=tuple(
            dataclasses.replace(level, every=steps if level.operation is SUM else 1) for level in each.levels))
        for each in given.reductions))


def test_a_schedule_is_a_cycle_of_steps_where_a_level_is_not_done_in_each() -> None:
    given = every(made(mode="slurm"), 3)
    index = given.reductions.index(table_of(given))
    assert (made().cycle, given.cycle) == (1, 3)

    def level(step: int) -> int:
        return next(action.level for action in build_schedule(given, step).actions[0]
                    if action.kind is ActionKind.REDUCE and action.reduction == index)

    assert [level(step) for step in range(1, 7)] == [0, 0, 1, 0, 0, 1]
    assert level(0) == 1
    digests = [build_schedule(given, step).digest() for step in range(1, 5)]
    assert digests[0] == digests[1] == digests[3] != digests[2]


def test_what_only_later_versions_run_is_refused_with_its_setting() -> None:
    config, given = compose(MIXED), made()
    assert unsupported(config, given) == []
    slow = every(given, 4)
    assert "every 4th step" in unable_to_sum(slow)[0] and "levels[].every" in unable_to_sum(slow)[0]
    assert unable_to_sum(slow, dataclasses.replace(ENGINE, longest_interval=4)) == []
    narrow = dataclasses.replace(given, groups=tuple(
        dataclasses.replace(group, wire="bfloat16") if group.network == "ethernet" and group.kind == "embedding"
        else group for group in given.groups))
    (problem,) = unsupported(config, narrow)
    assert "as bfloat16 in its embedding groups" in problem
    assert "Set parallel.cross_fabric_dtype to float32 or null" in problem
    parts = dataclasses.replace(given, synchronization=dataclasses.replace(given.synchronization, norm_group=1))
    assert "synchronization.norm_group" in unsupported(config, parts)[0]


def test_a_plan_file_names_wrong_levels() -> None:
    data = json.loads(made(mode="slurm").to_json())
    data["reductions"][0]["levels"][0]["operation"] = "all_to_all"
    with pytest.raises(ValueError, match=r"reductions\[0\]\.levels\[0\]\.operation: 'all_to_all' is none of reduce_sc"):
        Plan.from_json(json.dumps(data))
    data["reductions"][0]["levels"][0].update(operation="reduce_scatter", groups=[999])
    with pytest.raises(ValueError, match=r"plan\.reductions: group 999 is not among the plan's"):
        Plan.from_json(json.dumps(data))
