"""What a kill leaves: an ended run that says who died, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holmes_hpc.runs.beats import read_beat
from tests.runs_for_tests import command, environment, newest_run, train
from tests.runs_for_tests import run as start

pytestmark = pytest.mark.emulated

LONG = ["+cluster=mixed", "parallel=holmes", "train.steps=100000", "train.validate_every=0", "model.num_layers=2",
        "model.hidden_size=32", "model.num_heads=2", "model.sequence_length=32", "train.global_batch_size=8",
        "parallel.micro_batch_size=1", "cluster.partitions.ib.gpus_per_node=1",
        "cluster.partitions.roce.gpus_per_node=1"]
"""A run of four ranks, each on a node of its own."""
END_SECONDS = 120  # on a busy machine; on an idle one all of these runs end within seconds


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


class Running:
    """A run in progress; `pids` are its ranks' as seen from outside."""

    def __init__(self, cwd: Path, overrides: list[str]) -> None:
        self.cwd = cwd
        self.process = subprocess.Popen(command("train", overrides), cwd=cwd, env=environment(), text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        wait_for(lambda: self._steps() >= 3 or self.process.poll() is not None, 60, "three steps")
        assert self.process.poll() is None, self.process.stderr.read()
        self.folder = newest_run(cwd)
        self.ranks = json.loads((self.folder / "job.json").read_text())["ranks"]
        self.pids = [entry["pid"] for entry in self.ranks]
        wait_for(self._are_known_to_train, 20, "signs of life in the training")  # until then the start's limit holds
        self.namespaces = {namespace_of(pid) for pid in self.pids}

    def _are_known_to_train(self) -> bool:
        beats = [read_beat(path) for path in self.folder.glob("ranks/*.beat")]
        return len(beats) == len(self.ranks) and all(beat is not None and beat.step > 0 for beat in beats)

    def _steps(self) -> int:
        folder = newest_run(self.cwd)
        path = folder / "metrics.jsonl" if folder else None
        return len(path.read_text().splitlines()) if path and path.exists() else 0

    def finish(self) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=END_SECONDS)
        return self.process.returncode, stderr


def namespace_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def alive_namespaces() -> set[str]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(namespace_of(int(entry.name)))
            except OSError:
                continue
    return found


def nothing_left(run: Running) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in run.pids)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    run = Running(tmp_path, LONG)
    yield run
    if run.process.poll() is None:
        run.process.kill()
        run.process.communicate()


def test_killed_rank_ends_the_run_and_is_named(running: Running) -> None:
    victim = next(entry for entry in running.ranks if entry["rank"] == 3)
    os.kill(victim["pid"], signal.SIGKILL)
    status, stderr = running.finish()
    assert status == 1
    assert f"rank 3 on node {victim['node']}" in stderr
    assert "Traceback" not in stderr
    result = json.loads((running.folder / "result.json").read_text())
    assert result["status"] == "failed"
    assert f"rank 3 on node {victim['node']}" in result["error"]
    assert result["steps"] >= 3
    wait_for(lambda: nothing_left(running), 5, "all ranks gone")
    assert not (running.namespaces - {namespace_of(os.getpid())}) & alive_namespaces()


def test_killed_command_leaves_nothing_and_the_next_start_says_so(running: Running) -> None:
    running.process.kill()
    running.process.wait(timeout=END_SECONDS)
    wait_for(lambda: nothing_left(running), END_SECONDS, "all ranks gone")
    assert not (running.namespaces - {namespace_of(os.getpid())}) & alive_namespaces()
    assert not (running.folder / "result.json").exists()
    train(running.cwd, [*LONG, "train.steps=1"])
    result = json.loads((running.folder / "result.json").read_text())
    assert result["status"] == "failed"


