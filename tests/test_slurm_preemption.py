"""Jobs that are preempted, requeued, cancelled or lose a node, on a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs_for_tests import train
from tests.slurm_cluster.fixture import MakeSlurm
from tests.slurm_runs import SLOW_ETHERNET_GBPS, TINY, SubmittedJob

pytestmark = pytest.mark.slurm

STEPS = 24


def assert_as_uninterrupted(job: SubmittedJob, tmp_path: Path) -> None:
    """Compare losses and gradient norms with those of one process that was never interrupted."""
    reference = train(tmp_path, ["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1", *TINY,
                                 f"train.steps={STEPS}"]).rows
    last = {row["step"]: row for row in job.rows}
    assert sorted(last) == list(range(1, STEPS + 1))
    for key in ("loss", "grad_norm"):
        assert [last[row["step"]][key] for row in reference] == pytest.approx([row[key] for row in reference], rel=1e-5)


def test_preempted_job_goes_on_exactly_where_it_was(make_slurm: MakeSlurm, tmp_path: Path) -> None:
    slurm = make_slurm(ib_nodes=1, roce_nodes=1, ethernet_gbps=SLOW_ETHERNET_GBPS, grace_seconds=30)
    job = SubmittedJob(slurm, [f"train.steps={STEPS}"])
    job.wait_for_steps(4)
    pids = {rank["rank"]: rank["pid"] for rank in job.read("job.json")["ranks"]}
    assert job.read("job.json")["restarts"] == 0
    urgent = slurm.sbatch("sleep 3", "--partition=urgent", "--nodelist=roce-1", "--exclusive", "--time=1")
    preempted = job.wait_for_result("preempted")
    done = len(job.rows)
    assert preempted["steps"] == done < STEPS
    assert "USR2" in preempted["error"] or "another rank" in preempted["error"]
    slurm.wait_for(urgent)
    job.wait_for_result("completed", 120)
    assert job.steps == list(range(1, STEPS + 1))  # signalled: no finished step is lost or done twice
    assert_as_uninterrupted(job, tmp_path)
    told = job.read("job.json")
    assert told["restarts"] == 1
    assert [rank["node"] for rank in told["ranks"]] == ["ib-1", "roce-1"]
    assert all(rank["pid"] not in (None, pids[rank["rank"]]) for rank in told["ranks"])
    assert f"resuming after step {done}" in job.log
    assert slurm.wait_for(job.id) == ["COMPLETED", "COMPLETED"]
    job.wait_until_gone()
