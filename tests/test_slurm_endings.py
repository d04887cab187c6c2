"""Every job ends, whatever was killed, and says why: faults made on purpose on a real Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holmes_hpc.runs import RunFolder, Start
from holmes_hpc.runs.beats import Beat, write_beat
from holmes_hpc.runs.starts import PUBLISHED
from holmes_hpc.submit.outcome import outcome_of
from holmes_hpc.submit.step_guard import NOTHING_SECONDS, SILENT_SECONDS, StepGuard
from holmes_hpc.values.doing import Doing
from tests.runs_for_tests import ROOT, newest_run
from tests.slurm_cluster import SlurmCluster
from tests.slurm_cluster.fixture import MakeSlurm
from tests.slurm_runs import ENDLESS, PAIR, SLOW_ETHERNET_GBPS, SubmittedJob
from tests.slurm_runs import TINY as RUNS_TINY
from tests.slurm_sites import HOLDING, TINY, command, holmes, let_go, site, without_torch


def quick_guard(slurm: SlurmCluster, seconds: int = 2) -> str:
    """Return the override for our template with a guard that waits less long."""
    folder = slurm.shared / "quick"
    folder.mkdir(exist_ok=True)
    text = (ROOT / "sbatch_templates" / "job.sh.j2").read_text()
    sooner = f"{{{{ guard | replace(' 60 &', ' {seconds} &') }}}}"
    (folder / "job.sh.j2").write_text(text.replace("{{ guard }}", sooner))
    return f"launch.templates={folder}"


@pytest.mark.long
@pytest.mark.slurm
def test_a_job_whose_step_daemon_was_killed_ends(make_each_slurm: MakeSlurm) -> None:
    slurm = make_each_slurm(ib_nodes=1, roce_nodes=1, ethernet_gbps=SLOW_ETHERNET_GBPS)
    job = SubmittedJob(slurm, [*ENDLESS, "train.steps=12", quick_guard(slurm)])
    job.wait_for_steps(2)
    daemon = step_daemon(slurm, "roce-1")
    slurm.run(f"kill -9 {daemon}", "roce-1")
    job.wait_for_result("completed")
    assert slurm.wait_for(job.id, timeout_seconds=60)[0] == "COMPLETED", job.log
    assert "all ranks ended" in job.log and "srun is ended" in job.log
    job.wait_until_gone()


@pytest.mark.slurm
@pytest.mark.parametrize("fault", [pytest.param("stopped", marks=pytest.mark.long), "killed"])
def test_a_job_whose_ranks_are_all_silent_is_ended_by_its_batch_script(make_each_slurm: MakeSlurm, fault: str) -> None:
    slurm = make_each_slurm(ib_nodes=1, roce_nodes=1, ethernet_gbps=SLOW_ETHERNET_GBPS)
    job = SubmittedJob(slurm, [*ENDLESS, "train.timeout_seconds=4"])
    job.wait_for_steps(2)
    ranks = " ".join(str(rank["pid"]) for rank in job.read("job.json")["ranks"])
    daemons = " ".join(str(step_daemon(slurm, node)) for node in ("ib-1", "roce-1")) if fault == "killed" else ""
    slurm.run(f"kill -STOP {ranks}")
    if daemons:  # none of them, nor a rank that sees the other gone, is left to tell
        slurm.run(f"kill -9 {daemons} {ranks}")
    failed = job.wait_for_result("failed")
    assert "has given no sign of life for " in failed["error"] and "(all ranks)" in failed["error"], failed
    assert "train.timeout_seconds=4" in failed["error"]
    assert "FAILED" in slurm.wait_for(job.id, timeout_seconds=60)
    job.wait_until_gone()


def step_daemon(slurm: SlurmCluster, node: str) -> int:
    """Return the pid, in the cluster's PID namespace, of the step daemon of srun's step on a node."""
    listed = slurm.run(r"ps -e -o pid=,args= | grep 'slurmstepd: \[[0-9+]*\.0\]'", node).stdout
    network = os.readlink(f"/proc/{slurm.holders[node]}/ns/net")
    for line in listed.splitlines():
        pid = line.split()[0]
        if slurm.run(f"readlink /proc/{pid}/ns/net", node, check=False).stdout.strip() == network:
            return int(pid)
    raise AssertionError(f"no step daemon on {node}:\n{listed}")


@pytest.mark.slurm
def test_a_follower_without_squeue_goes_by_the_run_folder(each_slurm: SlurmCluster) -> None:
    slurm = each_slurm
    broken = slurm.shared / "broken" / "squeue"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Access denied' >&2\nexit 1\n")
    broken.chmod(0o755)
    words = command("train", [site(slurm), without_torch(slurm), "+cluster=pair", *TINY])
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": f"{broken.parent}:{os.environ['PATH']}"}
    following = subprocess.Popen(slurm.command_line(words, environment=environment), stderr=subprocess.PIPE, text=True,
                                 stdout=subprocess.DEVNULL)
    assert following.stderr is not None
    said = []
    for line in following.stderr:
        said.append(line)
        if "going by what the ranks write" in line:
            let_go(slurm)
    assert following.wait(timeout=60) == 0, "".join(said)
    assert "Access denied" in "".join(said)


@pytest.mark.long
@pytest.mark.slurm
def test_what_keeps_ranks_from_starting_is_told(make_each_slurm: MakeSlurm) -> None:
    slurm = make_each_slurm(ib_nodes=1, roce_nodes=1)
    torch = slurm.shared / "broken" / "torch.py"
    torch.parent.mkdir()
    torch.write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")
    empty = slurm.shared / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True)
    for setting, said in ((("launch.python=/no/such/python",),
                           ("cannot start the ranks' Python /no/such/python (No such file", "set launch.python to")),
                          ((f"launch.setup=['export PYTHONPATH={torch.parent}:$PYTHONPATH']",),
                           ("ImportError: libcudart.so.12: cannot open shared object file [rank ", " on node ")),
                          ((f"launch.python={empty}/bin/python", "launch.setup=[unset PYTHONPATH]"),
                           ("the ranks' Python does not find holmes_hpc",)),
                          (("run.folder=/dev/shm/runs",), ("left nothing in /dev/shm/runs/", "run.folder=PATH"))):
        done = holmes(slurm, "train", [site(slurm), "+cluster=pair", *TINY, *setting], check=False)
        assert done.status == 1, done.stderr
        for words in said:
            assert words in done.stderr, done.stderr
        assert "SIGKILL" not in done.stderr
        assert ("lies on tmpfs" in done.stderr) == ("/dev/shm" in setting[0])


@pytest.mark.slurm
def test_a_cancelled_job_is_called_cancelled_and_its_checkpoint_named(make_each_slurm: MakeSlurm) -> None:
    slurm = make_each_slurm(ib_nodes=1, roce_nodes=1, ethernet_gbps=SLOW_ETHERNET_GBPS, kill_wait_seconds=20)
    words = command("train", [*PAIR, *RUNS_TINY, *ENDLESS])
    following = subprocess.Popen(slurm.command_line(words, environment=HOLDING), stderr=subprocess.PIPE, text=True,
                                 stdout=subprocess.DEVNULL)
    assert following.stderr is not None
    job = ""
    for line in following.stderr:
        if "submitted job" in line:
            job = line.partition("submitted job ")[2].partition(";")[0]
        if "step 1/" in line:
            break
    slurm.run(f"scancel {job}")
    rest = following.stderr.read()
    assert following.wait(timeout=60) == 1
    folder = newest_run(slurm.shared)
    assert f"job {job} was cancelled" in rest
    assert f"train.resume={folder}" in rest
    assert "preempted" not in rest


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")


@pytest.mark.long
@pytest.mark.slurm
def test_a_preempted_job_is_queued_again_although_the_controller_is_busy_once(make_each_slurm: MakeSlurm) -> None:
    slurm = make_each_slurm(ib_nodes=1, roce_nodes=1, ethernet_gbps=SLOW_ETHERNET_GBPS)
    busy = slurm.shared / "busy" / "scontrol"
    busy.parent.mkdir()
    busy.write_text(f'#!/bin/sh\nif [ "$1" = requeue ] && mkdir {busy.parent}/asked 2>/dev/null; then\n'
                    "  echo 'slurm_requeue error: Socket timed out on send/recv operation' >&2; exit 1\nfi\n"
                    'exec /usr/bin/scontrol "$@"\n')
    busy.chmod(0o755)
    job = SubmittedJob(slurm, [*ENDLESS, f"launch.setup=['export PATH={busy.parent}:$PATH']"])
    job.wait_for_steps(2)
    slurm.run(f"scancel --signal=USR2 {job.id}")
    job.wait_for_restart(1)
    assert "Socket timed out on send/recv operation; asking again in 1 s" in job.log
    job.cancel()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def begin(run: RunFolder, name: str = "7-1-0") -> Start:
    start = Start(run, name)
    for node, ranks in (("ib-1", [0, 1]), ("roce-1", [2, 3])):
        start.write(f"node-{node}.json", {"ranks": ranks, "report": {"node": node}})
    return start


def test_a_step_is_over_a_while_after_all_its_ranks_ended(run: RunFolder) -> None:
    clock, start = Clock(), begin(run)
    guard = StepGuard(run, "7-1-", 60, clock)
    for rank in range(3):
        start.write_end(rank, "ib-1", 0)
    clock.now = 1000
    assert guard.look() is None, "a rank trains on"
    start.write_end(3, "roce-1", 0)
    assert guard.look() is None
    clock.now = 1059
    assert guard.look() is None
    clock.now = 1060
    assert (guard.look() or "").startswith("all ranks ended 60 s ago, and srun still waits")
    assert StepGuard(run, "7-2-", 0, clock).look() is None, "the ends of an earlier start are not this one's"


def test_a_step_is_over_when_the_rest_is_silent_after_a_failure(run: RunFolder) -> None:
    clock, start = Clock(), begin(run)
    guard = StepGuard(run, "7-1-", 60, clock)
    start.write_end(0, "ib-1", 1)
    assert guard.look() is None
    clock.now = SILENT_SECONDS - 1
    run.beat_path(3).write_text("1")
    assert guard.look() is None
    clock.now += SILENT_SECONDS - 1
    assert guard.look() is None
    clock.now += 2
    assert "rank 0 failed, and the others have given no sign of life" in (guard.look() or "")



def test_a_step_whose_ranks_are_all_stopped_is_ended_and_the_result_says_so(run: RunFolder) -> None:
    clock, start, said = Clock(), begin(run), list[str]()
    run.config_path.write_text("train: {timeout_seconds: 30}\n")
    guard = StepGuard(run, "7-1-", 60, clock, said.append)

    def pass_by(seconds: int, *, alive: bool) -> str | None:
        for _ in range(seconds):
            clock.now += 1
            for rank in range(4) if alive else ():
                write_beat(run, rank, Beat.of(int(clock.now), Doing(5, "F0.0.0"), 0.0))
            if (why := guard.look()) is not None:
                return why
        return None

    assert pass_by(100, alive=True) is None, "the ranks' plan is not there: they still meet"
    start.write(PUBLISHED, {"plan": "{}"})
    assert pass_by(100, alive=True) is None and not said
    why = pass_by(100, alive=False) or ""
    assert why.startswith("rank 0 on node ib-1 has given no sign of life for ") and why.endswith("srun is ended")
    assert "and so have ranks 1, 2, 3 (all ranks)" in why and "train.timeout_seconds=30" in why
    assert len(said) == 1
    assert outcome_of(run, "143") == ("failed", start.cause()) and (start.cause() or "") in why


def test_a_step_whose_ranks_die_before_they_met_is_ended(run: RunFolder) -> None:
    clock = Clock()
    run.config_path.write_text("train: {start_timeout_seconds: 30}\n")
    guard = StepGuard(run, "7-1-", 60, clock)
    assert guard.look() is None
    clock.now = NOTHING_SECONDS - 1
    assert guard.look() is None, "a container may be on its way"
    run.log_path(0).parent.mkdir(exist_ok=True)
    run.log_path(0).write_text("begun")
    assert guard.look() is None
    start = begin(run)
    clock.now += 100
    assert guard.look() is None, "what was written last is a sign"
    clock.now += 89
    assert guard.look() is None
    clock.now += 2
    why = guard.look() or ""
    assert "no sign of life for 91 s, since before all of them had met (train.start_timeout_seconds=30)" in why
    assert (start.cause() or "") in why


def test_a_step_of_which_no_rank_begins_is_ended(run: RunFolder) -> None:
    clock = Clock()
    guard = StepGuard(run, "7-1-", 60, clock)
    assert guard.look() is None
    clock.now = NOTHING_SECONDS + 1
    assert "no rank has begun within 1801 s" in (guard.look() or "")


def test_a_step_that_is_held_while_it_saves_is_ended(run: RunFolder) -> None:
    clock, start = Clock(), begin(run)
    start.write(PUBLISHED, {"plan": "{}"})
    guard = StepGuard(run, "7-1-", 60, clock)
    why = None
    while why is None and clock.now < 2000:
        clock.now += 1
        for rank in range(4):
            write_beat(run, rank, Beat.of(int(clock.now), Doing(5, "waiting for the checkpoint"), 0.0,
                                          beside="writing step-000005" if rank == 2 else "",
                                          beside_seconds=clock.now if rank == 2 else 0.0))
        why = guard.look()
    assert "rank 2 on node roce-1 has been writing step-000005 for 6" in (why or "")
    assert "train.checkpoint_timeout_seconds=600" in (why or "")
