"""Faults and odd inputs on a real Slurm that a demanding user meets: controllers that die, full disks, other users."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.runs_for_tests import newest_run
from tests.slurm_cluster import ClusterSettings, SlurmCluster, start_cluster, tree_folder, unavailable_reason
from tests.slurm_cluster.cluster import ORDINARY_USER
from tests.slurm_cluster.fixture import EACH_SLURM
from tests.slurm_sites import HOLDING, TINY, command, holmes, let_go, result, site, without_torch

pytestmark = pytest.mark.slurm

KILLED = """\
#!/bin/sh
moment=$(cat {folder}/moment)
now() {{ [ $moment = "$1" ] && mkdir {folder}/$moment 2>/dev/null; }}
die() {{ kill -9 $(cat /run/slurm-cluster/pid/slurmctld.pid); (sleep 1; slurmctld) >/dev/null 2>&1 & }}
now before && die
answer=$(/usr/bin/sbatch "$@") || exit
now lost && die && echo 'sbatch: error: Socket timed out on send/recv operation' >&2 && exit 1
now told && die
now taken && die && (sleep 1; number=${{answer%;*}}; until [ "$another" = "${{number##* }}" ]; do
another=$(/usr/bin/sbatch --parsable --wrap='sleep 300' -J another) || sleep 0.1; done) >/dev/null 2>&1 &
echo $answer
"""


@pytest.mark.long
def test_a_controller_that_is_killed_at_any_moment_of_a_submission_runs_one_job(each_slurm: SlurmCluster) -> None:
    slurm, folder = each_slurm, each_slurm.shared / "killing"
    folder.mkdir()
    (folder / "sbatch").write_text(KILLED.format(folder=folder))
    (folder / "sbatch").chmod(0o755)
    run = [site(slurm), without_torch(slurm), "+cluster=pair", *TINY]
    for moment in ("before", "lost", "told", "taken"):
        let_go(slurm)  # the look at a number that is given once more holds its job
        (folder / "moment").write_text(moment)
        done = holmes(slurm, "train", [*run, f"run.name={moment}"], check=False, environment={
            "PATH": f"{folder}:{os.environ['PATH']}"})
        made = newest_run(slurm.shared)
        assert made is not None
        scripts = slurm.run("squeue --noheader --states=all --format=%o").stdout
        if done.status == 0:
            assert result(made)["status"] == "completed" and scripts.count(f"{made}/") == 2, scripts
        else:  # what is not saved yet when it is killed is lost
            assert moment in ("told", "taken") and scripts.count(f"{made}/") == 0, done.stderr
            assert "the controller lost it" in done.stderr and "start the run again" in done.stderr
            if moment == "told":
                a_number_that_is_given_once_more_is_no_job_of_the_lost_run(slurm, run, made)
            else:
                assert "Slurm lost it, and gave the number" in done.stderr, done.stderr
                states = set(slurm.run("squeue --noheader --states=all --name=another --format=%T").stdout.split())
                assert states and states <= {"PENDING", "RUNNING"}, states


def a_number_that_is_given_once_more_is_no_job_of_the_lost_run(slurm: SlurmCluster, run: list[str], lost: Path
                                                               ) -> None:
    (slurm.shared / "templates" / "go").unlink()
    number = json.loads((lost / "job.json").read_text())["job_id"]
    for _ in range(int(number)):  # how many numbers were lost with this one goes by what was saved when
        if int(slurm.run("scontrol show config").stdout.partition("NEXT_JOB_ID")[2].split()[1]) == int(number):
            break
        slurm.run("scancel $(sbatch --parsable --hold --wrap=true)")
    holmes(slurm, "train", [*run, "launch.wait=false"])
    other = newest_run(slurm.shared)
    assert other is not None and json.loads((other / "job.json").read_text())["job_id"] == number
    assert holmes(slurm, "cancel", [str(lost)]).stdout == "cancelled 0 of 1 runs; the others are over\n"
    assert set(slurm.states(int(number))) <= {"PENDING", "RUNNING"}
    assert holmes(slurm, "cancel", [str(other)]).stdout.startswith("cancelled 1 of 1 runs")


@pytest.mark.parametrize("which", EACH_SLURM)
def test_a_full_disk_ends_each_run_with_that_cause(tmp_path: Path, which: str) -> None:
    settings = ClusterSettings(ib_nodes=1, roce_nodes=1, tree=tree_folder() if which == "tree" else None)
    if reason := unavailable_reason(settings):
        pytest.skip(reason)
    shared = tmp_path / "slurm"
    shared.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=1777", "small", shared], check=True)
    try:
        with start_cluster(settings, shared) as slurm:
            run = [site(slurm), "+cluster=pair", *TINY]
            following = subprocess.Popen(
                slurm.command_line(command("train", [*run, "+launch.sbatch.hold=true"]), environment=HOLDING),
                text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
            assert following.stderr is not None
            line = next(line for line in following.stderr if "submitted job" in line)
            slurm.run("head -c 8m /dev/zero > filling", check=False)
            refused = holmes(slurm, "train", run, check=False)
            assert refused.status == 2 and "the disk or the quota is full" in refused.stderr, refused.stderr
            job = int(line.partition("submitted job ")[2].partition(";")[0])
            slurm.run(f"scontrol release {job}")
            rest = following.stderr.read()
            assert following.wait(timeout=60) == 1
            assert "is full, so neither ranks nor logs could be written; free space there" in rest, rest
            assert set(slurm.wait_for(job)) == {"FAILED"}
    finally:
        subprocess.run(["umount", "--lazy", shared], check=False)


def test_another_user_sees_and_touches_nothing(each_slurm: SlurmCluster) -> None:
    slurm = each_slurm
    holmes(slurm, "train", [site(slurm), without_torch(slurm), *TINY, "launch.wait=false", "-m", "+cluster=pair,one"])
    place, made = next((slurm.shared / "runs" / "sweeps").iterdir()), newest_run(slurm.shared)
    for verb, words in (("jobs", [str(made)]), ("cancel", [str(made)]), ("cancel", [str(place)]),
                        ("sweep", [str(place), "--resume"])):
        done = holmes(slurm, verb, words, user=ORDINARY_USER, check=False)
        assert done.status == 2 and "cannot be read: Permission denied" in done.stderr, done.stderr
    let_go(slurm)
    assert "completed" in holmes(slurm, "jobs", [str(place), "--watch"]).stdout


ODD = """\
name: odd
partitions:
  a.b-1: {partition: gpu.ib-1_a, nodes: 1, gpus_per_node: 1, gpu: cpu, nic: hdr200, constraint: 'IB:HDR&x.y'}
  r_2: {partition: mixed, nodes: 1, gpus_per_node: 1, gpu: cpu, nic: roce200, exclude: 'ib-[1-2],roce-2',
        sbatch: {reservation: course, comment: "it's 100% $HOME `x`"}}
