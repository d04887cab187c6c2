"""Clusters in which a slow kind of node costs more than it gives: what is found, what is told, what is left out."""

from __future__ import annotations

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan
from holmes_hpc.planner.making import find_best
from holmes_hpc.planner.search.fewer_nodes import faster_on_fewer, left_out, on_fewer
from holmes_hpc.planner.telling.explain import explain
from holmes_hpc.values import Plan
from tests.planner_problems import Problem

SLOW = Problem("slow", (("a100-80g", "hdr200", (2,)), ("t4", "eth25", (1, 1))), ethernet_gbps=5, tied=True)
FAST = Problem("fast", (("a100-80g", "hdr200", (2,)), ("v100", "hdr200", (2,))), layers=8, batch=32, ethernet_gbps=100)
THREE = Problem("three", (("v100", "hdr200", (2, 2)), ("t4", "eth25", (1,)), ("3090", "roce100", (1,))),
                ethernet_gbps=2, hidden=1024)
ALL = "parallel.leave_nodes_out=false"
CLUSTER = ["+cluster=mixed_gpus", "cluster.partitions.roce.gpu=t4", "cluster.partitions.roce.ethernet_gbps=5",
           "cluster.partitions.ib.nodes=1", "cluster.partitions.roce.nodes=1", "model=gpt2_small", "model.num_layers=4",
           "train.precision=float16", "train.global_batch_size=16"]


@pytest.mark.parametrize("problem", [SLOW, THREE])
def test_what_is_told_is_what_leaving_nodes_out_gives(problem: Problem) -> None:
    task = problem.task(ALL)
    best, _ = find_best(task)
    assert best.task.cluster.world_size == task.cluster.world_size
    fewer = faster_on_fewer(task, best.seconds)
    assert fewer is not None
    assert fewer.seconds < 0.95 * best.seconds
    assert fewer.fits
    without, _ = find_best(problem.task())
    assert without.seconds <= fewer.seconds * (1 + 1e-9)
    kept = {node.slot for node in fewer.task.cluster.nodes}
    words = left_out(task, fewer.task)
    assert {node.slot for node in task.cluster.nodes if node.slot in words} == {
        node.slot for node in task.cluster.nodes} - kept


def test_nothing_is_told_where_every_node_is_worth_its_place() -> None:
    task = FAST.task(ALL)
    best, _ = find_best(task)
    assert faster_on_fewer(task, best.seconds) is None
    fewer = list(on_fewer(task, 10 * best.seconds))
    assert fewer and all(each.seconds < 10 * best.seconds for each in fewer)


def test_a_plan_that_asks_for_its_nodes_itself_is_not_told() -> None:
    assert faster_on_fewer(SLOW.task(ALL, "parallel=holmes"), 10.0) is None


def made(*overrides: str) -> Plan:
    return plan(compose([*CLUSTER, *overrides]), "slurm")


def test_the_plan_and_its_explanation_name_the_nodes_and_the_setting() -> None:
    config = compose(CLUSTER)
    chosen = plan(config, "slurm")
    note = next(note for note in chosen.notes if "leave_nodes_out" in note)
    assert "roce/0" in note and "ib/0" not in note
    changes = explain(config, chosen, "slurm").changes
    told = next(change for change in changes if "leave_nodes_out=true" in change.words)
    assert "without roce (roce/0), planned anew" in told.words
    fewer = made("parallel.leave_nodes_out=true")
    assert fewer.world_size == 2
    assert not any("leave_nodes_out=true" in note for note in fewer.notes)
    assert chosen.predicted.step_seconds / fewer.predicted.step_seconds - 1 >= told.gain - 1e-9


def test_one_machine_that_emulates_all_nodes_is_not_told_to_start_fewer() -> None:
    chosen = plan(compose([*CLUSTER, "model.hidden_size=48", "model.num_heads=4", "train.precision=float32"]),
                  "emulated")
    assert not any("leave_nodes_out" in note for note in chosen.notes)
