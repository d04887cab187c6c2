"""Runs that make no progress, for whatever reason, end by themselves and say who holds them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.runs_for_tests import run as start
from tests.test_faults import SMALL, Running, nothing_left, wait_for

pytestmark = pytest.mark.emulated

ALONE = [*(each for each in SMALL if "cluster" not in each and not each.startswith("parallel=")), "+cluster=laptop",
         "cluster.partitions.laptop.gpus_per_node=1", "parallel=auto", "train.global_batch_size=2"]
SAVING = ["train.steps=6", "train.checkpoint_every=2", "train.checkpoint_timeout_seconds=3", "plugins=[held.py]"]
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
