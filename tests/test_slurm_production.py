"""Settings and faults of sites in production, as far as a test cluster can have them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.slurm_cluster import SlurmCluster
from tests.slurm_cluster.fixture import MakeSlurm
from tests.slurm_sites import HOLDING, TINY, command, holmes, let_go, site, without_torch

pytestmark = pytest.mark.slurm

SCHEDULER = "bf_interval=1,sched_interval=1,bf_hetjob_immediate,bf_hetjob_prio=min,requeue_setup_env_fail"


def test_where_a_site_forbids_steps_over_components_the_way_out_is_named(make_each_slurm: MakeSlurm) -> None:
    slurm = make_each_slurm(extra=(f"SchedulerParameters={SCHEDULER},disable_hetjob_steps",))
    done = holmes(slurm, "train", [site(slurm), "+cluster=pair", *TINY], check=False)
    assert done.status == 1
    assert "this site forbids steps over the components of a job (disable_hetjob_steps" in done.stderr
    assert "cluster.shape=features" in done.stderr


def test_a_job_that_a_failed_prolog_holds_is_said_to_be_held(each_slurm: SlurmCluster) -> None:
    slurm, broken = each_slurm, each_slurm.shared / "broken"
    prolog = slurm.shared / "prolog"
    prolog.write_text(f"#!/bin/sh\n[ ! -e {broken} ]\n")
    prolog.chmod(0o755)
    slurm.run(f"echo Prolog={prolog} >> /etc/slurm/slurm.conf; scontrol reconfigure")
    broken.touch()
    words = command("train", [site(slurm), without_torch(slurm), "+cluster=one", *TINY])
    let_go(slurm)
    following = subprocess.Popen(slurm.command_line(words, environment=HOLDING), text=True, stderr=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL)
    assert following.stderr is not None
    job = ""
    for line in following.stderr:
        job = line.partition("submitted job ")[2].partition(";")[0] or job
        if "it is held and does not start by itself" in line:
            break
    broken.unlink()
    assert job
    slurm.run(f"scontrol update NodeName=ib-1,ib-2 State=resume; scontrol release {job}", check=False)
    rest = following.stderr.read()
    assert following.wait(timeout=60) == 0, rest


def test_each_rank_sees_the_gpus_that_the_step_gives_it(each_slurm: SlurmCluster) -> None:
    """The devices stand in for GPUs; which of them a task may see is the same to Slurm."""
    cluster = Path(site(each_slurm).partition("[")[2].rstrip("]")) / "cluster" / "gpus.yaml"
    cluster.write_text("name: gpus\npartitions:\n  ib: {nodes: 1, gpus_per_node: 2, gpu: a100-40g, nic: hdr200}\n")
    run = [site(each_slurm), "+cluster=gpus", *TINY, "launch.dry_run=true"]
    for options, seen in (([], ["0,1", "0,1"]), (["launch.srun_args=[--gpu-bind=single:1]"], None)):
        script = holmes(each_slurm, "train", [*run, *options]).stdout
        script = script[script.index("#!/bin/bash"):]
        step = next(line for line in script.splitlines() if line.startswith("srun "))
        told = step[:step.index(" -m holmes_hpc.launch.step")].rpartition(" ")[0]
        head = [line for line in script.splitlines() if line.startswith("#SBATCH") and "output" not in line]
        out = each_slurm.shared / f"seen-{len(options)}"
        body = f"{told} sh -c 'echo $CUDA_VISIBLE_DEVICES' > {out} 2>&1"
        job = each_slurm.sbatch("\n".join(["#!/bin/bash", *head, "#SBATCH --output=/dev/null", body, ""]))
        each_slurm.wait_for(job)
        lines = out.read_text().split()
        if seen is None:
            assert len(lines) == 2 and all("," not in line for line in lines), "one GPU for each rank"
        else:
            assert lines == seen
