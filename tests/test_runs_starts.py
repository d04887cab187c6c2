"""How a job's ranks ended, who is blamed, and what its batch script does about it (with a `scontrol` of the test's)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holmes_hpc.cluster.slurm import read_step
from holmes_hpc.errors import HangError
from holmes_hpc.launch.rank.settings import RankSettings
from holmes_hpc.launch.rank.watching import report_error
from holmes_hpc.launch.slurm.rank import be_rank
from holmes_hpc.launch.slurm.stopping import Stopping
from holmes_hpc.runs import RunFolder, Start, read_result, update_job, write_result
from holmes_hpc.submit import patience
from holmes_hpc.submit.outcome import MOST_FRUITLESS_STARTS
from holmes_hpc.submit.outcome import main as outcome
from tests.runs_for_tests import environment

RANKS = {"ib-1": [0, 1], "roce-1": [2, 3]}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "mixed")


def begin(run: RunFolder, name: str = "7-0-0") -> Start:
    start = Start(run, name)
    for node, ranks in RANKS.items():
        start.write(f"node-{node}.json", {"ranks": ranks, "report": {"node": node}})
    return start


def end(start: Start, statuses: dict[int, int], told: tuple[int, ...] = ()) -> None:
    for rank, status in statuses.items():
        node = next(node for node, ranks in RANKS.items() if rank in ranks)
        start.write_end(rank, node, status, told="SIGTERM" if rank in told else None)


def fail(run: RunFolder, rank: int, kind: str, message: str, ours: bool = True) -> None:
    run.write_json(run.rank_error_path(rank), {"type": kind, "message": message, "ours": ours})


def test_a_silent_rank_is_the_cause_before_any_error(run: RunFolder) -> None:
    start = begin(run)
    for rank in (0, 1, 3):
        fail(run, rank, "NetworkError", "the group broke")
    end(start, {0: 1, 1: 1, 3: 1})
    assert "rank 2 on node roce-1 was ended by SIGKILL" in (start.cause() or "")
    assert str(run.log_path(2)) in (start.cause() or "")
    assert start.failed_nodes() == []


def test_a_silent_node_is_told_from_a_silent_rank(run: RunFolder) -> None:
    start = begin(run)
    end(start, {0: 1, 1: 1})
    assert start.failed_nodes() == ["roce-1"]
    assert "all ranks of node roce-1 were killed without a word" in (start.cause() or "")


def test_ones_own_error_comes_before_a_lost_neighbour_and_before_the_told(run: RunFolder) -> None:
    start = begin(run)
    fail(run, 0, "NetworkError", "the group broke")
    fail(run, 3, "DataError", "other tokens")
    end(start, {0: 1})
    end(start, {1: 1, 2: 1, 3: 2}, told=(1,))
    assert (start.cause() or "").startswith("other tokens [rank 3 on node roce-1; log: ")
    assert start.anyone_failed()


def test_the_cause_is_found_by_kinds_of_errors_and_not_by_the_clocks_of_nodes(run: RunFolder) -> None:
    start = begin(run)
    fail(run, 0, "NetworkError", "the group broke")
    fail(run, 1, "RuntimeError", "connection closed by peer", ours=False)
    fail(run, 2, "ValueError", "bad sample", ours=False)
    fail(run, 3, "ValueError", "bad sample too", ours=False)
    for rank in range(4):  # roce-1's clock is an hour ahead, so what came first there seems to be the last
        start.write(f"ended-{rank}.json", {"rank": rank, "node": "ib-1" if rank < 2 else "roce-1", "status": 1,
                                           "told": None, "time": 1000.0 + 3600 * (rank >= 2)})
    assert (start.cause() or "").startswith("ValueError: bad sample [rank 2 on node roce-1; log: ")
    run.rank_error_path(2).unlink()
    run.rank_error_path(3).unlink()
    for rank in (2, 3):
        start.write_end(rank, "roce-1", 143, told="SIGTERM")
    assert (start.cause() or "").startswith("RuntimeError: connection closed by peer [rank 1 on node ib-1; log: ")


def test_a_run_folder_that_was_removed_under_its_run_is_said_to_be(run: RunFolder) -> None:
    begin(run)
    shutil.rmtree(run.path)
    start = begin(run)
    start.write_end(0, "ib-1", 1, told=None)  # the ranks find the folder's place, and make what they write there
    assert f"the files of the run folder {run.path} were removed" in (start.cause() or "")


def test_the_newest_start_is_the_one_with_the_highest_numbers(run: RunFolder) -> None:
    for name in ("12_3-10-0", "12_3-9-0", "12_3-2-0"):  # whatever the clock of the node that made it
        Start(run, name).write("start.json", {})
    assert Start.newest(run) == Start(run, "12_3-10-0")
    assert [start.name for start in Start.all(run)] == ["12_3-2-0", "12_3-9-0", "12_3-10-0"]


def test_a_failed_run_names_the_way_on_where_something_was_saved(run: RunFolder, tmp_path: Path,
                                                               in_job: pytest.MonkeyPatch) -> None:
    begin(run)
    end(Start(run, "7-0-0"), dict.fromkeys(range(3), 1))
    assert settle(run, tmp_path, in_job, jobs=RUNNING)[0] == 1
    assert "train.resume" not in (read_result(run) or {})["error"], "nothing was saved"
    run.result_path.unlink()
    for name in ("step-000004", "step-000012", ".step-000020.abc.partial"):
        (run.checkpoints / name).mkdir()
    assert settle(run, tmp_path, in_job, jobs=RUNNING)[0] == 1
    assert f"that of step 12: go on after it with the same settings and train.resume={run.path}" in (
        read_result(run) or {})["error"]


@pytest.mark.parametrize(("log", "said"), [
    ("slurmstepd-ib-1: error: execve(): /no/python: No such file or directory\nsrun: error: ib-1: task 0: Exited",
     "cannot start the ranks' Python /no/python (No such file or directory): set launch.python"),
    ("slurmstepd: error: execve(): apptainer: No such file or directory", "load it by launch.setup"),
    ("/var/spool/slurm/job00012/slurm_script: line 24: /home/a/venv/bin/python: No such file or directory",
     "cannot start the Python /home/a/venv/bin/python that submitted this job"),
    ("/usr/bin/python: Error while finding module specification for 'holmes_hpc.launch.step' (ModuleNotFoundError: No "
     "module named 'holmes_hpc')", "does not find holmes_hpc: set launch.python"),
    ("srun: error: Unable to create step for job 12: Memory required by task is not available",
     "srun could not start the ranks: Memory required by task is not available"),
    ("srun: unrecognized option '--nonsense'", "correct launch.srun_args"),
    ("node n1 does not see the run folder /dev/shm/x: choose a place", "node n1 does not see the run folder"),
    ("something else", "(srun's status: 1); "),
])
def test_why_ranks_never_started_is_read_from_the_log(run: RunFolder, tmp_path: Path, in_job: pytest.MonkeyPatch,
                                                      log: str, said: str) -> None:
    earlier = "execve(): /old/python: No such file or directory\nholmes_hpc: srun ended with 2; failed: x\n"
    (run.logs / "batch.log").write_text(f"{earlier}{log}\n")
    assert settle(run, tmp_path, in_job, jobs=RUNNING)[0] == 1
    error = (read_result(run) or {})["error"]
    assert said in error
    assert ("ends with" in error) == (log == "something else")


def test_a_hang_that_others_saw_comes_before_the_silence_of_the_hung(run: RunFolder) -> None:
    start = begin(run)
    fail(run, 0, "HangError", "rank 3 hangs")
    end(start, {1: 1})  # rank 0 ended without a mark, rank 2 and 3 were killed
    assert start.cause() == "rank 3 hangs"
    assert start.failed_nodes() == ["roce-1"]


def test_ranks_that_saved_are_no_failure(run: RunFolder) -> None:
    start = begin(run)
    end(start, dict.fromkeys(range(4), 3))
    assert start.cause() is None
    assert not start.anyone_failed()


def test_newest_start_counts_and_files_of_others_are_not_seen(run: RunFolder) -> None:
    old = begin(run, "7-0-0")
    old.write("start.json", {"plan": "old"})
    new = Start(run, "7-1-0")
    assert new.read("start.json") is None
    time.sleep(0.02)
    new.write("node-ib-1.json", {"ranks": [0], "report": {"node": "ib-1"}})
    assert Start.newest(run) == new
    assert new.rendezvous_path != old.rendezvous_path


def test_job_json_keeps_what_the_submitter_wrote(run: RunFolder) -> None:
    run.write_json(run.job_path, {"job_id": "7", "components": [1], "restarts": 0, "ranks": [], "main_pid": 5})
    update_job(run, [(0, "ib-1", 123)], restarts=2, job_id="7")
    job = json.loads(run.job_path.read_text())
    assert (job["restarts"], job["main_pid"], job["components"]) == (2, 5, [1])
    assert job["ranks"] == [{"rank": 0, "node": "ib-1", "pid": 123}]


SCONTROL = """\
#!/bin/sh
echo "$*" >> {log}
case "$1 $2" in
"show job") cat {jobs} ;;
"show node") cat {nodes} ;;
"requeue "*) left=$(cat {busy}); [ $left = 0 ] && exit {status}; echo $((left - 1)) > {busy}
  echo "slurm_requeue error: Socket timed out on send/recv operation" >&2; exit 1 ;;