"""


@pytest.mark.long
def test_odd_names_and_options_come_to_slurm_as_they_are(each_slurm: SlurmCluster) -> None:
    slurm = each_slurm
    features = "availablefeatures=IB:HDR,ib,x.y activefeatures=IB:HDR,ib,x.y"
    slurm.run("scontrol create partition=gpu.ib-1_a nodes=ib-1 && scontrol create reservation=course nodes=roce-1 "
              f"users=root starttime=now duration=60 && scontrol update nodename=ib-1 {features}")
    run = [site(slurm), without_torch(slurm), *TINY]
    (slurm.shared / "site" / "cluster" / "odd.yaml").write_text(ODD)
    let_go(slurm)
    done = holmes(slurm, "train", [*run, "+cluster=odd"], check=False)
    assert done.status == 0, done.stderr
    listed = slurm.run("squeue --noheader --states=all --format='%P|%N|%v|%k' | grep -v '(null)|(null)'").stdout
    assert "mixed|roce-1|course|it's 100% $HOME `x`" in listed, listed
    for setting, said in (("+launch.sbatch.reservation=nosuch", "Requested reservation is invalid"),
                          ("+launch.sbatch.nodelist=nowhere", "Invalid node name specified"),
                          ('+launch.sbatch.exclude="ib-[1"', "Invalid"),
                          ("cluster.partitions.ib.constraint=IB:NDR", "feature")):
        refused = holmes(slurm, "train", [*run, "+cluster=one", setting], check=False)
        assert (refused.status, said in refused.stderr, "Traceback" in refused.stderr) == (2, True, False), \
            f"{setting}: {refused.status} {refused.stderr}"
