"""Cases in which other tools went wrong on Slurm, named by their ids in docs/sites.md; more are beside their subject.

These need no Slurm: its programs are stand-ins that write down how they were called.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holmes_hpc.cluster import expand_hostlist, read_cluster
from holmes_hpc.cluster.slurm import read_allocation, read_step
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.foreign import read_json
from holmes_hpc.launch.node.mismatch import find_mismatches, interfaces_of
from holmes_hpc.launch.node.node_report import NodeReport
from holmes_hpc.launch.rank.rendezvous import open_store
from holmes_hpc.launch.rank.settings import RankSettings
from holmes_hpc.launch.slurm.allocation import allocate
from holmes_hpc.launch.slurm.meeting import Meeting
from holmes_hpc.planner import plan
from holmes_hpc.runs import RunFolder, Start, write_result
from holmes_hpc.submit.components import job_components
from holmes_hpc.submit.script import step_command
from tests.runs_for_tests import ROOT

ARRAY_TASK = {"SLURM_JOB_ID": "1234", "SLURM_ARRAY_JOB_ID": "1234", "SLURM_ARRAY_TASK_ID": "1",
              "SLURM_JOB_NODELIST": "n1"}


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Put a `scontrol` on the PATH that does nothing; return what it was called with."""
    program, log = tmp_path / "bin" / "scontrol", tmp_path / "calls"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >> {log}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return lambda: log.read_text().splitlines() if log.exists() else []


