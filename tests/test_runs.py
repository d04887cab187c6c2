"""The run folder: what is written, what a reader sees, what is healed, and what a full disk says."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holmes_hpc.errors import ConfigurationError, RunFailedError
from holmes_hpc.runs import (
    MetricsWriter,
    RunFolder,
    heal,
    read_json_lines,
    read_metrics,
    read_result,
    write_job,
    write_result,
)
from holmes_hpc.runs.files import storage_error, write_json_atomic
from holmes_hpc.runs.job import git_state, process_start

ROOT = Path(__file__).parent.parent


def test_a_new_folder_is_named_by_time_and_holds_its_parts(tmp_path):
    folder = RunFolder.create(tmp_path / "deep" / "runs", "mixed")
    assert folder.path.parent == tmp_path / "deep" / "runs" / "mixed"
    assert re.fullmatch(r"\d{8}-\d{6}-[a-z0-9]{4}", folder.id)
    assert sorted(path.name for path in folder.path.iterdir()) == ["checkpoints", "logs", "ranks"]
    assert folder.timeline_path(3) == folder.path / "ranks" / "rank-3.jsonl"
    assert folder.log_path(0).parent.is_dir()
    assert RunFolder.open(folder.path) == folder
    assert len({RunFolder.create(tmp_path, "mixed").id for _ in range(20)}) == 20


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_a_name_that_is_no_folder_name_is_refused(tmp_path, name):
    with pytest.raises(ConfigurationError, match="run.name"):
        RunFolder.create(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_a_configuration_error(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigurationError, match=r"runs.*run\.folder"):
        RunFolder.create(tmp_path / "runs", "mixed")


def test_a_folder_without_permission_is_a_configuration_error(tmp_path):
    if os.geteuid() == 0:
        base = Path("/proc/self/runs")  # where even root may not make a folder
    else:
        base = tmp_path / "locked"
        base.mkdir(mode=0o500)
    with pytest.raises(ConfigurationError, match=r"cannot be written.*run\.folder"):
        RunFolder.create(base, "mixed")


def test_opening_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="does not exist"):
        RunFolder.open(tmp_path / "missing")
    with pytest.raises(ConfigurationError, match=r"config\.yaml"):
        RunFolder.open(tmp_path)


def test_a_full_disk_fails_the_run_and_a_read_only_one_is_a_setting():
    full = storage_error(Path("x"), OSError(errno.ENOSPC, "No space left on device"))
    quota = storage_error(Path("x"), OSError(errno.EDQUOT, "Disk quota exceeded"))
    assert isinstance(full, RunFailedError)
    assert isinstance(quota, RunFailedError)
    assert full.exit_status == 1
    assert "full" in str(full)
    for number in (errno.EACCES, errno.EROFS):
        assert storage_error(Path("x"), OSError(number, os.strerror(number))).exit_status == 2


def test_a_full_disk_under_metrics_is_reported(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunFailedError, match=r"metrics\.jsonl.*full.*free space"):
        RunFolder(tmp_path).append_metrics({"step": 1})


@pytest.mark.emulated
def test_a_small_file_system_fills_up_without_a_half_file():
    program = """
import sys
from pathlib import Path
from holmes_hpc.errors import RunFailedError
from holmes_hpc.runs.files import write_json_atomic
path = Path(sys.argv[1], "result.json")
write_json_atomic(path, {"old": 1})
try:
    write_json_atomic(path, ["x" * 100] * 10_000)
except RunFailedError as error:
    print(sorted(p.name for p in path.parent.iterdir()), path.read_text().split(), error)