def test_a_command_killed_as_its_folder_appears_has_a_result_after_the_next_start(tmp_path: Path) -> None:
    process = subprocess.Popen(command("train", LONG), cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (killed := list(tmp_path.glob("runs/mixed/*/plan.json"))):
        assert process.poll() is None and time.monotonic() < deadline
    process.kill()
    process.wait(timeout=END_SECONDS)
    train(tmp_path, [*LONG, "train.steps=1"])
    result = json.loads((killed[0].parent / "result.json").read_text())
    assert result["status"] == "failed" and "ended without writing a result" in result["error"]


SMALL = [*LONG, "train.global_batch_size=4", "train.timeout_seconds=4"]


@pytest.mark.parametrize("stopped", [(3,), pytest.param((0, 1, 2), marks=pytest.mark.long)], ids=["one", "all-but-one"])
def test_stopped_ranks_end_the_run_and_are_named(tmp_path: Path, stopped: tuple[int, ...]) -> None:
    run = Running(tmp_path, SMALL)
    try:
        for entry in run.ranks:
            if entry["rank"] in stopped:
                os.kill(entry["pid"], signal.SIGSTOP)  # from now on only SIGKILL reaches them
        status, stderr = run.finish()
    finally:
        run.process.kill()
    assert status == 1 and "Traceback" not in stderr
    error = json.loads((run.folder / "result.json").read_text())["error"]
    named = error.split("; rank ")[0]
    for entry in run.ranks:
        assert (f"{entry['rank']} on node {entry['node']} (" in named) == (entry["rank"] in stopped), error
    assert "no sign of life" in named and "over " in error and "not arrived there" in error
    wait_for(lambda: nothing_left(run), 5, "all ranks gone")


DATA_OF_RANK_1 = """
import os
import time
from pathlib import Path
import numpy
from holmes_hpc import extend

class Odd(numpy.ndarray):
    samples = 0

    def __getitem__(self, part):
        sample = None not in (part.start, part.stop) and part.stop - part.start == 33
        if sample and Path("/proc/self/comm").read_text().startswith("rank1 "):
            Odd.samples += 1
            {does}
        return super().__getitem__(part)

extend.add_source("odd", lambda settings: (numpy.arange(20000) % 251).view(Odd))
"""
"""A plug-in whose data does something on rank 1 as often as that reads a sample, of which it counts the `samples`."""


def test_a_rank_slow_in_loading_is_a_straggler_and_one_that_stays_there_hangs(tmp_path: Path) -> None:
    sleeps = "time.sleep(0.03 if Odd.samples <= 1 + 14 * 2 else 60)"
    (tmp_path / "slow.py").write_text(DATA_OF_RANK_1.format(does=sleeps))
    done = start(tmp_path, "train", [*SMALL, "plugins=[slow.py]", "data.name=odd", "parallel.pipeline=2",
                                     "train.validation_samples=1"])
    assert done.status == 1 and "Traceback" not in done.stderr
    assert "rank 1 on node ib-1 is a straggler" in done.stderr
    assert done.rows[-1]["step"] == 14 and done.rows[-1]["stragglers"] == [1]
    assert done.result["error"].startswith("rank 1 on node ib-1 (slot ib/1) hangs: busy outside any process group"), (
        done.result)
    assert "in step 15, loading data" in done.result["error"]


def test_interrupt_ends_the_run_with_130(running: Running) -> None:
    os.killpg(running.process.pid, signal.SIGINT)
    status, stderr = running.finish()
    assert status == 130
    assert "Traceback" not in stderr
    assert json.loads((running.folder / "result.json").read_text())["status"] == "failed"
    wait_for(lambda: nothing_left(running), 5, "all ranks gone")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_disk_that_fills_up_in_mid_run_is_named_and_the_result_written(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(small)], check=True)
    try:
        done = start(tmp_path, "train", ["run.pictures=false", *LONG, f"run.folder={small}"], timeout=120)
        results = [json.loads(path.read_text()) for path in small.glob("*/*/result.json")]
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert done.status == 1
    assert "the disk or the quota" in done.stderr
    assert "Traceback" not in done.stderr
    assert [result["status"] for result in results] == ["failed"]
    assert "full" in results[0]["error"]
