"""Where `launch.mode` sends a run, from an environment and what the machine offers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holmes_hpc.cluster import read_cluster
from holmes_hpc.cluster.slurm import read_allocation, read_place
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import LaunchImpossibleError
from holmes_hpc.launch.slurm.in_allocation import allocation_command, step_environment
from holmes_hpc.runs import RunFolder
from holmes_hpc.submit import Decision, decide_mode
from holmes_hpc.submit.mode import Probes

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "ib-[1-2],roce-[1-2]", "SLURM_TASKS_PER_NODE": "2(x4)"}
BATCH = {**JOB, "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
STEP = {**JOB, "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8"}
HET = {"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "ib-[1-2]",
       "SLURM_JOB_NODELIST_HET_GROUP_1": "roce-[1-2]", "SLURM_JOB_ID_HET_GROUP_1": "8"}


@pytest.fixture(scope="module")
def config() -> Any:
    return compose(["+cluster=mixed"])


def decide(config: Any, environment: dict[str, str], *, partitions: set[str] | None = None, namespaces: bool = True,
           nodes_of_job: int | None = None) -> Decision:
    probes = Probes(partitions=lambda: partitions, namespaces=lambda: (namespaces, "not allowed here"),
                    nodes_of_job=lambda job: nodes_of_job)
    return decide_mode(config, read_cluster(config.cluster), environment, probes)


@pytest.mark.parametrize(("environment", "mode"), [
    (STEP, "rank"),
    (JOB, "srun"),
    (HET, "srun"),
    (BATCH, "srun"),
    ({**STEP, "SLURM_PTY_PORT": "5", "SLURM_PROCID": "0"}, "srun"),
    ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, "srun"),
    ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0"}, "srun"),
    ({}, "slurm"),
], ids=["a site's srun", "salloc", "salloc of components", "batch script", "srun --pty", "a notebook",
        "salloc's own interactive step", "login node"])
def test_the_order_of_auto(config: Any, environment: dict[str, str], mode: str) -> None:
    assert decide(config, environment, partitions={"ib", "roce"}).mode == mode


def test_a_notebook_in_a_small_job_submits_a_job_of_its_own(config: Any) -> None:
    notebook = {**JOB, "SLURM_JOB_NODELIST": "ib-1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    decision = decide(config, notebook, partitions={"ib", "roce"}, nodes_of_job=1)
    assert decision.mode == "slurm"
    assert "has 1 of the 4 nodes" in decision.reason
    assert decide(config, notebook, partitions={"ib", "roce"}, nodes_of_job=4).mode == "srun", "its step is smaller"
    for place in ({}, {"SLURM_PROCID": "0"}):
        with pytest.raises(LaunchImpossibleError, match="has 1 of the 4 nodes"):
            decide(config, {**JOB, "SLURM_JOB_NODELIST": "ib-1", **place}, partitions={"ib", "roce"})


def test_a_step_of_another_size_is_refused(config: Any) -> None:
    with pytest.raises(LaunchImpossibleError, match="srun started 4 tasks in job 7"):
        decide(config, {**STEP, "SLURM_STEP_NUM_TASKS": "4"}, partitions={"ib", "roce"})
    with pytest.raises(LaunchImpossibleError, match="task 3 of `srun --pty`"):
        decide(config, {**STEP, "SLURM_PTY_PORT": "5"}, partitions={"ib", "roce"})


def test_without_slurm_the_cluster_is_emulated_and_the_reason_is_told(config: Any) -> None:
    plain = decide(config, {})
    assert plain.mode == "emulated"
    assert plain.reason == "emulated cluster on this machine (network namespaces)"
    assert "no Slurm controller answers" in plain.not_slurm
    unknown = decide(config, {}, partitions={"ib", "gpu"})
    assert unknown.mode == "emulated"
    assert "Slurm knows no partition roce; it knows gpu, ib" in unknown.full_reason
    assert "gpu" not in unknown.reason and "knows no partition roce" in unknown.reason, "one short line"
    assert decide(config, {}, namespaces=False).mode == "local"


def test_forced_modes(config: Any) -> None:
    def forced(mode: str, environment: dict[str, str], **machine: Any) -> Decision:
        changed = config.copy()
        changed.launch.mode = mode
        return decide(changed, environment, **machine)

    assert forced("local", STEP, partitions={"ib", "roce"}).mode == "local"
    assert forced("emulated", STEP, partitions={"ib", "roce"}).mode == "emulated"
    with pytest.raises(LaunchImpossibleError, match=r"launch\.mode=slurm is impossible here.*no Slurm controller"):
        forced("slurm", {})
    with pytest.raises(LaunchImpossibleError, match=r"launch\.mode=emulated is impossible here: not allowed"):
        forced("emulated", {}, namespaces=False)


def step(config: Any, environment: dict[str, str], tmp_path: Path) -> str:
    return allocation_command(config, RunFolder(tmp_path), read_allocation(environment), read_place(environment))


def test_a17_steps_overlap_only_where_another_step_holds_the_cores(config: Any, tmp_path: Path) -> None:
    assert "--overlap" not in step(config, JOB, tmp_path)
    assert "--overlap" not in step(config, BATCH, tmp_path)
    assert "--overlap" in step(config, {**STEP, "SLURM_PTY_PORT": "5"}, tmp_path)


def test_the_step_inside_an_allocation_says_its_size(config: Any, tmp_path: Path) -> None:
    assert step(config, JOB, tmp_path).startswith("srun --kill-on-bad-exit=1 --nodes=4 --ntasks=8 --ntasks-per-node=2 ")
    assert step(config, HET, tmp_path).startswith(
        "srun --het-group=0,1 --nodes=2 --ntasks=4 --ntasks-per-node=2 --kill-on-bad-exit=1 ")
    with pytest.raises(LaunchImpossibleError, match="has 3 components, and mixed needs 2: ib, roce"):
        step(config, {**HET, "SLURM_HET_SIZE": "3", "SLURM_JOB_NODELIST_HET_GROUP_2": "ib-3"}, tmp_path)


def test_a_new_step_is_not_told_of_the_old_one() -> None:
    kept = step_environment({**STEP, **HET, "SLURM_CPU_BIND": "mask", "SLURM_MEM_PER_CPU": "100", "HOME": "/home/a"})
    assert kept.keys() >= {"SLURM_JOB_ID", "SLURM_HET_SIZE", "SLURM_JOB_NODELIST_HET_GROUP_0", "HOME"}
    assert not kept.keys() & {"SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_CPU_BIND", "SLURM_MEM_PER_CPU", "SLURM_PROCID"}
