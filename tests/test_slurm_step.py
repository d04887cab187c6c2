"""Where a task is in its step, for every environment that Slurm was seen to set."""

from __future__ import annotations

import pytest

from holmes_hpc.cluster.slurm import SlurmOutputError, StepLayout, read_allocation, read_place, read_step
from holmes_hpc.cluster.slurm.allocation import read_counts
from tests.slurm_data import cases, environments

HET = [("ib-1", (0, 1), 0), ("ib-2", (2, 3), 0), ("roce-1", (4,), 1), ("roce-2", (5,), 1)]
ROCE_FIRST = [("roce-1", (0,), 0), ("roce-2", (1,), 0), ("ib-1", (2, 3), 1), ("ib-2", (4, 5), 1)]
ONE_PARTITION = [("ib-2", (0,), 0), ("ib-1", (1, 2), 1), ("roce-1", (3,), 1)]
COLON = [("ib-1", (0, 1), 0), ("roce-1", (2,), 1), ("roce-2", (3,), 1)]
CYCLIC = [("ib-1", (0, 4, 5), 0), ("ib-2", (1,), 0), ("roce-1", (2,), 0), ("roce-2", (3,), 0)]
STEPS = {
    "het step 22.05": HET,
    "het step of group 1 22.05": [("roce-1", (0,), 1), ("roce-2", (1,), 1)],
    "plain uneven step 22.05": [("ib-1", (0, 1, 2, 3), 0), ("ib-2", (4, 5), 0), ("roce-1", (6,), 0),
                                ("roce-2", (7,), 0)],
    "step in het salloc 24.11": [("ib-1", (0,), 0), ("roce-1", (1,), 1), ("roce-2", (2,), 1)],
    "array task 24.11": [("ib-1", (0,), 0)],
    "pty 22.05": [("ib-1", (0,), 0)],
    "pty 24.11": [("ib-1", (0,), 0)],
    **{f"{case} {release}": nodes for release in ("22.05", "24.11") for case, nodes in (
        ("het step, roce first", ROCE_FIRST), ("het step in one partition", ONE_PARTITION), ("colon step", COLON),
        ("cyclic step", CYCLIC))},
}


def shape(layout: StepLayout) -> list[tuple[str, tuple[int, ...], int | None]]:
    return [(node.name, node.ranks, node.component) for node in layout.nodes]


def test_no_recorded_step_is_left_out() -> None:
    elsewhere = {*cases("batch"), *cases("shell"), "counted features step 22.05"}
    assert set(cases("")) == set(STEPS) | elsewhere


@pytest.mark.parametrize("case", STEPS)
def test_every_task_sees_the_same_step_and_its_own_place(case: str) -> None:
    tasks = environments(case)
    for rank, environment in enumerate(tasks):
        layout = read_step(environment)
        assert layout.certain
        assert shape(layout) == STEPS[case]
        assert (layout.rank, layout.world_size) == (rank, len(tasks))
        assert layout.node == environment["SLURMD_NODENAME"] == layout.node_of(rank).name
        assert layout.own.ranks[layout.local_rank] == rank
        assert layout.component == layout.own.component


def test_ranks_go_component_after_component_though_the_node_list_is_sorted() -> None:
    environment = environments("het step, roce first 22.05")[0]
    assert environment["SLURM_STEP_NODELIST"] == "ib-[1-2],roce-[1-2]"
    assert environment["SLURM_STEP_TASKS_PER_NODE"] == "2(x2),1(x2)"
    layout = read_step(environment)
    assert [node.name for node in layout.nodes] == ["roce-1", "roce-2", "ib-1", "ib-2"]
    assert layout.tasks_per_node == (1, 1, 2, 2)


def test_variables_that_leak_from_another_component_are_not_believed() -> None:
    first = environments("het step 22.05")[0]
    assert (first["SLURM_JOB_PARTITION"], first["SLURM_NTASKS_PER_NODE"]) == ("roce", "1")
    layout = read_step(first)
    assert layout.allocation.components[layout.component or 0].partition == "ib"
    assert len(layout.own.ranks) == 2


