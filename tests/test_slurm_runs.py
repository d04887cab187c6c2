"""Runs on a real Slurm: one job over two partitions with unlike NICs."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runs_for_tests import ROOT, newest_run, train
from tests.slurm_cluster import SlurmCluster
from tests.slurm_cluster.fixture import MakeSlurm

pytestmark = pytest.mark.slurm

TINY = [
    "train.steps=6", "train.validate_every=0", "train.validation_samples=4", "train.global_batch_size=16",
    "parallel.micro_batch_size=2", "model.num_layers=4", "model.hidden_size=32", "model.num_heads=2",
    "model.sequence_length=32", "model.tied_embeddings=false", "optimizer.clip_grad_norm=0.5",
]
MIXED = ["+cluster=mixed", "parallel=holmes", "parallel.pipeline=2"]
HOLDING = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def holmes(slurm: SlurmCluster, verb: str, overrides: list[str], **options: Any) -> Any:
    """Run a verb on the head node, in the folder that all nodes share."""
    words = [sys.executable, "-m", f"holmes_hpc.{verb}", *overrides]
    return slurm.run(words, environment=HOLDING, timeout_seconds=150, **options)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The steps of the same training in a single process."""
    return train(tmp_path_factory.mktemp("reference"), [
        "+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1", *TINY]).rows


def test_one_job_over_two_partitions_trains_as_one_process(
        each_slurm: SlurmCluster, one_process: list[dict[str, Any]]) -> None:
    done = holmes(each_slurm, "train", [*MIXED, *TINY, "cluster.partitions.roce.gpus_per_node=1"])
    folder = newest_run(each_slurm.shared)
    assert done.status == 0, done.stderr + (folder / "logs" / "batch.log").read_text()
    assert "describes a100-80g, and no node has a GPU" in done.stderr, "these nodes have CPUs alone"
    job = json.loads((folder / "job.json").read_text())
    assert [component["labels"] for component in job["components"]] == [["ib"], ["roce"]]
    assert (folder.parent / f"slurm-{job['job_id']}").resolve() == folder
    plan = json.loads((folder / "plan.json").read_text())
    assert [place["node"] for place in plan["ranks"]] == ["ib-1", "ib-1", "ib-2", "ib-2",
                                                          "roce-1", "roce-2"], "unlike numbers of tasks"
    found = rows(folder)
    for key in ("loss", "grad_norm"):
        assert [row[key] for row in found] == pytest.approx([row[key] for row in one_process], rel=1e-5)
    assert not any(row["emulated"] for row in found)
    gradient_bytes = 4 * 12 * 32**2 * 4
    # The first step has no gather before it, and what a NIC has not sent yet at a step's end counts in the next one.
    assert all(row["bytes_fabric"] > 2 * gradient_bytes for row in found[1:]), [row["bytes_fabric"] for row in found]
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "completed"


def test_dry_run_shows_a_script_that_slurm_takes(each_slurm: SlurmCluster) -> None:
    done = holmes(each_slurm, "train", [*MIXED, *TINY, "launch.dry_run=true", "launch.setup=[module load cuda]"])
    assert done.status == 0, done.stderr
    script = done.stdout[done.stdout.index("#!/bin/bash"):]
    assert script.count("#SBATCH hetjob") == 1
    assert "#SBATCH --partition=ib" in script
    assert "#SBATCH --partition=roce" in script
    assert "module load cuda" in script
    assert "--het-group=0,1" in script
    assert newest_run(each_slurm.shared) is None


def test_refused_job_shows_slurms_own_words(slurm: SlurmCluster) -> None:
    done = holmes(slurm, "train", [*MIXED, *TINY, "cluster.partitions.ib.constraint=no_such_feature"], check=False)
    assert done.status == 2
    assert "Invalid feature specification" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_uneven_tasks_and_unequal_components(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(ib_nodes=2, roce_nodes=1)
    done = holmes(slurm, "train", ["+cluster=mixed", "parallel=holmes", *TINY, "cluster.partitions.ib.nodes=2",
                                   "cluster.partitions.ib.gpus_per_node=2", "cluster.partitions.roce.nodes=1",
                                   "cluster.partitions.roce.gpus_per_node=1", "launch.wait=true"])
    folder = newest_run(slurm.shared)
    assert done.status == 0, done.stderr + shlex.quote(str(folder))
    plan = json.loads((folder / "plan.json").read_text())
    assert [place["node"] for place in plan["ranks"]] == ["ib-1", "ib-1", "ib-2", "ib-2", "roce-1"]