def end_of_script(folder: RunFolder, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run what the batch script runs after its step."""
    return subprocess.run([sys.executable, "-m", "holmes_hpc.submit.outcome", str(folder.path), "3", "--requeue"],
                          env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, capture_output=True, text=True,
                          timeout=60, check=False)


@pytest.mark.parametrize(("environment", "job"), [(ARRAY_TASK, "1234_1"), ({"SLURM_JOB_ID": "9"}, "9")])
def test_a3_a5_the_script_alone_requeues_and_of_an_array_its_own_task(
        tmp_path: Path, calls: Callable[[], list[str]], environment: dict[str, str], job: str) -> None:
    folder = RunFolder.create(tmp_path, "run")
    write_result(folder, "preempted", error="this rank received USR2", emulated=False)
    ended = end_of_script(folder, environment)
    assert ended.returncode == 3
    assert [call for call in calls() if call.startswith("requeue")] == [f"requeue {job}"]
    package = [path for path in (ROOT / "holmes_hpc").rglob("*.py") if '"scontrol", "requeue"' in path.read_text()]
    assert [path.name for path in package] == ["requeue.py"], "no rank requeues"


def test_a10_a_task_of_an_array_is_a_job_of_its_own() -> None:
    assert read_allocation(ARRAY_TASK).requeue_id == "1234_1"
    assert read_allocation({**ARRAY_TASK, "SLURM_JOB_ID": "1240"}).job_id == 1240


def test_a20_nodes_may_hold_unlike_numbers_of_ranks() -> None:
    step = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_JOB_NODELIST": "a,b", "SLURM_STEP_NODELIST": "a,b",
            "SLURM_STEP_TASKS_PER_NODE": "8,2", "SLURM_STEP_NUM_TASKS": "10", "SLURM_PROCID": "9",
            "SLURM_LOCALID": "1", "SLURMD_NODENAME": "b", "SLURM_GTIDS": "8,9"}
    layout = read_step(step)
    assert layout.tasks_per_node == (8, 2)
    assert [node.ranks for node in layout.nodes] == [tuple(range(8)), (8, 9)]
    config = compose(["+cluster=mixed", "cluster.partitions.ib.nodes=1", "cluster.partitions.ib.gpus_per_node=8",
                      "cluster.partitions.roce.nodes=1"])
    assert [part.tasks for part in job_components(config.cluster, {})] == [8, 2]


def test_a40_a41_the_nodes_of_each_component_are_read_by_a_parser() -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "node[01-02]",
           "SLURM_JOB_NODELIST_HET_GROUP_1": "rack[0-1]_blade3,node9", "SLURM_JOB_ID_HET_GROUP_1": "8"}
    components = read_allocation(job).components
    assert [component.nodes for component in components] == [("node01", "node02"),
                                                             ("rack0_blade3", "rack1_blade3", "node9")]


def test_a42_ranks_of_all_components_are_started_by_one_srun() -> None:
    components = job_components(compose(["+cluster=mixed"]).cluster, {})
    assert step_command(components, [], "program").split().count("srun") == 1


def test_a2_every_signal_that_may_be_chosen_exists_and_can_be_caught() -> None:
    from holmes_hpc.config.rules import SIGNALS

    caught = {getattr(signal, f"SIG{name}") for name in SIGNALS}
    assert SIGNALS[0] == "USR2"
    assert not caught & {signal.SIGKILL, signal.SIGSTOP}


@pytest.mark.parametrize(("case", "listed", "names"), [
    ("A21", "linux[1,2]", "linux1 linux2"),
    ("A22", "jean-zay-ia[810-811]", "jean-zay-ia810 jean-zay-ia811"),
    ("A24", "nodeA,nodeB[001,003],nodeC", "nodeA nodeB001 nodeB003 nodeC"),
    ("A25", "c1001a-s[11,17]", "c1001a-s11 c1001a-s17"),
    ("A27", "rack[0-1]_blade[0-1]", "rack0_blade0 rack0_blade1 rack1_blade0 rack1_blade1"),
    ("A28", "ml-16-node-[001-002,004],ml-17-node-[001-003]",
     "ml-16-node-001 ml-16-node-002 ml-16-node-004 ml-17-node-001 ml-17-node-002 ml-17-node-003"),
    ("A29", "host-[001-002]", "host-001 host-002"),
])
def test_a21_to_a29_node_lists_that_others_cut_at_the_wrong_place(case: str, listed: str, names: str) -> None:
    assert expand_hostlist(listed) == names.split(), case


def arbitrary_step(rank: int, node: str) -> dict[str, str]:
    """One task on each of four nodes, placed by a host file; Slurm's list is sorted all the same."""
    return {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_DISTRIBUTION": "arbitrary",
            "SLURM_JOB_NODELIST": "n[583,752,801,869]", "SLURM_STEP_NODELIST": "n[583,752,801,869]",
            "SLURM_STEP_TASKS_PER_NODE": "1(x4)", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": "0", "SLURMD_NODENAME": node, "SLURM_GTIDS": str(rank)}


def test_a30_the_meeting_point_is_the_node_of_rank_0_and_not_the_first_of_a_list(tmp_path: Path) -> None:
    placed = ["n801", "n869", "n583", "n752"]
    folder = RunFolder.create(tmp_path, "run")
    config = compose(["+cluster=uniform", "cluster.nodes=4", "cluster.gpus_per_node=1", "launch.backend=gloo",
                      "model.tied_embeddings=false"])
    folder.write_text(folder.plan_path, plan(config, mode="slurm").to_json())
    meetings = []
    for rank, node in enumerate(placed):
        layout = read_step(arbitrary_step(rank, node))
        meetings.append(Meeting(Start(folder, layout.name), layout, timeout_seconds=5))
        addresses = dict.fromkeys(("lo", "eth0", "ib0"), f"10.0.0.{node[1:]}")
        meetings[-1].report(NodeReport(node, addresses, (), 0))
    given = meetings[0].nodes()
    assert [node.name for node in given] == placed
    meetings[0].publish(*allocate(config, read_cluster(config.cluster), plan(config, mode="slurm"), given))
    for meeting in meetings:
        made, allocation = meeting.wait_for_plan()
        assert allocation.host == "10.0.0.801"
        assert [place.node for place in made.ranks] == placed


def test_a32_slurms_launch_address_which_may_be_a_login_nodes_is_not_used() -> None:
    for path in (ROOT / "holmes_hpc").rglob("*.py"):
        assert "LAUNCH_NODE_IPADDR" not in path.read_text(), path


def test_a33_two_runs_on_one_node_meet_at_ports_of_their_own(tmp_path: Path) -> None:
    def rank(number: int, run: RunFolder) -> RankSettings:
        return cast(RankSettings, SimpleNamespace(
            rank=number, host="127.0.0.1", folder=run, rendezvous_path=run.rendezvous_path, secret=None,
            plan=SimpleNamespace(world_size=2)))

    runs = [RunFolder.create(tmp_path, "run") for _ in range(2)]
    masters = [open_store(rank(0, run), 10.0) for run in runs]
    assert read_json(runs[0].rendezvous_path)["port"] != read_json(runs[1].rendezvous_path)["port"]
    for number, (run, master) in enumerate(zip(runs, masters, strict=True)):
        master.set("run", str(number))
        other = open_store(rank(1, run), 10.0)
        assert other.get("run") == str(number).encode()
        other.close()
        master.close()


def test_a38_interfaces_have_a_name_for_each_label() -> None:
    config = compose(["+cluster=mixed", "cluster.partitions.ib.interface=bond0",
                      "cluster.partitions.roce.interface=eno1", "cluster.partitions.roce.fabric_interface=enp6s0"])
    ib, roce = (next(node for node in read_cluster(config.cluster).nodes if node.label == label)
                for label in ("ib", "roce"))
    assert interfaces_of(ib) == {"local": "lo", "ib": "ib0", "ethernet": "bond0"}
    assert interfaces_of(roce) == {"local": "lo", "roce": "enp6s0", "ethernet": "eno1"}
    prefixed = {"lo": "127.0.0.1", "bond0.2093": "10.0.0.1", "ib0": "10.1.0.1"}
    found = find_mismatches([(ib, NodeReport("n1", prefixed, (), 0))], uses_verbs=False)
    assert [(each.expected, each.found) for each in found] == [
        ("the ethernet interface bond0 with an IPv4 address", "no bond0, but bond0.2093, ib0")]


@pytest.mark.parametrize(("layers", "stages"), [(30, 4), (10, 3), (40, 16), (7, 2)])
def test_a52_every_layer_is_in_one_stage(layers: int, stages: int) -> None:
    overrides = ["+cluster=uniform", "cluster.nodes=1", f"cluster.gpus_per_node={stages}", "parallel=megatron",
                 f"parallel.pipeline={stages}", "parallel.tensor=1", f"train.global_batch_size={4 * stages}",
                 "parallel.micro_batch_size=1"]
    made = plan(compose([*overrides, f"model.num_layers={layers}"]), mode="slurm")
    held = [layer for stage in made.pipelines[0].stages
            for layer in range(stage.first_layer, stage.first_layer + stage.num_layers)]
    assert held == list(range(layers))
    with pytest.raises(ConfigurationError, match="more stages than model.num_layers"):
        compose([*overrides, f"model.num_layers={stages - 1}"])


def test_every_case_of_the_documentation_has_a_test() -> None:
    rows = re.findall(r"^\| (A[^|]*) \|", (ROOT / "docs" / "sites.md").read_text(), re.MULTILINE)
    ids = [found for row in rows for found in re.findall(r"A\d+", row)]
    assert len(ids) > 40
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    assert [found for found in ids
            if not re.search(rf'def test_(\w+_)?{found.lower()}_|\("{found}",', tests)] == []