"""
    mount = 'mount -t tmpfs -o size=64k tmpfs /mnt && exec "$@"'
    within = ["unshare", "-Urm", "sh", "-c", mount, "sh"]
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no small file system can be mounted here")
    command = [*within, sys.executable, "-c", program, "/mnt"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("""['result.json'] ['{', '"old":', '1', '}'] /mnt/result.json cannot be""")


def test_json_keeps_to_json(tmp_path):
    write_json_atomic(tmp_path / "a.json", {"loss": float("nan"), "rows": [(1.5, float("inf"))], "path": "ü"})
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"loss": None, "rows": [[1.5, None]], "path": "ü"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "plan.json"
    write_json_atomic(path, [0] * 5000)
    pid = os.fork()
    if pid == 0:
        for value in range(200):
            write_json_atomic(path, [value] * 5000)
        os._exit(0)
    looks = 0
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        values = json.loads(path.read_text())
        assert len(values) == 5000
        assert len(set(values)) == 1
        looks += 1
    assert looks > 0 and os.waitstatus_to_exitcode(ended[1]) == 0


def test_metrics_survive_a_torn_line(tmp_path):
    folder = RunFolder(tmp_path)
    assert read_metrics(folder) == []
    with MetricsWriter(folder.metrics_path) as writer:
        writer.write({"step": 1, "loss": float("nan")})
    with folder.metrics_path.open("a") as stream:
        stream.write('{"step": 2, "lo')
    assert read_metrics(folder) == [{"step": 1, "loss": None}]
    folder.append_metrics({"step": 2})
    assert read_metrics(folder) == [{"step": 1, "loss": None}, {"step": 2}]


def test_lines_of_several_writers_stay_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    pids = []
    for letter in "abc":
        pid = os.fork()
        if pid == 0:
            with MetricsWriter(path) as writer:
                for _ in range(100):
                    writer.write({"text": letter * 5000})
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    assert sorted(record["text"][0] for record in read_json_lines(path)) == sorted("abc" * 100)


def test_job_json_says_who_runs_what(tmp_path):
    folder = RunFolder.create(tmp_path, "mixed")
    write_job(folder, [(0, "ib-0", None)], command=["holmes", "train"], restarts=1)
    write_job(folder, [(0, "ib-0", 4711)])
    job = json.loads(folder.job_path.read_text())
    assert job["ranks"] == [{"rank": 0, "node": "ib-0", "pid": 4711}]
    assert (job["job_id"], job["components"], job["restarts"]) == (None, [], 1)
    assert (job["main_pid"], job["host"]) == (os.getpid(), socket.gethostname())
    assert job["command"] == ["holmes", "train"]
    assert job["main_start"] == int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    assert set(job["versions"]) >= {"holmes_hpc", "python", "kernel", "omegaconf"}
    assert "PATH" not in folder.job_path.read_text()


def test_git_state_names_commit_and_changes(tmp_path):
    assert git_state(tmp_path) is None

    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@x", "-C", str(tmp_path), *arguments],
                       check=True, capture_output=True)

    git("init", "-b", "trunk")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "one")
    state = git_state(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{40}", state["commit"])
    assert (state["branch"], state["changed"]) == ("trunk", False)
    (tmp_path / "file").write_text("2")
    assert git_state(tmp_path)["changed"]


def test_a54_a_result_is_drawn_from_the_metrics(tmp_path):
    folder = RunFolder(tmp_path)
    assert read_result(folder) is None
    # Steps 1 to 3 warm up; step 5 was done again after a resume.
    for step, speed in ((1, 1.0), (2, 2.0), (3, 3.0), (4, 100.0), (5, 7.0), (5, 300.0), (6, 200.0)):
        folder.append_metrics({"step": step, "tokens_per_second": speed, "loss": 6.0 - step / 2})
    write_result(folder, "completed", error=None, emulated=True)
    assert read_result(folder) == {"status": "completed", "steps": 6, "tokens_per_second_median": 200.0,
                                   "final_loss": 3.0, "error": None, "emulated": True}
    with pytest.raises(ValueError, match="completed, preempted, failed"):
        write_result(folder, "done", error=None, emulated=True)


def _job_of_another_process(folder, then):
    """Let a process write job.json and end (`then` "end"), be a zombie, or live on; return it."""
    program = ("import sys, time; from pathlib import Path; from holmes_hpc.runs import RunFolder, write_job;"
               f"write_job(RunFolder(Path({str(folder.path)!r})), emulated=True); "
               f"time.sleep({60 if then == 'live' else 0})")
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    if then == "end":
        process.wait()
    deadline = time.monotonic() + 20
    while not folder.job_path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    if then == "zombie":
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process


def _change(path, **fields):
    write_json_atomic(path, json.loads(path.read_text()) | fields)


def test_heal_ends_a_dead_run_and_no_other(tmp_path):
    names = ("dead", "zombie", "reused", "alive", "elsewhere", "slurm", "finished", "broken")
    folders = {name: RunFolder.create(tmp_path, name) for name in names}
    dead = _job_of_another_process(folders["dead"], "end")
    folders["dead"].append_metrics({"step": 7, "loss": 2.5, "tokens_per_second": 10.0})
    zombie = _job_of_another_process(folders["zombie"], "zombie")
    alive = _job_of_another_process(folders["alive"], "live")
    try:
        for name in ("reused", "elsewhere", "slurm", "finished"):
            folders[name].job_path.write_bytes(folders["dead"].job_path.read_bytes())
        # The pid was given to another process since: this one.
        _change(folders["reused"].job_path, main_pid=os.getpid(), main_start=process_start(os.getpid()) - 1)
        _change(folders["elsewhere"].job_path, host="another-host")
        _change(folders["slurm"].job_path, job_id="4711")
        write_result(folders["finished"], "completed", error=None, emulated=False)
        folders["broken"].job_path.write_text("{")

        assert [folder.name for folder in heal(tmp_path)] == ["dead", "reused", "zombie"]
        result = read_result(folders["dead"])
        assert (result["status"], result["steps"], result["final_loss"]) == ("failed", 7, 2.5)
        assert result["emulated"] is True
        assert f"pid {dead.pid} on {socket.gethostname()}" in result["error"]
        assert read_result(folders["finished"])["status"] == "completed"
        assert [name for name in names if read_result(folders[name]) is None] == [
            "alive", "elsewhere", "slurm", "broken"]
        assert heal(tmp_path) == []
        alive.send_signal(signal.SIGKILL)
        alive.wait()
        assert [folder.name for folder in heal(tmp_path)] == ["alive"]
    finally:
        alive.kill()
        alive.wait()
        zombie.wait()


def test_heal_of_a_place_without_runs_does_nothing(tmp_path):
    assert heal(tmp_path / "missing") == []


def test_the_environment_is_recorded_without_secrets(tmp_path):
    told = {"SLURM_JOB_ID": "7", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1", "PYTHONPATH": "/opt/lib"}
    kept_back = {"SLURM_JWT": "s3cret", "AWS_SECRET_ACCESS_KEY": "s3cret", "WANDB_API_KEY": "s3cret", "HOME": "/home/x",
                 "HYDRA_TOKEN": "s3cret", "TORCH_HUB_PASSWORD": "s3cret", "MAIL": "s3cret"}
    command = ["train", "launch.setup=[export WANDB_API_KEY=s3cret, module load cuda]", "data.tokenizer=t.json",
               "+x.token='s3cret'", "optimizer.lr=0.1", "url=https://me:s3cret@host/x"]
    write_job(RunFolder(tmp_path), command=command, environment={**told, **kept_back})
    text = (tmp_path / "job.json").read_text()
    assert "s3cret" not in text
    job = json.loads(text)
    assert job["environment"] == told
    assert job["command"] == ["train", "launch.setup=[export WANDB_API_KEY=***, module load cuda]",
                              "data.tokenizer=t.json", "+x.token=***", "optimizer.lr=0.1", "url=https://***@host/x"]


def test_a_run_that_goes_on_forgets_its_last_attempt_but_not_its_steps(tmp_path):
    folder = RunFolder.create(tmp_path, "mixed")
    for path in (folder.rendezvous_path, folder.result_path, folder.rank_error_path(3), folder.metrics_path,
                 folder.timeline_path(3)):
        path.write_text("{}")
    folder.forget_attempt()
    assert [p.exists() for p in (folder.rendezvous_path, folder.result_path, folder.rank_error_path(3))] == [False] * 3
    assert folder.metrics_path.exists()
    assert folder.timeline_path(3).exists()