def test_a_step_on_parts_of_the_components_has_only_their_nodes() -> None:
    environment = {**environments("het step 22.05")[4], "SLURM_PROCID": "1", "SLURM_GTIDS": "1", "SLURM_NTASKS": "2",
                   "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "ib-1,roce-1",
                   "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "1"}
    layout = read_step(environment)
    assert shape(layout) == [("ib-1", (0,), 0), ("roce-1", (1,), 1)]
    assert layout.certain


def test_an_order_that_slurm_does_not_tell_is_called_uncertain() -> None:
    arbitrary = {**environments("cyclic step 22.05")[1], "SLURM_DISTRIBUTION": "arbitrary"}
    layout = read_step(arbitrary)
    assert not layout.certain
    assert layout.own.ranks == (1,)
    assert sorted(rank for node in layout.nodes for rank in node.ranks) == list(range(6))

    without_lists = {name: value for name, value in environments("colon step 22.05")[2].items()
                     if "NODELIST_PACK" not in name}
    layout = read_step(without_lists)
    assert not layout.certain
    assert (layout.node, layout.own.ranks, layout.component) == ("roce-1", (2,), None)


def test_ranks_of_the_node_that_contradict_the_expected_ones_make_it_uncertain() -> None:
    layout = read_step({**environments("plain uneven step 22.05")[4], "SLURM_GTIDS": "4,7"})
    assert not layout.certain
    assert layout.node_of(7).name == "ib-2"


@pytest.mark.parametrize(("case", "message"), [
    ("het batch script 22.05", "batch script.*srun --het-group=0-1"),
    ("het batch script, roce first 24.11", "batch script"),
    ("counted features step 22.05", "batch script"),
    ("het salloc shell 22.05", "salloc.*srun --het-group=0-1"),
    ("plain salloc shell 22.05", r"salloc.*`srun \.\.\."),
])
def test_outside_of_a_step_the_message_says_where_and_what_to_do(case: str, message: str) -> None:
    with pytest.raises(SlurmOutputError, match=message):
        read_step(environments(case)[0])


@pytest.mark.parametrize(("change", "message"), [
    ({"SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'"),
    ({"SLURM_STEP_TASKS_PER_NODE": "2(x3)"}, "4 nodes.*3"),
    ({"SLURM_STEP_TASKS_PER_NODE": "2(x4"}, "contradict|no list"),
    ({"SLURMD_NODENAME": "login"}, "contradict each other: rank 0 of 6 on 'login'"),
    ({"SLURM_STEP_NUM_TASKS": "7"}, "contradict"),
    ({"SLURM_GTIDS": ""}, "SLURM_GTIDS"),
    ({"SLURM_JOB_ID": ""}, "no Slurm job"),
])
def test_broken_environments_are_refused_with_the_variable(change: dict[str, str], message: str) -> None:
    with pytest.raises(SlurmOutputError, match=message):
        read_step({**environments("het step 22.05")[0], **change})


def test_places() -> None:
    assert read_place({}) == "outside"
    assert read_place(environments("het salloc shell 24.11")[0]) == "allocation"
    assert read_place(environments("het batch script 22.05")[0]) == "batch"
    assert read_place(environments("counted features step 22.05")[0]) == "batch"
    assert read_place(environments("pty 22.05")[0]) == read_place(environments("pty 24.11")[0]) == "interactive"
    assert read_place(environments("colon step 24.11")[0]) == "step"
    assert read_place({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290"}) == "interactive"


def test_the_allocation_of_a_batch_script_knows_its_components() -> None:
    allocation = read_allocation(environments("het batch script 22.05")[0])
    assert allocation.heterogeneous and allocation.requeue_id == "3"
    assert [(part.job_id, part.partition, part.nodes, part.tasks_per_node) for part in allocation.components] == [
        (3, "ib", ("ib-1", "ib-2"), (2, 2)), (4, "roce", ("roce-1", "roce-2"), (1, 1))]
    assert read_allocation(environments("het salloc shell 22.05")[0]).components[1].nodes == ("roce-1",)

    plain = read_allocation(environments("plain salloc shell 22.05")[0])
    assert not plain.heterogeneous
    assert [(part.partition, part.tasks_per_node) for part in plain.components] == [("mixed", (2, 1, 1))]


def test_a_requeue_names_the_array_task_or_the_whole_job() -> None:
    task = environments("array task 24.11")[0]
    assert task["SLURM_JOB_ID"] == task["SLURM_ARRAY_JOB_ID"]
    assert read_allocation(task).requeue_id == "10_1"
    assert read_allocation({**task, "SLURM_RESTART_COUNT": "2"}).restart_count == 2
    assert read_allocation(environments("het step, roce first 24.11")[5]).requeue_id == "2"


def test_counts() -> None:
    assert read_counts("2(x3),1") == (2, 2, 2, 1)
    assert read_counts("8") == (8,)
    for wrong in ("", "2(x)", "a", "2(x2)1"):
        with pytest.raises(SlurmOutputError):
            read_counts(wrong)
