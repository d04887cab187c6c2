"""What a run on this machine leaves behind when it ends early, and how its message says to go on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.emulation.context import ENDING_SIGNALS
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.follow.failure import FailureReport
from holmes_hpc.launch.here import run as here
from holmes_hpc.launch.here.ended import RESERVE, RunEnd, clear_and_advise, how_to_go_on, with_way_on
from holmes_hpc.launch.train import fill_in_resume
from holmes_hpc.planner import bind, plan
from holmes_hpc.runs import RunFolder, heal, read_result
from holmes_hpc.runs.files import write_json_atomic
from holmes_hpc.runs.job import process_start
from tests.checkpoint_folders import make_checkpoint


def run_folder(base: Path, name: str, *, resume: str = "auto") -> RunFolder:
    """Return the folder of a run that was saving step 3 when it was killed, and whose step 2 lacks its name."""
    folder = RunFolder.create(base, name, {"config.yaml": f"train: {{resume: {resume}}}\n"})
    (folder.path / RESERVE).write_text("....")
    torn = folder.checkpoints / ".step-000003.a.partial"
    torn.mkdir()
    (torn / "rank-0000.safetensors").write_bytes(b"1234")
    make_checkpoint(folder.checkpoints / "step-000001", 1)
    make_checkpoint(folder.checkpoints / ".step-000002.a.partial", 2)
    return folder


def test_a_run_whose_result_cannot_be_written_has_not_ended_well(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "mixed", {"config.yaml": "{}"})
    folder.result_path.mkdir()
    said, well = RunEnd(folder, emulated=False, seconds=60).write("completed", lambda: None)
    assert not well and "the run's result was not written: " in str(said) and "Is a directory" in str(said)


def names(folder: RunFolder) -> list[str]:
    return sorted([path.name for path in folder.checkpoints.iterdir()]
                  + [path.name for path in folder.path.iterdir() if path.name.startswith(".")])


LEFT = [".reserve", ".step-000002.a.partial", ".step-000003.a.partial", "step-000001"]
TIDY = ["step-000001", "step-000002"]


def error_of(folder: RunFolder) -> str:
    result = read_result(folder)
    assert result is not None
    return str(result["error"])


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_next_start_clears_dead_runs_and_no_others_and_says_how_to_go_on(
        tmp_path: Path, dead_pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    me, start = os.getpid(), process_start(os.getpid())
    jobs: dict[str, dict[str, Any]] = {
        "dead": {"main_pid": dead_pid, "main_start": 1},
        "alive": {"main_pid": me, "main_start": start},
        "elsewhere": {"main_pid": dead_pid, "main_start": 1, "host": "another-host"},
        "slurm": {"main_pid": dead_pid, "main_start": 1, "job_id": "4711"},
    }
    folders = {name: run_folder(tmp_path, name) for name in jobs}
    for name, job in jobs.items():
        write_json_atomic(folders[name].job_path, {"host": socket.gethostname(), "emulated": False, **job})
    monkeypatch.chdir(tmp_path)
    assert [folder.name for folder in heal(Path(), clear_and_advise)] == ["dead"]
    assert names(folders["dead"]) == TIDY
    assert error_of(folders["dead"]).endswith(
        "the run's processes ended with it; its newest checkpoint is that of step 2: go on after it with the same "
        f"settings and train.resume={folders['dead'].path}")
    for name in ("alive", "elsewhere", "slurm"):
        assert names(folders[name]) == LEFT, name


def test_a_dead_run_is_settled_before_its_checkpoints_are_looked_at(tmp_path: Path, dead_pid: int) -> None:
    folder = RunFolder.create(tmp_path, "dead")
    write_json_atomic(folder.job_path, {"host": socket.gethostname(), "emulated": False, "main_pid": dead_pid,
                                        "main_start": 1})
    config = compose(["+cluster=laptop", f"run.folder={tmp_path}", f"train.resume={folder.path}", "train.steps=50"])
    shapes = {info.name: info.shape for info in Architecture.from_config(config.model).parameters()}
    make_checkpoint(folder.checkpoints / ".step-000002.a.partial", 2, shapes=shapes)
    config.launch.dry_run = True
    with pytest.raises(ConfigurationError, match="no checkpoint lies there"):
        fill_in_resume(config)
    assert read_result(folder) is None, "a dry run changes nothing"
    config.launch.dry_run = False
    fill_in_resume(config)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-000002"]


def test_a_run_with_a_rank_that_still_ends_is_left_alone(tmp_path: Path, dead_pid: int) -> None:
    folder = run_folder(tmp_path, "ending")
    rank = subprocess.Popen([sys.executable, "-c", "open('/proc/self/comm', 'w').write('rank3 roce-1'); print(flush=1);"
                             "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    job = {"host": socket.gethostname(), "emulated": False, "main_pid": dead_pid, "main_start": 1}
    try:
        assert rank.stdout is not None
        rank.stdout.readline()
        write_json_atomic(folder.job_path, {**job, "ranks": [{"rank": 3, "node": "roce-1", "pid": rank.pid}]})
        assert heal(tmp_path, clear_and_advise) == []
        assert names(folder) == LEFT
        write_json_atomic(folder.job_path, {**job, "ranks": [{"rank": 2, "node": "roce-0", "pid": rank.pid}]})
        assert heal(tmp_path, clear_and_advise) == [folder], "the pid is another process's by now"
    finally:
        rank.communicate()


@pytest.mark.parametrize(("resume", "begins"), [
    ("auto", "so a new start begins anew at step 1"),
    ("/data/old", "so a new start begins once more after the checkpoint of train.resume=/data/old"),
])
def test_without_a_whole_checkpoint_it_is_said_where_the_run_begins(tmp_path: Path, resume: str, begins: str) -> None:
    folder = RunFolder.create(tmp_path, "new", {"config.yaml": f"train: {{resume: {resume}}}\n"})
    (folder.checkpoints / "step-000004").mkdir()
    assert clear_and_advise(folder) == f"its folder holds no complete checkpoint, {begins}"


def test_nothing_is_said_where_nothing_was_done_or_all_was_saved(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "new")
    assert with_way_on(folder, "no memory") == "no memory"
    folder.append_metrics({"step": 1, "loss": 2.0})
    assert with_way_on(folder, "no memory") == (
        "no memory; its folder holds no complete checkpoint, so a new start begins anew at step 1")
    last = make_checkpoint(folder.checkpoints / "step-000008", 8, {"settings": {"train.steps": 8}})
    assert how_to_go_on(folder) == f"its last step is done and saved: {last}"


class _World:
    """A world whose ranks save, and end by themselves with status 1, or are killed."""

    def __init__(self, folder: RunFolder, *, interrupted: bool) -> None:
        self._folder, self._interrupted, self.ended_by = folder, interrupted, ""
        self.init_pid = self.mid_pid = os.getpid()

    def poll(self) -> int:
        if self._interrupted:
            os.kill(os.getpid(), signal.SIGTERM)
        return 1

    def events(self, timeout_seconds: float) -> list[dict[str, Any]]:
        return []

    def kill(self) -> None:
        assert names(self._folder) == LEFT, "cleared away while ranks lived"


@pytest.fixture
def handlers() -> Iterator[None]:
    """What an interruption leaves as it is until the process ends is put back."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("interrupted", "status", "said"), [
    (False, 1, "rank 3 is gone"), (True, 130, "interrupted by SIGTERM")])
def test_the_command_clears_away_what_its_ranks_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     interrupted: bool, status: int, said: str) -> None:
    folder = run_folder(tmp_path, "laptop")
    monkeypatch.setattr(here, "start_world", lambda network, body: _World(folder, interrupted=interrupted))
    monkeypatch.setattr(FailureReport, "message", lambda self: "rank 3 is gone")
    config = compose(["+cluster=laptop", f"run.folder={tmp_path}"])
    chosen = plan(config, mode="local")
    bound = bind(chosen, {place.slot: place.slot.replace("/", "-") for place in chosen.ranks})
    assert here.run_here(bound, config, read_cluster(config.cluster), folder, "local") == status
    assert names(folder) == TIDY
    assert error_of(folder) == (f"{said}; its newest checkpoint is that of step 2: go on after it with the same "
                                f"settings and train.resume={folder.path}")
