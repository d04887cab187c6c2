"""Jobs that are preempted, requeued, cancelled or lose a node, on a real Slurm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.runs_for_tests import train
from tests.slurm_cluster import SlurmCluster
from tests.slurm_cluster.fixture import MakeSlurm
from tests.slurm_runs import ENDLESS, SLOW_ETHERNET_GBPS, TINY, SubmittedJob

pytestmark = pytest.mark.slurm

SLOW = {"ethernet_gbps": SLOW_ETHERNET_GBPS}


Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Rows]:
    """The first steps of one process that was never interrupted, trained once for all tests, or longer where needed."""
    known: Rows = []

    def first_steps(count: int) -> Rows:
        if len(known) < count:
            steps = max(count, 30)
            known[:] = train(tmp_path_factory.mktemp("reference"), [
                "+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1", *TINY, *ENDLESS,
                f"train.steps={steps}"]).rows
        return known[:count]

    return first_steps


def assert_equal(job: SubmittedJob, uninterrupted: Callable[[int], Rows]) -> None:
    """Compare losses and gradient norms of all steps; of a step that was done twice, the last ones count."""
    last = {row["step"]: row for row in job.rows}
    assert sorted(last) == list(range(1, len(last) + 1))
    for row in uninterrupted(len(last)):
        for key in ("loss", "grad_norm"):
            assert last[row["step"]][key] == pytest.approx(row[key], rel=1e-5), f"{key} of step {row['step']}"


def urgent_job_on_roce(slurm: SlurmCluster) -> int:
    """Submit a job that takes roce-1 until it is cancelled, so that what it preempts does not go on before."""
    return slurm.sbatch("exec sleep 600", "--partition=urgent", "--nodelist=roce-1", "--exclusive")


def test_preempted_job_goes_on_exactly_where_it_was(
        make_each_slurm: MakeSlurm, uninterrupted: Callable[[int], Rows]) -> None:
    slurm = make_each_slurm(ib_nodes=1, roce_nodes=1, **SLOW, grace_seconds=30)
    job = SubmittedJob(slurm, ENDLESS)
    job.wait_for_steps(3)
    pids = {rank["rank"]: rank["pid"] for rank in job.read("job.json")["ranks"]}
    assert job.read("job.json")["restarts"] == 0
    urgent = urgent_job_on_roce(slurm)
    preempted = job.wait_for_result("preempted")
    done = len(job.rows)
    assert preempted["steps"] == done
    assert "USR2" in preempted["error"] or "another rank" in preempted["error"]
    slurm.wait_for(urgent, ["RUNNING"])
    job.complete_after(4)
    slurm.run(f"scancel {urgent}")
    job.wait_for_result("completed")
    assert job.steps == list(range(1, done + 5))  # signalled: no finished step is lost or done twice
    assert_equal(job, uninterrupted)
    told = job.read("job.json")
    assert told["restarts"] == 1
    assert [rank["node"] for rank in told["ranks"]] == ["ib-1", "roce-1"]
    assert all(rank["pid"] not in (None, pids[rank["rank"]]) for rank in told["ranks"])
    assert f"resuming after step {done}" in job.log
    assert slurm.wait_for(job.id) == ["COMPLETED", "COMPLETED"]
    job.wait_until_gone()


@pytest.mark.long
def test_cancelled_component_ends_the_job_and_keeps_its_state(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(ib_nodes=1, roce_nodes=1, **SLOW, kill_wait_seconds=20)
    job = SubmittedJob(slurm, ENDLESS)
    job.wait_for_steps(3)
    slurm.run(f"scancel {job.id}+1")
    result = job.wait_for_result("failed")
    assert f"its component {job.id}+1 was cancelled" in result["error"]
    assert f"train.resume={job.folder}" in result["error"]
    assert [path.name for path in job.checkpoints] == [f"step-{job.steps[-1]:06d}"]
    assert slurm.wait_for(job.id) == ["FAILED", "CANCELLED"]
    job.wait_until_gone()


@pytest.mark.long
def test_cancelled_job_saves_and_leaves_no_process(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(ib_nodes=1, roce_nodes=1, **SLOW, kill_wait_seconds=20)
    job = SubmittedJob(slurm, ENDLESS)
    job.wait_for_steps(3)
    assert job.processes()
    slurm.run(f"scancel {job.id}")
    assert "SIGTERM" in job.wait_for_result("preempted")["error"]
    assert [path.name for path in job.checkpoints] == [f"step-{job.steps[-1]:06d}"]
    assert slurm.wait_for(job.id) == ["CANCELLED", "CANCELLED"]
    job.wait_until_gone()


def test_killed_rank_is_named_and_the_job_fails(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(ib_nodes=1, roce_nodes=1, **SLOW)
    job = SubmittedJob(slurm, ENDLESS)
    job.wait_for_steps(2)
    victim = job.read("job.json")["ranks"][1]
    slurm.run(f"kill -9 {victim['pid']}", victim["node"])
    assert "rank 1 on node roce-1 was ended by SIGKILL" in job.wait_for_result("failed")["error"]
    assert slurm.wait_for(job.id) == ["FAILED", "FAILED"]
    job.wait_until_gone()


def test_failed_node_is_left_behind_with_a_new_plan(
        make_slurm: MakeSlurm, uninterrupted: Callable[[int], Rows]) -> None:
    slurm = make_slurm(ib_nodes=1, roce_nodes=2, **SLOW)
    job = SubmittedJob(slurm, [*ENDLESS, "train.checkpoint_every=2"])
    job.wait_for_steps(5)
    slurm.fail_node("roce-1")
    slurm.run("scontrol update nodename=roce-1 state=down reason=died")  # as Slurm does itself after SlurmdTimeout
    job.wait_for_restart(4)
    assert job.read("result.json") is None
    assert [rank["node"] for rank in job.read("job.json")["ranks"]] == ["ib-1", "roce-2"]
    assert job.read("plan-1.json") == job.read("plan.json")
    assert [rank["node"] for rank in job.read("plan.json")["ranks"]] == ["ib-1", "roce-2"]
    job.cancel()
    assert_equal(job, uninterrupted)
    assert len(job.steps) - max(job.steps) <= 2  # done twice: at most the steps since the last checkpoint


WITHOUT_SCONTROL = 'launch.setup=["mkdir -p bin; ln -sf $(command -v srun) bin/","export PATH=$PWD/bin"]'


@pytest.mark.parametrize(("setting", "said"), [
    ("launch.requeue=false", "launch.requeue=false"),
    pytest.param(WITHOUT_SCONTROL, "scontrol: not found", marks=pytest.mark.long)], ids=["no requeue", "no scontrol"])
def test_a1_without_requeue_or_scontrol_the_state_is_kept_and_the_way_on_is_said(
        make_slurm: MakeSlurm, setting: str, said: str) -> None:
    slurm = make_slurm(ib_nodes=1, roce_nodes=1, **SLOW)
    job = SubmittedJob(slurm, [*ENDLESS, setting])
    job.wait_for_steps(2)
    slurm.run(f"scancel --signal=USR2 {job.id}")
    assert slurm.wait_for(job.id) == ["FAILED", "FAILED"]
    result = job.read("result.json")
    assert result["status"] == "preempted"
    assert said in result["error"]
    assert f"train.resume={job.folder}" in result["error"]
    assert [path.name for path in job.checkpoints] == [f"step-{job.steps[-1]:06d}"]
    assert "ExitCode=3:0" in slurm.run(f"scontrol show job {job.id}").stdout
    job.wait_until_gone()


@pytest.mark.long
def test_a4_job_that_comes_to_its_time_limit_is_queued_again(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(ib_nodes=1, roce_nodes=1, **SLOW)
    job = SubmittedJob(slurm, [*ENDLESS, *(f"cluster.partitions.{label}.time_limit=10" for label in ("ib", "roce")),
                               "launch.signal_seconds=20"])
    job.wait_for_steps(3)
    # Nearer than minutes, which is all that a submission can say.
    slurm.run(f"scontrol update JobId={job.id} EndTime=$(date +%Y-%m-%dT%H:%M:%S -d '+40 seconds')")
    job.wait_for_restart()
    job.cancel()
    assert job.steps == list(range(1, len(job.steps) + 1))


@pytest.mark.long
def test_node_that_is_not_as_described_is_excluded(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(ib_nodes=2, roce_nodes=1)
    slurm.run("ip link set ib0 down", "ib-1")
    job = SubmittedJob(slurm, ["train.steps=3", "launch.on_mismatch=exclude_node"])
    job.wait_for_result("completed", 120)
    assert [rank["node"] for rank in job.read("plan.json")["ranks"]] == ["ib-2", "roce-1"]
    assert job.read("job.json")["restarts"] == 1
    assert job.read("excluded.json") == ["ib-1"]
    assert "node ib-1: expected the ib interface ib0" in job.log
    slurm.run("ip link set roce0 down", "roce-1")
    job = SubmittedJob(slurm, ["train.steps=3", "launch.on_mismatch=fail"])
    error = job.wait_for_result("failed")["error"]
    assert "node roce-1: expected the roce interface roce0" in error
    assert "on_mismatch" in error


@pytest.mark.long
def test_where_a_site_sends_only_sigterm_at_preemption_that_is_enough(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(ib_nodes=1, roce_nodes=1, **SLOW, grace_seconds=30,
                       extra=("SlurmctldParameters=idle_on_node_suspend",))
    job = SubmittedJob(slurm, ENDLESS)
    job.wait_for_steps(3)
    urgent = urgent_job_on_roce(slurm)
    job.wait_for_result("preempted")
    assert "received SIGTERM" in job.log
    job.complete_after(2)
    slurm.run(f"scancel {urgent}")
    job.wait_for_result("completed")
    assert job.steps == list(range(1, len(job.steps) + 1))


@pytest.mark.long
@pytest.mark.parametrize("make_each_slurm", ["tree"], indirect=True)
def test_requeued_again_and_again_while_it_saves_a_run_loses_no_step(make_each_slurm: MakeSlurm) -> None:
    slurm = make_each_slurm(ib_nodes=1, roce_nodes=1, **SLOW)
    job = SubmittedJob(slurm, [*ENDLESS, "train.checkpoint_every=1"])
    for restart in range(1, 4):
        job.wait_for_steps(len(job.rows) + 3)
        before = job.steps[-1]
        slurm.run(f"scontrol requeue {job.id}")
        job.wait(lambda count=restart: (job.read("job.json") or {}).get("restarts", 0) >= count, "a restart")
        count = len(job.rows)
        job.wait(lambda count=count: len(job.rows) > count, "a step")
        assert job.steps[count] >= before + 1, "at most the step that was under way is done once more"
    job.complete_after(2)
    slurm.run(f"scontrol requeue {job.id}")
    job.wait_for_result("completed")
