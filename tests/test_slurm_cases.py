"""Cases in which other tools went wrong on Slurm, named by their ids in docs/sites.md; more are beside their subject.

These need no Slurm: its programs are stand-ins that write down how they were called.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holmes_hpc.cluster.slurm import read_allocation, read_step
from holmes_hpc.config.compose import compose
from holmes_hpc.runs import RunFolder, write_result
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
