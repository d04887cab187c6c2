"""The readers on what a running Slurm says, in both releases."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from holmes_hpc.cluster.slurm import (
    annotate,
    read_place,
    read_sacct,
    read_scontrol_nodes,
    read_settings,
    read_sinfo,
    read_squeue,
    read_step,
    read_topology,
    states_of_jobs,
)
from holmes_hpc.cluster.slurm.jobs import ACCOUNTING_FIELDS, JOB_FORMAT
from holmes_hpc.cluster.slurm.nodes import NODE_FORMAT, read_scontrol_partitions
from tests.slurm_cluster import ClusterSettings, SlurmCluster, start_cluster, tree_folder, unavailable_reason
from tests.slurm_cluster.fixture import EACH_SLURM, MakeSlurm

pytestmark = pytest.mark.slurm

ALL = ["ib-1", "ib-2", "roce-1", "roce-2"]
SAVE = """\
import json, os
with open(f"{os.environ['NAME']}.{os.environ['SLURM_PROCID']}", "w") as file:
    json.dump(dict(os.environ), file)
"""


@pytest.fixture(scope="module", params=EACH_SLURM)
def shared_slurm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """One cluster for all tests of this file, which leave no job behind."""
    settings = ClusterSettings(tree=tree_folder() if request.param == "tree" else None)
    reason = unavailable_reason(settings)
    if reason:
        pytest.skip(reason)
    with start_cluster(settings, tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def test_nodes_partitions_topology_and_settings(shared_slurm: SlurmCluster) -> None:
    def said(command: str) -> str:
        return shared_slurm.run(command).stdout

    nodes = read_scontrol_nodes(said("scontrol show node"))
    assert [node.name for node in nodes] == ALL
    plain = read_sinfo(said(f"sinfo --Node --format='{NODE_FORMAT}'"))
    machine = read_sinfo(said("sinfo --json"))
    for listed in (plain, machine):
        assert {(node.name, node.features, node.gres, frozenset(node.partitions)) for node in listed} == {
            (node.name, node.features, node.gres, frozenset(node.partitions)) for node in nodes}
    partitions = {part.name: part.nodes for part in read_scontrol_partitions(said("scontrol show partition"))}
    assert partitions["mixed"] == tuple(ALL) and partitions["roce"] == ("roce-1", "roce-2")
    settings = read_settings(said("scontrol show config"))
    assert settings.preempted_jobs_are_requeued and not settings.accounting and settings.kill_wait_seconds == 3

    found = annotate(nodes, read_topology(said("scontrol show topology")))
    assert [(found[name].nic, found[name].fabric) for name in ALL] == [
        ("hdr200", "ib"), ("hdr200", "ib"), (None, "roce"), (None, "roce")]


def environments(slurm: SlurmCluster, name: str) -> list[dict[str, str]]:
    paths = sorted(slurm.shared.glob(f"{name}.[0-9]"), key=lambda path: int(path.suffix[1:]))
    return [json.loads(path.read_text()) for path in paths]


HET = "#SBATCH {}\n#SBATCH hetjob\n#SBATCH {}\nsrun --het-group=0,1 {}"
IB, ROCE = "--partition=ib --nodes=2 --ntasks-per-node=2", "--partition=roce --nodes=2 --ntasks-per-node=1"


@pytest.mark.parametrize(("name", "arguments", "order"), [
    ("plain", "-p mixed -N4 -n7", None),
    ("cyclic", "-p mixed -N3 -n7 -m cyclic", None),
    ("block", "-p mixed -N3 -n7 -m block", None),
    ("chosen", "-p mixed -w roce-2,ib-1 -N2 -n2", ["ib-1", "roce-2"]),
    ("colon", "-p roce -N2 -n3 {program} : -p ib -N1 -n2", ["roce-1", "roce-2", "ib-1"]),
    ("het", (IB, ROCE), ALL),
    ("hetroce", (ROCE, IB), ["roce-1", "roce-2", "ib-1", "ib-2"]),
    ("hetmixed", ("--partition=mixed -w roce-1 -N1 -n1", "--partition=mixed -w ib-2,roce-2 -N2 -n3"),
     ["roce-1", "ib-2", "roce-2"]),
])
def test_each_task_knows_the_whole_step(shared_slurm: SlurmCluster, name: str, arguments: str | tuple[str, str],
                                        order: list[str] | None) -> None:
    program = f"env NAME={name} python {shared_slurm.shared / 'save.py'}"
    (shared_slurm.shared / "save.py").write_text(SAVE)
    if isinstance(arguments, str):
        shared_slurm.run(f"srun {arguments.format(program=program)} {program}")
    else:
        job = shared_slurm.sbatch(HET.format(*arguments, program), f"--output={name}.log")
        assert set(shared_slurm.wait_for(job)) == {"COMPLETED"}, (shared_slurm.shared / f"{name}.log").read_text()
    tasks = environments(shared_slurm, name)
    layouts = [read_step(environment) for environment in tasks]
    assert all(layout.certain for layout in layouts)
    assert [layout.rank for layout in layouts] == list(range(len(tasks)))
    truth = [environment["SLURMD_NODENAME"] for environment in tasks]
    for layout in layouts:
        assert layout.nodes == layouts[0].nodes
        assert [layout.node_of(rank).name for rank in range(layout.world_size)] == truth
    if order:
        assert [node.name for node in layouts[0].nodes] == order


def test_a_requeued_het_job_is_followed_to_its_end(shared_slurm: SlurmCluster) -> None:
    script = ("#SBATCH --partition=ib --nodes=1\n#SBATCH hetjob\n#SBATCH --partition=roce --nodes=1\n"
              "env NAME=batch python save.py\n"
              "[ -n \"$SLURM_RESTART_COUNT\" ] && exit 0\nsrun --het-group=0,1 sleep 60\n")
    (shared_slurm.shared / "save.py").write_text(SAVE)
    job = shared_slurm.sbatch(script, "--output=requeued.log", "--open-mode=append")
    shared_slurm.wait_for(job, ["RUNNING"])
    _wait_for_step(shared_slurm, job)

    listed = read_squeue(shared_slurm.run(f"squeue --format='{JOB_FORMAT}'").stdout)
    assert [(str(found.id), found.nodes) for found in listed] == [(f"{job}+0", ("ib-1",)), (f"{job}+1", ("roce-1",))]
    assert states_of_jobs(read_squeue(shared_slurm.run("squeue --json").stdout))[str(job)] == "RUNNING"
    assert read_place(environments(shared_slurm, "batch")[0]) == "batch"

    shared_slurm.run(f"scontrol requeue {job}")
    shared_slurm.wait_for(job, ["COMPLETED"])
    assert environments(shared_slurm, "batch")[0]["SLURM_RESTART_COUNT"] == "1"
    assert "DUE TO JOB REQUEUE" in (shared_slurm.shared / "requeued.log").read_text()


def _wait_for_step(slurm: SlurmCluster, job: int) -> None:
    slurm.run(f"until squeue --noheader --steps | grep -q '{job}+\\?[01]*[.]0'; do sleep 0.1; done", timeout_seconds=20)


def test_a_component_that_is_cancelled_leaves_its_job_running(shared_slurm: SlurmCluster) -> None:
    script = "#SBATCH --partition=ib\n#SBATCH hetjob\n#SBATCH --partition=roce\nsleep 60\n"
    job = shared_slurm.sbatch(script, "--output=/dev/null")
    shared_slurm.wait_for(job, ["RUNNING"])
    shared_slurm.run(f"scancel {job}+1")
    shared_slurm.wait_for(job, ["RUNNING", "CANCELLED"])
    shared_slurm.run("sleep 1")
    listed = read_squeue(shared_slurm.run(f"squeue --states=all --format='{JOB_FORMAT}'").stdout)
    assert {str(found.id): found.state for found in listed if found.id.job == job} == {
        f"{job}+0": "RUNNING", f"{job}+1": "CANCELLED"}
    assert states_of_jobs(listed)[str(job)] == "RUNNING"
    shared_slurm.run(f"scancel {job}")
    shared_slurm.wait_for(job)


@pytest.mark.parametrize("release", EACH_SLURM)
def test_accounting_tells_the_end_of_het_jobs_and_array_tasks(make_slurm: MakeSlurm, release: str) -> None:
    slurm = make_slurm(accounting=True, tree=tree_folder() if release == "tree" else None)
    assert read_settings(slurm.run("scontrol show config").stdout).accounting
    script = "#SBATCH --partition=ib\n#SBATCH hetjob\n#SBATCH --partition=roce\nsleep 60\n"
    het = slurm.sbatch(script, "--output=/dev/null")
    array = slurm.sbatch("exit $SLURM_ARRAY_TASK_ID", "--array=0-1", "--output=/dev/null")
    slurm.wait_for(het, ["RUNNING"])
    slurm.wait_for(array)
    slurm.run(f"scancel {het}")
    slurm.wait_for(het)
    wanted = {str(het): "CANCELLED", f"{array}_0": "COMPLETED", f"{array}_1": "FAILED"}
    line = f"sacct --parsable2 --duplicates --format={ACCOUNTING_FIELDS}"
    deadline = time.monotonic() + 30  # slurmdbd lags behind
    while (found := states_of_jobs(read_sacct(slurm.run(line).stdout))) != found | wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.3)
    machine = states_of_jobs(read_sacct(slurm.run("sacct --duplicates --json").stdout))
    assert machine == machine | wanted
    failed = next(job for job in read_sacct(slurm.run(line).stdout) if str(job.id) == f"{array}_1")
    assert failed.exit_code == 1
