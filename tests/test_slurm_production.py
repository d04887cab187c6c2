"""Settings and faults of sites in production, as far as a test cluster can have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs_for_tests import newest_run
from tests.slurm_cluster import SlurmCluster
from tests.slurm_cluster.fixture import MakeSlurm
from tests.slurm_cluster.second import start_second_cluster
from tests.slurm_sites import HOLDING, TINY, command, holmes, let_go, result, site, without_torch

pytestmark = pytest.mark.slurm

SCHEDULER = "bf_interval=1,sched_interval=1,bf_hetjob_immediate,bf_hetjob_prio=min,requeue_setup_env_fail"


def test_where_a_site_forbids_steps_over_components_the_way_out_is_named(make_each_slurm: MakeSlurm) -> None:
    slurm = make_each_slurm(extra=(f"SchedulerParameters={SCHEDULER},disable_hetjob_steps",))
    done = holmes(slurm, "train", [site(slurm), "+cluster=pair", *TINY], check=False)
    assert done.status == 1
    assert "this site forbids steps over the components of a job (disable_hetjob_steps" in done.stderr
    assert "cluster.shape=features" in done.stderr


@pytest.mark.long
def test_a_job_that_a_failed_prolog_holds_is_said_to_be_held(each_slurm: SlurmCluster) -> None:
    slurm, broken = each_slurm, each_slurm.shared / "broken"
    prolog = slurm.shared / "prolog"
    prolog.write_text(f"#!/bin/sh\n[ ! -e {broken} ]\n")
    prolog.chmod(0o755)
    slurm.run(f"echo Prolog={prolog} >> /etc/slurm/slurm.conf; scontrol reconfigure")
    broken.touch()
    run = [site(slurm), without_torch(slurm), "+cluster=one", *TINY]
    let_go(slurm)
    following, job = followed_until(slurm, run, "it is held and does not start by itself")
    broken.unlink()
    slurm.run(f"scontrol update NodeName=ib-1,ib-2 State=resume; scontrol release {job}", check=False)
    _, rest = following.communicate(timeout=60)
    assert following.returncode == 0, rest
    slurm.run("scontrol update partition=ib maxtime=10")
    following, _ = followed_until(slurm, [*run, "cluster.partitions.ib.time_limit=60"],
                                  "it does not start by itself: its time limit is above that of its partition")
    slurm.run("scontrol update partition=ib maxtime=infinite")
    _, rest = following.communicate(timeout=60)
    assert following.returncode == 0, rest


def followed_until(slurm: SlurmCluster, words: list[str], said: str) -> tuple[subprocess.Popen[str], str]:
    """Start a run that is followed, and return its command and its job once something was said of it."""
    following = subprocess.Popen(slurm.command_line(command("train", words), environment=HOLDING), text=True,
                                 stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert following.stderr is not None
    job = ""
    for line in following.stderr:
        job = line.partition("submitted job ")[2].partition(";")[0] or job
        if said in line:
            return following, job
    raise AssertionError(f"it ended with {following.wait()} and never said: {said}")


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


@pytest.mark.long
def test_a_site_with_control_groups_an_mpi_plugin_and_a_slow_home(make_each_slurm: MakeSlurm) -> None:
    """Ranks start late and one after another; the variables of MPI come to them and are no matter."""
    slurm = make_each_slurm(cgroups=True, ib_nodes=1, roce_nodes=1, extra=("MpiDefault=pmi2",))
    assert "PMI_RANK=0" in slurm.run("srun -p ib env").stdout
    if slurm.settings.tree is not None:  # Debian 12 has the plug-in without its library
        assert "PMIX_RANK=0" in slurm.run("srun -p ib --mpi=pmix env").stdout
    slow = slurm.shared / "slow" / "python"
    slow.parent.mkdir()
    slow.write_text(f"#!/bin/sh\nsleep $((SLURM_PROCID * 3))\ncat /proc/self/cgroup >> {slow.parent}/groups\n"
                    f'exec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    further = ["launch.srun_args=[--mpi=pmix]"] if slurm.settings.tree is not None else []
    done = holmes(slurm, "train", [site(slurm), "+cluster=pair", *TINY, f"launch.python={slow}", *further,
                                   "+launch.sbatch.mem=1500"], check=False)
    folder = newest_run(slurm.shared)
    assert done.status == 0 and folder is not None, done.stderr[-3000:]
    assert result(folder)["status"] == "completed"
    assert (slow.parent / "groups").read_text().count("memory:/slurm_") == 2, "each rank in the group of its job"
    small = holmes(slurm, "train", [site(slurm), "+cluster=pair", *TINY, "+launch.sbatch.mem=150"], check=False)
    assert small.status == 1
    assert "was killed: it used more memory than its job has on a node (Slurm: Detected 1 oom" in small.stderr
    assert "ask for more by +launch.sbatch.mem=64G" in small.stderr and "SIGKILL" not in small.stderr


@pytest.mark.long
def test_where_only_the_accounting_enforces_memory_it_is_named_as_well(make_each_slurm: MakeSlurm) -> None:
    slurm = make_each_slurm(ib_nodes=1, roce_nodes=1, extra=(
        "SelectTypeParameters=CR_Core_Memory", "DefMemPerCPU=900", "JobAcctGatherParams=OverMemoryKill",
        "JobAcctGatherFrequency=task=1"))
    small = holmes(slurm, "train", [site(slurm), "+cluster=pair", *TINY, "train.steps=400", "+launch.sbatch.mem=100"],
                   check=False)
    assert small.status == 1
    assert "used more memory than its job has on a node (Slurm: " in small.stderr, small.stderr
    assert "ask for more by +launch.sbatch.mem=64G" in small.stderr


@pytest.mark.long
def test_an_epilog_that_hangs_holds_no_follower(each_slurm: SlurmCluster) -> None:
    slurm, hangs = each_slurm, each_slurm.shared / "hangs"
    epilog = slurm.shared / "epilog"
    epilog.write_text(f"#!/bin/sh\nwhile [ -e {hangs} ]; do sleep 0.1; done\n")
    epilog.chmod(0o755)
    slurm.run(f"echo Epilog={epilog} >> /etc/slurm/slurm.conf; scontrol reconfigure")
    hangs.touch()
    run = [site(slurm), without_torch(slurm), "+cluster=one", *TINY]
    let_go(slurm)
    assert holmes(slurm, "train", run).status == 0
    assert "COMPLETING" in slurm.squeue().values()
    failed = holmes(slurm, "train", [site(slurm), "+cluster=one", *TINY, "launch.python=/no/such/python"], check=False)
    assert failed.status == 1 and "cannot start the ranks' Python /no/such/python" in failed.stderr, failed.stderr
    assert "it is COMPLETING for " in failed.stderr and "such as for an epilog" in failed.stderr
    third = holmes(slurm, "train", [*run, "launch.wait=false"])  # both nodes are held
    job = int(third.stderr.partition("submitted job ")[2].partition(";")[0])
    assert slurm.states(job) == ["PENDING"]
    hangs.unlink()
    assert slurm.wait_for(job) == ["COMPLETED"]


@pytest.mark.long
def test_a_second_cluster_is_asked_about_its_jobs_alone(each_slurm: SlurmCluster) -> None:
    """The other cluster is this one under another name: its commands answer only where they are asked for it."""
    slurm = each_slurm
    path = west(slurm)
    run = [site(slurm), without_torch(slurm), *TINY, "+launch.sbatch.clusters=west"]
    environment = {"PATH": path}
    let_go(slurm)
    done = holmes(slurm, "train", [*run, "+cluster=pair"], environment=environment, check=False)
    assert done.status == 0, done.stderr
    sweep = holmes(slurm, "train", [*run, "-m", "+cluster=one", "train.seed=1,2,3", "launch.max_jobs=1"],
                   environment=environment, check=False)
    assert sweep.status == 0, sweep.stderr
    assert holmes(slurm, "jobs", [], environment=environment).stdout.count("completed") == 4
    (slurm.shared / "templates" / "go").unlink()
    holmes(slurm, "train", [*run, "+cluster=pair", "launch.wait=false"], environment=environment)
    folder = newest_run(slurm.shared)
    assert holmes(slurm, "cancel", [str(folder)], environment=environment).stdout.startswith("cancelled 1 of 1 runs")
    assert not (slurm.shared / "west" / "wrong").exists(), (slurm.shared / "west" / "wrong").read_text()


def west(slurm: SlurmCluster) -> str:
    """Return a PATH whose commands know the cluster `west` alone, and answer as those of Slurm do for another one."""
    folder = slurm.shared / "west"
    folder.mkdir()
    (folder / "any").write_text(f"""#!/bin/bash
