"""Runs that make no progress, for whatever reason, end by themselves and say who holds them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.runs_for_tests import command, environment
from tests.runs_for_tests import run as start
from tests.test_faults import SMALL, Running, nothing_left, wait_for

pytestmark = pytest.mark.emulated

ALONE = [*(each for each in SMALL if "cluster" not in each and not each.startswith("parallel=")), "+cluster=laptop",
         "cluster.partitions.laptop.gpus_per_node=1", "parallel=auto", "train.global_batch_size=2"]
SAVING = ["train.steps=6", "train.checkpoint_every=2", "train.checkpoint_timeout_seconds=3", "plugins=[held.py]"]
FREEZE, THAW = 0xC0045877, 0xC0045878  # FIFREEZE and FITHAW of linux/fs.h
HELD = """
from pathlib import Path
from holmes_hpc import extend
from holmes_hpc.engine.saving import {module}

extend.add_activation("held", abs)

def held(*arguments):
    if Path("/proc/self/comm").read_text().startswith("rank1 "):
        open("pipe").read()  # nobody writes: as a file system that does not answer
    return before(*arguments)

before = {module}.{function}
{module}.{function} = held
"""


def ended(run: Running) -> str:
    """Return why the run ended by itself."""
    try:
        status, stderr = run.finish()
    finally:
        run.process.kill()
    assert status == 1 and "Traceback" not in stderr
    wait_for(lambda: nothing_left(run), 5, "all ranks gone")
    return str(json.loads((run.folder / "result.json").read_text())["error"])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_all_ranks_stopped(tmp_path: Path) -> None:
    run = Running(tmp_path, SMALL)
    for pid in run.pids:
        os.kill(pid, signal.SIGSTOP)
    error = ended(run)
    assert error.startswith("rank 0 on node ib-0 has given no sign of life for "), error
    assert "is stopped (SIGSTOP)" in error and "(all ranks)" in error and "train.timeout_seconds=4" in error


def test_the_only_rank_stopped(tmp_path: Path) -> None:
    run = Running(tmp_path, ALONE)
    os.kill(run.pids[0], signal.SIGSTOP)
    error = ended(run)
    assert error.startswith("rank 0 on node ") and "no sign of life" in error and "is stopped (SIGSTOP)" in error


def test_the_ranks_parent_stopped(tmp_path: Path) -> None:
    """Its ranks train on to the end, which nobody is told of."""
    run = Running(tmp_path, [*ALONE, "train.steps=400"])
    parent = parent_of(run.pids[0])
    os.kill(parent, signal.SIGSTOP)
    error = ended(run)
    assert error.startswith("all ranks ended ") and f"the ranks' parent, pid {parent}, is stopped (SIGSTOP)" in error


def hold(folder: Path, module: str, function: str) -> None:
    """Make a plug-in that holds rank 1 in a function of the saving of checkpoints."""
    (folder / "held.py").write_text(HELD.format(module=module, function=function))
    os.mkfifo(folder / "pipe")


def test_a_file_system_that_does_not_answer_in_a_save(tmp_path: Path) -> None:
    hold(tmp_path, "saver", "write_part")
    done = start(tmp_path, "train", [*SMALL, *SAVING, f"run.folder={tmp_path}/runs"])
    error = done.result["error"]
    assert done.status == 1 and "Traceback" not in done.stderr
    assert error.startswith("rank 1 on node ib-1 has been writing step-000002 for "), error
    assert "train.checkpoint_timeout_seconds=3" in error
    assert "rank 1 on node ib-1 has been writing step-000002 for 2 s" in done.stderr, "said before"


def test_a_file_that_does_not_answer_at_a_resume(tmp_path: Path) -> None:
    first = start(tmp_path, "train", [*SMALL, "train.steps=1", "train.checkpoint_every=1"])
    assert first.status == 0, first.stderr
    hold(tmp_path, "checkpoints", "fill")
    done = start(tmp_path, "train", [*SMALL, *SAVING, f"train.resume={first.folder}"])
    error = done.result["error"]
    assert done.status == 1 and error.startswith("rank 1 on node ib-1 has been reading step-000001 for "), error


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/loop-control").exists(),
                    reason="needs root and loop devices, for a file system that can be frozen")
def test_a_file_system_that_hangs_as_a_whole(tmp_path: Path) -> None:
    """No process that writes to it can be killed; the command ends all the same, and the result comes when it can."""
    with frozen_soon(tmp_path) as (mounted, freeze, thaw):
        command_line = command("train", [*ALONE, f"run.folder={mounted}/runs", "train.checkpoint_timeout_seconds=5",
                                         "train.checkpoint_every=20", "train.keep_checkpoints=2"])
        process = subprocess.Popen(command_line, cwd=tmp_path, env=environment(), text=True, stderr=subprocess.PIPE,
                                   stdout=subprocess.DEVNULL, start_new_session=True)
        wait_for(lambda: bool(list(mounted.glob("runs/*/*/checkpoints/step-*"))), 120, "a checkpoint")
        [folder] = mounted.glob("runs/*/*")
        pids = [entry["pid"] for entry in json.loads((folder / "job.json").read_text())["ranks"]]
        freeze()
        _, stderr = process.communicate(timeout=150)
        assert process.returncode == 1 and "Traceback" not in stderr
        assert "(its process, pid " in stderr and "waits for a disk or a file system" in stderr
        assert f"the run folder {folder} did not answer for 5 s, so its result was not written" in stderr
        assert not (folder / "result.json").exists()
        thaw()
        wait_for((folder / "result.json").exists, 60, "a result")
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 60, "all ranks gone")
        assert "given no sign of life" in json.loads((folder / "result.json").read_text())["error"]


@contextmanager
def frozen_soon(folder: Path) -> Iterator[tuple[Path, Callable[[], None], Callable[[], None]]]:
    """Yield a mounted file system, and what freezes and thaws it: nobody can write to it meanwhile."""
    image, mounted = folder / "image", folder / "mounted"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    mounted.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], check=True)

    def call(request: int) -> None:
        descriptor = os.open(mounted, os.O_RDONLY)
        with suppress(OSError):  # it is so already
            fcntl.ioctl(descriptor, request, 0)
        os.close(descriptor)

    try:
        yield mounted, partial(call, FREEZE), partial(call, THAW)
    finally:
        call(THAW)
        wait_for(lambda: subprocess.run(["umount", str(mounted)], capture_output=True, check=False).returncode == 0, 60,
                 "the file system is given back")
