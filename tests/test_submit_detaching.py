"""What a command that submits one run says and leaves behind where a signal ends it."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.emulation.context import ENDING_SIGNALS
from holmes_hpc.launch.slurm import run as submitting
from holmes_hpc.runs import RunFolder, read_result, write_job
from holmes_hpc.submit import commands, job
from holmes_hpc.submit.job import submitted_run
from holmes_hpc.submit.watch import SubmittedRun

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(params=ENDING, ids=lambda number: number.name)
def ending(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield request.param
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def config(tmp_path: Path) -> Any:
    return compose(["+cluster=mixed", f"run.folder={tmp_path}"])


def interrupted(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    raise AssertionError("the signal was not taken")


@pytest.mark.parametrize("taken", [True, False])
def test_whether_slurm_took_a_job_whose_submission_was_cut_off_is_looked_up_and_said(
        tmp_path: Path, config: Any, ending: signal.Signals, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture, taken: bool) -> None:
    folder = RunFolder.create(tmp_path, "mixed")
    (folder.path / "submission").mkdir()
    (tmp_path / "bin").mkdir()
    listed = f"7+0|{folder.path}/submission/.submission_file_1.sh" if taken else ""
    for name, said in (("squeue", listed), ("sacct", "")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho '{said}'\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(submitting, "submit", lambda config, folder: interrupted(ending))
    with caplog.at_level(logging.INFO):
        assert submitting.submit_and_follow(config, folder) == (0 if taken else 130)
    run = submitted_run(folder)
    assert (run is not None and run.job_id) == ("7" if taken else False)
    if taken:
        assert f"{ending.name}: Slurm had taken job 7, which goes on" in caplog.text and "`scancel 7`" in caplog.text
    else:
        assert f"{ending.name}: the run is not submitted; start it again" in caplog.text
        assert (read_result(folder) or {})["error"] == f"interrupted by {ending.name} before it was submitted"


@pytest.mark.parametrize("taken", [True, False])
def test_an_sbatch_that_hangs_holds_up_no_signal(
        tmp_path: Path, config: Any, ending: signal.Signals, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture, taken: bool) -> None:
    monkeypatch.setattr(commands, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(job, "check_submission", lambda config: None)
    queue = tmp_path / "queue"
    queue.touch()
    take = f'for last; do :; done; echo "7+0|$last" > {queue};' if taken else ""
    (tmp_path / "bin").mkdir()
    for name, line in (("squeue", f"cat {queue}"), ("sacct", "exit 1"),
                       ("sbatch", f"{take} echo $$ > {tmp_path}/pid; sleep 0.5; kill -{ending.value} $PPID\n"
                                  "exec sleep 600")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    folder = RunFolder.create(tmp_path, "mixed")
    with caplog.at_level(logging.INFO):
        assert submitting.submit_and_follow(config, folder) == (0 if taken else 130)
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()
    assert ("had taken job 7, which goes on" if taken else
            "is not submitted; start it again, but look with `squeue --me` first") in caplog.text


def test_any_of_these_signals_ends_the_following_and_not_the_job(
        tmp_path: Path, config: Any, ending: signal.Signals, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    folder = RunFolder.create(tmp_path, "mixed")
    write_job(folder, job_id="7", emulated=False)
    monkeypatch.setattr(submitting, "submit", lambda config, folder: SubmittedRun("7", folder, cluster="west"))
    monkeypatch.setattr(submitting, "follow", lambda *arguments: interrupted(ending))
    with caplog.at_level(logging.INFO):
        assert submitting.submit_and_follow(config, folder) == 0
    assert f"{ending.name}: no longer following job 7, which goes on" in caplog.text
    assert "cancel it: `scancel --clusters=west 7`" in caplog.text