name=$(basename "$0"); words=(); asked=
if [ "$name" = sbatch ] && grep -q '^#SBATCH --clusters=west$' "${{@: -1}}"; then
  asked=yes; sed '/^#SBATCH --clusters=west$/d' "${{@: -1}}" > "${{@: -1}}.east"
  set -- "${{@:1:$#-1}}" "${{@: -1}}"
fi
for word; do case $word in --clusters=west) asked=yes;; *) words+=("$word");; esac; done
if [ -z "$asked" ] && [ "$(hostname)" = head ]; then echo "$name $*" >> {folder}/wrong; exit 1; fi
case $name in
  sbatch) if [ -n "$asked" ]; then cp "${{@: -1}}.east" "${{@: -1}}"; rm -f "${{@: -1}}.east"; fi
          /usr/bin/sbatch "${{words[@]}}" | sed 's/$/;west/'; exit ${{PIPESTATUS[0]}};;
  squeue|sinfo) [ -z "$asked" ] || echo "CLUSTER: west";;
esac
exec /usr/bin/$name "${{words[@]}}"
""")
    (folder / "any").chmod(0o755)
    for name in ("sbatch", "sinfo", "squeue", "sacct", "scontrol", "scancel"):
        (folder / name).symlink_to("any")
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.long
def test_two_clusters_of_one_database_keep_their_jobs_apart(make_each_slurm: MakeSlurm) -> None:
    slurm = make_each_slurm(accounting=True)
    start_second_cluster(slurm)
    slurm.run("sbatch --clusters=west --wrap=true")  # number 1 has passed by on the first cluster
    run = [site(slurm), without_torch(slurm), *TINY, "+launch.sbatch.clusters=west"]
    done = holmes(slurm, "train", [*run, "+cluster=pair", "launch.wait=false"])
    folder = newest_run(slurm.shared)
    assert folder is not None
    job = int(json.loads((folder / "job.json").read_text())["job_id"])
    assert f"cancel it: `scancel --clusters=west {job}`" in done.stderr
    while slurm.sbatch("sleep 300") < job:  # until this cluster has a job of that number too, of the same user
        pass
    slurm.wait_for(job, ["RUNNING"])
    until(lambda: " running " in holmes(slurm, "jobs", [str(folder)]).stdout, "the run runs")
    assert holmes(slurm, "cancel", [str(folder)]).stdout == f"cancelled 1 of 1 runs (jobs {job})\n"
    until(lambda: west_states(slurm, job) <= {"CANCELLED"}, "its job is cancelled")
    assert slurm.states(job) == ["RUNNING"]
    until(lambda: " cancelled " in holmes(slurm, "jobs", [str(folder)]).stdout, "it is shown as cancelled")
    let_go(slurm)
    done = holmes(slurm, "train", [*run, "+cluster=pair"], check=False)
    assert done.status == 0, done.stderr
    sweep = holmes(slurm, "train", [*run, "-m", "+cluster=one", "train.seed=1,2,3", "launch.max_jobs=1"], check=False)
    assert sweep.status == 0, sweep.stderr
    assert slurm.run("squeue --noheader --states=all --format=%o").stdout.count("/runs/") == 0
    assert slurm.run("sacct --clusters=testbed --noheader --allocations --format=JobName").stdout.count("pair") == 0


def west_states(slurm: SlurmCluster, job: int) -> set[str]:
    listed = slurm.run(f"squeue --clusters=west --noheader --states=all --jobs={job} --format=%T").stdout
    return set(listed.split())


def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.3)


CONFIGLESS = """\
kill $(cat /run/slurm-cluster/pid/slurmd.{node}.pid)
while [ -e /run/slurm-cluster/pid/slurmd.{node}.pid ]; do sleep 0.05; done
mount -t tmpfs none /etc/slurm && slurmd -N {node} --conf-server 10.0.0.254:6817
"""


@pytest.mark.long
def test_nodes_that_fetch_their_configuration_run_jobs_and_submit_them(make_each_slurm: MakeSlurm) -> None:
    slurm = make_each_slurm(extra=("SlurmctldParameters=enable_configless,preempt_send_user_signal",))
    for node in slurm.settings.nodes:
        slurm.run(CONFIGLESS.format(node=node.name), node.name)
    run = [site(slurm), without_torch(slurm), "+cluster=pair", *TINY]
    let_go(slurm)
    done = holmes(slurm, "train", run, check=False)
    assert done.status == 0, done.stderr
    # As in a job on this node, whose copy has a path of its own here: the ranks are on others.
    fetched = "/run/slurm-cluster/spool/roce-2/conf-cache/slurm.conf"
    done = holmes(slurm, "train", run, machine="roce-2", check=False, environment={"SLURM_CONF": fetched})
    assert done.status == 0, done.stderr
    folder = newest_run(slurm.shared)
    assert folder is not None and "completed" in holmes(slurm, "jobs", [str(folder)], machine="ib-2").stdout