esac
"""


def settle(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, jobs: str = "", nodes: str = "",
           status: int = 0, arguments: tuple[str, ...] = ("--requeue",), busy: int = 0) -> tuple[int, list[str]]:
    """Run what the batch script runs; return its status and the calls of scontrol, which is busy for some of them."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "jobs").write_text(jobs)
    (folder / "nodes").write_text(nodes)
    (folder / "calls").write_text("")
    (folder / "scontrol").write_text(SCONTROL.format(log=folder / "calls", jobs=folder / "jobs",
                                                     nodes=folder / "nodes", status=status, busy=folder / "busy"))
    (folder / "busy").write_text(f"{busy}\n")
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ended = outcome([str(run.path), "1", *arguments])
    finally:
        signal.signal(signal.SIGTERM, handler)
    return ended, (folder / "calls").read_text().splitlines()


@pytest.fixture
def in_job(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith("SLURM_"):
            monkeypatch.delenv(name)
    for name, value in {"SLURM_JOB_ID": "1234", "SLURM_JOB_NODELIST": "ib-1", "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


HET = """\
JobId=1234 HetJobId=1234 HetJobOffset=0 JobState={leader} NodeList=ib-1 ExcNodeList=ib-9
JobId=1235 HetJobId=1234 HetJobOffset=1 JobState={other} NodeList=roce-[1-2] ExcNodeList=(null)
"""
RUNNING = HET.format(leader="RUNNING", other="RUNNING")


def test_a_preempted_job_is_requeued_as_a_whole(run: RunFolder, tmp_path: Path, in_job: pytest.MonkeyPatch) -> None:
    write_result(run, "preempted", error="saved", emulated=False)
    assert settle(run, tmp_path, in_job, jobs=RUNNING) == (3, ["show job 1234", "requeue 1234"])
    assert "job 1234 is queued again" in (read_result(run) or {})["error"]


def test_a5_an_array_task_requeues_itself_alone(run: RunFolder, tmp_path: Path, in_job: pytest.MonkeyPatch) -> None:
    in_job.setenv("SLURM_ARRAY_JOB_ID", "1234")
    in_job.setenv("SLURM_ARRAY_TASK_ID", "1")
    write_result(run, "preempted", error="saved", emulated=False)
    assert settle(run, tmp_path, in_job)[1] == ["show job 1234_1", "requeue 1234_1"]


def test_unfit_nodes_are_excluded_in_their_component_beside_those_of_before(
        run: RunFolder, tmp_path: Path, in_job: pytest.MonkeyPatch) -> None:
    start = begin(run)
    start.write("exclude.json", {"nodes": ["roce-2"]})
    run.write_json(run.excluded_path, ["ib-9"])
    write_result(run, "preempted", error="unfit", emulated=False)
    _, calls = settle(run, tmp_path, in_job, jobs=RUNNING)
    assert calls[1:] == ["requeue 1234", "update JobId=1234+1 ExcNodeList=ib-9,roce-2"]
    assert json.loads(run.excluded_path.read_text()) == ["ib-9", "roce-2"]


def suspend(run: RunFolder) -> None:
    """Leave what ranks do that stood still for longer than the timeout, one of which blames another."""
    start = begin(run)
    for rank in (0, 1):
        error = HangError(f"rank {rank} stood still for 900.0 s: its job was suspended")
        error.of_suspension = rank == 1
        report_error(cast(RankSettings, SimpleNamespace(folder=run, rank=rank, tell=lambda report: None,
                                                        spare=SimpleNamespace(release=lambda: None))), error)
    end(start, dict.fromkeys((rank for ranks in RANKS.values() for rank in ranks), 1))


def test_a_job_that_was_suspended_for_too_long_is_queued_again(run: RunFolder, tmp_path: Path,
                                                                in_job: pytest.MonkeyPatch) -> None:
    suspend(run)
    assert settle(run, tmp_path, in_job, jobs=RUNNING) == (3, ["show job 1234", "requeue 1234"])
    said = (read_result(run) or {})["error"]
    assert said.startswith("rank 1 stood still") and "job 1234 is queued again" in said


def test_a_job_that_was_suspended_stays_failed_where_requeuing_is_off_or_it_was_not_the_cause(
        run: RunFolder, tmp_path: Path, in_job: pytest.MonkeyPatch) -> None:
    suspend(run)
    assert settle(run, tmp_path, in_job, jobs=RUNNING, arguments=()) == (1, [])
    fail(run, 0, "ValueError", "a fault of its own", ours=False)
    ended, calls = settle(run, tmp_path, in_job, jobs=RUNNING)
    assert ended == 1 and "requeue 1234" not in calls
    assert "a fault of its own" in (read_result(run) or {})["error"]


def test_a1_where_requeue_fails_the_way_on_is_said(run: RunFolder, tmp_path: Path, in_job: pytest.MonkeyPatch) -> None:
    write_result(run, "preempted", error="saved", emulated=False)
    assert settle(run, tmp_path, in_job, jobs=RUNNING, status=1)[0] == 3
    assert f"train.resume={run.path}" in (read_result(run) or {})["error"]
    write_result(run, "preempted", error="saved", emulated=False)
    assert settle(run, tmp_path, in_job, arguments=())[1] == []
    assert "launch.requeue=false" in (read_result(run) or {})["error"]


def test_a_controller_that_is_busy_is_asked_again_to_requeue(
        run: RunFolder, tmp_path: Path, in_job: pytest.MonkeyPatch) -> None:
    in_job.setattr(patience, "FIRST_WAIT_SECONDS", 0.01)
    write_result(run, "preempted", error="saved", emulated=False)
    calls = settle(run, tmp_path, in_job, jobs=RUNNING, busy=2)[1]
    assert [call for call in calls if call.startswith("requeue")] == ["requeue 1234"] * 3
    assert "job 1234 is queued again" in (read_result(run) or {})["error"]


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING"])
def test_a_cancelled_component_is_no_preemption(run: RunFolder, tmp_path: Path, in_job: pytest.MonkeyPatch,
                                                state: str) -> None:
    write_result(run, "preempted", error="saved", emulated=False)
    status, calls = settle(run, tmp_path, in_job, jobs=HET.format(leader="RUNNING", other=state))
    assert (status, calls) == (1, ["show job 1234"])
    assert "1234+1 was cancelled" in (read_result(run) or {})["error"]


def test_a56_a_failed_node_is_left_out_though_slurm_has_not_requeued_yet(
        run: RunFolder, tmp_path: Path, in_job: pytest.MonkeyPatch) -> None:
    end(begin(run), {0: 1, 1: 1})
    down = "NodeName=roce-1 State=DOWN*+CLOUD Partitions=roce\n"
    status, calls = settle(run, tmp_path, in_job, jobs=RUNNING, nodes=down)
    assert status == 3
    assert calls[-2:] == ["requeue 1234", "update JobId=1234+1 ExcNodeList=roce-1"]
    run.result_path.unlink()
    status, calls = settle(run, tmp_path, in_job, jobs=RUNNING, nodes=down.replace("DOWN*+CLOUD", "ALLOCATED"))
    assert status == 1
    assert not [call for call in calls if call.startswith("requeue")]


def test_a_job_that_slurm_requeued_has_not_failed(run: RunFolder, tmp_path: Path, in_job: pytest.MonkeyPatch) -> None:
    end(begin(run), {0: 1, 1: 1})
    pending = HET.format(leader="PENDING", other="PENDING")
    assert settle(run, tmp_path, in_job, jobs=pending)[0] == 3
    assert (read_result(run) or {})["status"] == "preempted"


def test_starts_without_a_step_come_to_an_end(run: RunFolder, tmp_path: Path, in_job: pytest.MonkeyPatch) -> None:
    for number in range(MOST_FRUITLESS_STARTS):
        begin(run, f"1234-{number}-0")
        write_result(run, "preempted", error="told", emulated=False)
        status, _ = settle(run, tmp_path, in_job, jobs=RUNNING)
        assert status == (1 if number == MOST_FRUITLESS_STARTS - 1 else 3)
        time.sleep(0.02)
    assert "time_limit" in (read_result(run) or {})["error"]


STOPPING = """\
import os, sys, time
from holmes_hpc.cluster.slurm import read_step
from holmes_hpc.launch.slurm.rank import be_rank
from holmes_hpc.launch.slurm.stopping import Stopping, block_signals
block_signals()
time.sleep(0.5)
stopping = Stopping("USR2", lambda: os.path.exists(sys.argv[1]), lambda name: print("left by", name, flush=True))
if sys.argv[2] == "training":
    stopping.requested()
print("ready", flush=True)
while not stopping.requested() if sys.argv[2] == "training" else True:
    time.sleep(0.01)
print("told by", stopping.told, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("phase", "number", "said", "status"), [
    ("training", signal.SIGUSR2, "told by SIGUSR2", None),
    ("training", signal.SIGTERM, "told by SIGTERM", None),
    ("starting", signal.SIGTERM, "left by SIGTERM", 143),
])
def test_signals_are_taken_from_the_first_line_on(tmp_path: Path, phase: str, number: int, said: str,
                                                  status: int | None) -> None:
    hopeless = tmp_path / "hopeless"
    process = subprocess.Popen([sys.executable, "-c", STOPPING, str(hopeless), phase], text=True, env=environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        if number == signal.SIGTERM:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
        else:
            while int(next(line.split()[1] for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
                           if line.startswith("SigBlk:")), 16) == 0:
                time.sleep(0.01)
            process.send_signal(number)  # before anything waits for it
            assert process.stdout.readline() == "ready\n"
        assert process.stdout.readline() == f"{said}\n"
        if status is None and number == signal.SIGTERM:
            hopeless.touch()  # a rank failed: no step will be finished
            assert process.stdout.readline() == "left by SIGTERM\n"
            status = 143
        if status is not None:
            assert process.wait(timeout=10) == status
    finally:
        process.kill()
        process.wait()


def test_the_signals_name_is_a_signal() -> None:
    with pytest.raises(KeyError):
        Stopping("NONE", bool, lambda name: None)


def test_a_completed_run_is_not_trained_again_where_slurm_requeues_its_job(
        run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    run.write_text(run.config_path, "train: {}\n")
    write_result(run, "completed", error=None, emulated=False)
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_JOB_NODELIST": "n1", "SLURM_STEP_NODELIST": "n1",
            "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
            "SLURMD_NODENAME": "n1", "SLURM_GTIDS": "0", "SLURM_RESTART_COUNT": "2"}
    before = run.result_path.read_text()
    assert be_rank(run, read_step(step), supervised=True) == 0
    assert "nothing is left to do" in capsys.readouterr().err
    assert run.result_path.read_text() == before
    assert Start.newest(run) is None
    assert outcome([str(run.path), "0", "--requeue"]) == 0
