"""Where a run goes when it is started in the places that Slurm has: each case of `launch.mode=auto` on a real Slurm."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.runs_for_tests import ROOT, newest_run
from tests.slurm_cluster import SlurmCluster
from tests.slurm_cluster.cluster import ORDINARY_USER
from tests.slurm_sites import HOLDING, TINY, command, holmes, nodes, result, site

pytestmark = pytest.mark.slurm

_PTY = "import os, pty, sys; status = pty.spawn(sys.argv[1:]); sys.exit(os.waitstatus_to_exitcode(status))"

_FIRST_TASK = """sh -c 'test "$SLURM_PROCID" != 0 || exec "$@"' first"""  # as shells of other tasks find no input


def train(slurm: SlurmCluster, cluster: str, *further: str) -> str:
    return shlex.join(command("train", [site(slurm), f"+cluster={cluster}", *TINY, *further]))


def test_a_sites_own_batch_script_starts_the_ranks(slurm: SlurmCluster) -> None:
    script = f"srun {train(slurm, 'two')}\nsrun -N1 -n1 {train(slurm, 'one', 'run.name=second')}"
    job = slurm.sbatch(script, "-p", "ib", "-N2", "--ntasks-per-node=1", "--output=own.out", environment=HOLDING)
    assert slurm.wait_for(job, timeout_seconds=120) == ["COMPLETED"], (slurm.shared / "own.out").read_text()
    folders = [next((slurm.shared / "runs" / name).glob(f"slurm-{job}")).resolve() for name in ("two", "second")]
    assert folders[0] != folders[1], "each of the two steps has a run folder of its own"
    for folder, where in zip(folders, (["ib-1", "ib-2"], ["ib-1"]), strict=True):
        assert result(folder)["status"] == "completed"
        assert nodes(folder) == where


@pytest.mark.long
def test_srun_with_colons_starts_the_ranks(slurm: SlurmCluster) -> None:
    line = train(slurm, "pair")
    done = slurm.run(f"srun -p ib -N1 -n1 {line} : -p roce -N1 -n1 {line}", environment=HOLDING, timeout_seconds=150)
    folder = newest_run(slurm.shared)
    assert folder is not None, done.stderr
    assert result(folder)["status"] == "completed"
    assert nodes(folder) == ["ib-1", "roce-1"]


@pytest.mark.parametrize(("allocation", "cluster", "where"), [
    pytest.param("salloc -p ib -N2", "two", ["ib-1", "ib-2"], marks=pytest.mark.long),
    ("salloc -p ib -N1 : -p roce -N1", "pair", ["ib-1", "roce-1"]),
    pytest.param(f"{shlex.join([sys.executable, '-c', _PTY])} srun -p ib -N2 --ntasks-per-node=1 --pty {_FIRST_TASK}",
                 "two", ["ib-1", "ib-2"], marks=pytest.mark.long),
    pytest.param("salloc -p ib -N2 srun -N1 -n1", "two", ["ib-1", "ib-2"], marks=pytest.mark.long),
], ids=["salloc", "salloc of two components", "srun --pty", "a notebook's step"])
def test_inside_an_allocation_one_step_is_started(slurm: SlurmCluster, allocation: str, cluster: str,
                                                  where: list[str]) -> None:
    done = slurm.run(f"{allocation} {train(slurm, cluster)}", environment=HOLDING, timeout_seconds=150, check=False)
    folder = newest_run(slurm.shared)
    assert done.status == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert folder is not None
    assert result(folder)["status"] == "completed"
    assert nodes(folder) == where
    assert not (folder / "submission").exists(), "nothing was submitted"


def test_a_step_with_other_numbers_of_tasks_does_not_start_runs_in_each(slurm: SlurmCluster) -> None:
    done = slurm.run(f"srun -p ib -N2 -n2 {train(slurm, 'one')}", environment=HOLDING, check=False)
    assert done.status == 2
    assert "srun --ntasks=1" in done.stderr
    assert newest_run(slurm.shared) is None


def test_a_small_batch_job_refuses_a_large_cluster(slurm: SlurmCluster) -> None:
    job = slurm.sbatch(train(slurm, "two"), "-p", "ib", "-N1", "--output=small.out", environment=HOLDING)
    assert slurm.wait_for(job) == ["FAILED"]
    assert "has 1 of the 2 nodes" in (slurm.shared / "small.out").read_text()


@pytest.mark.long
def test_an_ordinary_user_submits_counted_features(slurm: SlurmCluster) -> None:
    done = holmes(slurm, "train", [site(slurm), "+cluster=counted", "parallel=holmes", *TINY], user=ORDINARY_USER,
                  check=False)
    folder = newest_run(slurm.shared)
    assert done.status == 0, done.stderr[-3000:]
    assert folder is not None
    script = next((folder / "submission").glob("*submission.sh")).read_text()
    assert "#SBATCH --constraint=[roce*1&(ib&hdr200)*1]" in script
    # Slurm orders the nodes as slurm.conf does, so the plan is made anew for them.
    assert nodes(folder) == ["ib-1", "roce-1"]
    assert result(folder)["status"] == "completed"
    assert folder.stat().st_uid == ORDINARY_USER


def test_nothing_is_trained_on_the_login_node_unasked(each_slurm: SlurmCluster) -> None:
    slurm = each_slurm
    own = [site(slurm), "+cluster=one", *TINY]
    mistyped = holmes(slurm, "train", [*own, "cluster.partitions.ib.partition=ibb"], check=False)
    assert mistyped.status == 2
    assert "knows no partition ibb; it knows ib, mixed, roce, urgent" in mistyped.stderr
    ours = holmes(slurm, "train", ["+cluster=laptop", "launch.dry_run=true"])
    assert "it would go to: emulated" in ours.stderr, "a cluster that ships with us, of which nothing exists here"
    slow = {"PATH": f"{_slow_sinfo(slurm)}:{os.environ['PATH']}"}
    late = holmes(slurm, "train", [*own, "launch.dry_run=true"], environment=slow)
    assert "has not answered `sinfo --noheader --format=%R` for 2 s" in late.stderr
    assert "Slurm would take it" in late.stderr
    slurm.run("mv /run/munge/munge.socket.2 /run/munge/away")
    alone = holmes(slurm, "train", [*own, "launch.dry_run=true"], check=False)
    assert alone.status == 2 and "munged does not run on this machine" in alone.stderr, alone.stderr
    slurm.run("mv /run/munge/away /run/munge/munge.socket.2; scontrol shutdown slurmctld")
    down = holmes(slurm, "train", ["+cluster=mixed", *TINY], check=False)  # slurm.conf names its partitions
    assert down.status == 2
    assert "no Slurm controller answers: the controller is down or cannot be reached (`sinfo" in down.stderr
    assert "launch.mode=emulated asks for it" in down.stderr
    assert str(ROOT) not in down.stderr
    assert newest_run(slurm.shared) is None


def _slow_sinfo(slurm: SlurmCluster) -> Path:
    """Return a folder with a `sinfo` that answers after three seconds."""
    program = slurm.shared / "slow" / "sinfo"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nsleep 3\nexec /usr/bin/sinfo "$@"\n')
    program.chmod(0o755)
    return program.parent
