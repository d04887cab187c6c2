"""What a real Slurm of several clusters and with sets of nodes tells, and how it is asked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.runs_for_tests import newest_run
from tests.slurm_cluster import SlurmCluster
from tests.slurm_cluster.configuration import CLUSTER_NAME
from tests.slurm_cluster.fixture import MakeSlurm
from tests.slurm_sites import TINY, holmes, let_go, site, without_torch

pytestmark = pytest.mark.slurm

COMMANDS = ("sbatch", "sinfo", "squeue", "sacct", "scontrol", "scancel")


def written_down(slurm: SlurmCluster) -> tuple[Path, str]:
    """Return a file in which every call of Slurm's commands is written down, and the PATH that does it."""
    folder = slurm.shared / "written"
    folder.mkdir()
    for name in COMMANDS:
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/calls\nexec /usr/bin/{name} "$@"\n')
        program.chmod(0o755)
    return folder / "calls", f"{folder}:{os.environ['PATH']}"


def test_a_cluster_named_by_launch_sbatch_is_asked_everywhere_and_sets_of_nodes_are_read(
        make_each_slurm: MakeSlurm) -> None:
    slurm = make_each_slurm(accounting=True, extra=("NodeSet=fast Feature=hdr200", "PartitionName=byset Nodes=fast"))
    calls, path = written_down(slurm)
    run = [site(slurm), without_torch(slurm), "+cluster=two", "cluster.partitions.ib.partition=byset", *TINY]
    let_go(slurm)
    done = holmes(slurm, "train", [*run, f"+launch.sbatch.clusters={CLUSTER_NAME}"], environment={
        "PATH": path, "PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.1.0"}, check=False)
    assert done.status == 0, done.stderr
    folder = newest_run(slurm.shared)
    assert folder is not None
    assert json.loads((folder / "job.json").read_text())["cluster"] == CLUSTER_NAME
    asked = [line for line in calls.read_text().splitlines() if not line.startswith("sbatch ")]
    assert asked and all(f" --clusters={CLUSTER_NAME} " in f"{line} " for line in asked), asked
    assert "completed" in holmes(slurm, "jobs", []).stdout
    inventory = holmes(slurm, "doctor", run).stdout
    assert "byset: 2 of 2 nodes in service" in inventory
    away = holmes(slurm, "train", [*run, "+launch.sbatch.clusters=nowhere"], check=False)
    assert (away.status, "Traceback" in away.stderr) == (2, False), away.stderr
    assert "nowhere" in away.stderr
