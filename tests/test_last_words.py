"""What a run says at its end where those that would say it were killed, or cannot write any more."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from holmes_hpc.checkpoint.writing import storage_error as checkpoint_error
from holmes_hpc.launch.follow.failure import FailureReport
from holmes_hpc.launch.node.descriptors import take_descriptors
from holmes_hpc.launch.rank.spare import Spare
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.files import storage_error
from tests.forked import ForkedRank, run_ranks
from tests.runs_for_tests import command, environment
from tests.runs_for_tests import run as start
from tests.test_faults import DATA_OF_RANK_1, SMALL, Running
from tests.test_silence import ALONE, ended, parent_of


@pytest.mark.emulated
@pytest.mark.parametrize(("above", "name"), [(1, "the ranks' parent (holmes-init"),
                                             (2, "the parent of the ranks' parent (holmes-mid")])
def test_a_killed_parent_is_named(tmp_path: Path, above: int, name: str) -> None:
    run = Running(tmp_path, ALONE)
    pid = run.pids[0]
    for _ in range(above):
        pid = parent_of(pid)
    os.kill(pid, signal.SIGKILL)
    assert ended(run).startswith(f"{name}, pid {pid}) was ended by SIGKILL (if nobody killed it, the kernel may have")


@pytest.mark.emulated
def test_a_run_folder_removed_under_its_run_is_said(tmp_path: Path) -> None:
    run = Running(tmp_path, ALONE)
    run.folder.rename(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone", ignore_errors=True)  # its ranks may be writing
    status, stderr = run.finish()
    assert status == 1 and f"the run folder {run.folder} was removed while the run went on" in stderr
    assert "Traceback" not in stderr and "result.json" not in stderr


@pytest.mark.emulated
def test_a_rank_without_descriptors_says_so_by_its_parent(tmp_path: Path) -> None:
    opens = "while Odd.samples > 8: os.open(os.devnull, os.O_RDONLY)"
    (tmp_path / "greedy.py").write_text(DATA_OF_RANK_1.format(does=opens))
    done = start(tmp_path, "train", [*SMALL, "plugins=[greedy.py]", "data.name=odd", "parallel.pipeline=2",
                                     "train.validation_samples=1"])
    error = done.result["error"]
    assert done.status == 1, error
    assert error.startswith("rank 1 on node ib-1 (slot ib/1) failed: OSError: a process may open "), error
    assert "Too many open files" in error and "ulimit -Hn" in error and "Traceback" not in done.stderr


@pytest.mark.parametrize("most", [15, 40, 63])
def test_a_start_with_hopelessly_few_descriptors_is_refused_at_once(tmp_path: Path, most: int) -> None:
    done = subprocess.run(command("train", ALONE), cwd=tmp_path, env=environment(), capture_output=True, text=True,
                          timeout=240, check=False,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)))
    assert done.returncode == 2 and f"a process may open {most} files here" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.glob("runs/*/*"))


def test_a_rank_takes_as_many_descriptors_as_it_may() -> None:
    assert run_ranks(1, descriptors_of_a_rank, 100, 4096) == [4096]
    assert run_ranks(1, descriptors_of_a_rank, 64, 64) == [64]


def descriptors_of_a_rank(given: ForkedRank, soft: int, hard: int) -> int:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    take_descriptors()
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_an_error_that_reached_the_parent_alone_is_told(tmp_path: Path) -> None:
    failure = FailureReport(RunFolder.create(tmp_path, "mixed"))
    failure.add({"event": "error", "rank": 1, "report": {"type": "DataError", "message": "no tokens", "ours": True}})
    for rank in (0, 1):
        failure.add({"event": "ended", "rank": rank, "node": f"ib-{rank}", "slot": f"ib/{rank}", "status": 1})
    assert failure.message() == "no tokens [rank 1 on node ib-1 (slot ib/1)]"


def test_descriptors_are_kept_and_given_back() -> None:
    spare, before = Spare(), len(os.listdir("/proc/self/fd"))
    spare.keep()
    spare.keep()
    assert len(os.listdir("/proc/self/fd")) == before + 4
    spare.release()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_rank_ended_by_sigbus_is_told_why(tmp_path: Path) -> None:
    failure = FailureReport(RunFolder.create(tmp_path, "mixed"))
    failure.add({"event": "ended", "rank": 1, "node": "ib-1", "slot": "ib/1", "status": -signal.SIGBUS})
    assert "was ended by SIGBUS (a file that it had mapped became shorter, such as its data" in failure.message()


@pytest.mark.parametrize(("number", "limits", "said"), [
    (signal.SIGXCPU, (1800, resource.RLIM_INFINITY), "by SIGXCPU (its limit of CPU time, `ulimit -t`, 1800 s here: "),
    (signal.SIGKILL, (60, 60), "by SIGKILL (if nobody killed it, the kernel did: it ends a process after 60 s of CPU"),
    (signal.SIGKILL, (resource.RLIM_INFINITY,) * 2, "(if nobody killed it, the kernel may have: out of memory)"),
])
def test_a_rank_ended_by_its_limit_of_cpu_time_is_told_so(number: signal.Signals, limits: tuple[int, int], said: str,
                                                          tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    failure = FailureReport(RunFolder.create(tmp_path, "mixed"))
    failure.add({"event": "ended", "rank": 1, "node": "ib-1", "slot": "ib/1", "status": -number})
    assert said in failure.message()


def test_a_file_beyond_the_limit_of_sizes_is_told_so(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))
    try:
        with pytest.raises(OSError, match="too large") as error:
            (tmp_path / "file").write_bytes(bytes(1000))
        for told in (storage_error(tmp_path / "file", error.value), checkpoint_error(error.value, tmp_path / "file")):
            assert "may write files of 512 bytes at most here (`ulimit -f`)" in str(told)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
