"""A plan that leaves nodes out is refused wherever a job of Slurm would hold them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc.cluster import read_cluster
from holmes_hpc.cluster.slurm import read_step
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch import sweep
from holmes_hpc.launch import train as train_module
from holmes_hpc.launch.node.node_report import NodeReport
from holmes_hpc.launch.slurm import in_allocation
from holmes_hpc.launch.slurm.allocation import GivenNode, allocate
from holmes_hpc.launch.slurm.job_plan import plan_for_job
from holmes_hpc.planner import plan
from holmes_hpc.submit import Decision

# A model this small is fastest on one node.
SMALL = ["+cluster=mixed", "parallel=auto", "parallel.leave_nodes_out=true", "launch.backend=gloo",
         "model.num_layers=2", "model.hidden_size=32", "model.num_heads=2", "model.sequence_length=32"]
STEP = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_JOB_NODELIST": "ib-[1-2],roce-[1-2]",
        "SLURM_STEP_NODELIST": "ib-[1-2],roce-[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x4)",
        "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "ib-1",
        "SLURM_GTIDS": "0,1"}


def trained(config: Any, tmp_path: Path) -> None:
    train_module.train(config)


def swept(config: Any, tmp_path: Path) -> None:
    assert sweep.sweep([config, config], ["a=1", "a=2"], tmp_path) == [(2, None), (2, None)]
    plan_for_job(config, read_cluster(config.cluster))


def started_by_a_site(config: Any, tmp_path: Path) -> None:
    in_allocation._announce(config, read_cluster(config.cluster), read_step(STEP), tmp_path, "run")


def planned_anew(config: Any, tmp_path: Path) -> None:
    up = dict.fromkeys(("lo", "eth0", "ib0", "roce0"), "10.0.0.1")
    order = ["roce-1", "roce-2", "ib-1", "ib-2"]
    given = [GivenNode(name, (2 * index, 2 * index + 1), int(name.startswith("roce")),
                       NodeReport(name, dict(up), (), 0)) for index, name in enumerate(order)]
    before = compose([*SMALL, "parallel.leave_nodes_out=false"])
    allocate(config, read_cluster(config.cluster), plan(before, mode="slurm"), given)


@pytest.mark.parametrize(("place", "mode"), [
    (trained, "slurm"), (trained, "srun"), (swept, "slurm"), (started_by_a_site, "rank"), (planned_anew, "rank")])
def test_idle_nodes_are_refused_wherever_a_job_is_planned(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Callable[[Any, Path], None], mode: str) -> None:
    for module in (train_module, sweep):
        monkeypatch.setattr(module, "decide_mode", lambda *arguments: Decision(mode, "here"))
    monkeypatch.chdir(tmp_path)
    config = compose(SMALL)
    with pytest.raises(ConfigurationError, match=r"leaves out .*roce/0.*leave_nodes_out=false"):
        place(config, tmp_path)
    assert not list(tmp_path.glob("runs/*/2*")), "nothing was begun"


def test_a_plan_on_all_nodes_is_taken_and_here_nodes_may_be_left_out() -> None:
    config = compose([*SMALL, "parallel.leave_nodes_out=false"])
    assert len(plan_for_job(config, read_cluster(config.cluster)).ranks) == 8
    assert len(plan(compose(SMALL), mode="slurm").ranks) < 8
