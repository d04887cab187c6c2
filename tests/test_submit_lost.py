"""Whose job a number is: Slurm gives that of a job it lost to another one, and a run is named by several paths."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc import cli
from holmes_hpc.runs import RunFolder, write_job, write_result
from holmes_hpc.submit import watch as watching
from holmes_hpc.submit.ending import exit_status_of, failure
from holmes_hpc.submit.follow import follow
from holmes_hpc.submit.watch import SubmittedRun
from tests.printing_programs import printing_programs

LISTING = """\
#!/bin/sh
case "$*" in
*%o*) printf '%s\\n' "$(cat {folder}/scripts)";;
*) echo 'JOBID|JOBID|STATE|PARTITION|NODELIST|REASON|NAME'; echo '16|16|RUNNING|ib|ib-1|None|other';;
esac
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    return printing_programs(tmp_path, monkeypatch)


@pytest.fixture
def sixteen(tmp_path: Path, programs: Callable[..., Path]) -> RunFolder:
    """A run that was submitted as job 16, in a queue whose job 16 has the script in the file `scripts`."""
    folder = RunFolder.create(tmp_path / "runs", "mixed")
    write_job(folder, job_id="16", emulated=False)
    folder.write_text(folder.config_path, "train: {steps: 20}\n")
    (folder.path / "submission").mkdir()
    programs("sacct", "")
    programs("scancel", "")
    programs("squeue", "")
    (tmp_path / "bin" / "squeue").write_text(LISTING.format(folder=tmp_path))
    return folder


@pytest.mark.parametrize("script", ["/home/me/train.sh", "(null)", "hostname",
                                    "/x/runs/mixed/20260101-000000-abcd/submission/submission_file_1.sh"])
def test_another_job_with_the_number_of_a_lost_one_is_not_shown_or_cancelled(
        tmp_path: Path, sixteen: RunFolder, script: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scripts").write_text(f"16|{script}\n")
    assert cli.run(["jobs", str(sixteen.path)]) == 0
    told = capsys.readouterr().out
    assert "running" not in told and "Slurm lost its job, and gave the number 16 to another one" in told
    assert cli.run(["cancel", str(sixteen.path)]) == 0
    assert capsys.readouterr().out == "cancelled 0 of 1 runs; the others are over\n"


def test_a_job_that_takes_the_number_of_one_that_is_followed_is_not_followed(
        tmp_path: Path, sixteen: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PATIENCE_SECONDS", 1.0)
    told = []
    (tmp_path / "scripts").write_text(f"16|{sixteen.path}/submission/submission_file_1.sh\n")

    def on_state(words: str) -> None:
        told.append(words)
        (tmp_path / "scripts").write_text("16|/home/me/train.sh\n")
        squeue = tmp_path / "bin" / "squeue"
        squeue.write_text(squeue.read_text().replace("RUNNING", "PENDING"))

    ended = follow(SubmittedRun("16", sixteen), lambda row: None, on_state)
    assert told == ["RUNNING", "Slurm lost it, and gave the number 16 to another job, which is none of this run's"]
    assert exit_status_of(ended) == 1 and "Slurm does not know job 16 any more, and it never began" in failure(ended)


def test_that_a_running_job_is_held_is_no_news(sixteen: RunFolder, tmp_path: Path) -> None:
    told: list[str] = []

    def on_state(words: str) -> None:
        told.append(words)
        squeue = tmp_path / "bin" / "squeue"
        if len(told) == 1:  # as by `scontrol hold` of a job that runs
            squeue.write_text(squeue.read_text().replace("|None|", "|JobHeldUser|"))

    def on_row(row: dict[str, Any]) -> None:
        write_result(sixteen, "completed", error=None, emulated=False)

    threading.Timer(3.0, lambda: sixteen.append_metrics({"step": 1})).start()
    follow(SubmittedRun("16", sixteen), on_row, on_state)
    assert told == ["RUNNING"]


@pytest.mark.parametrize("script", ["{run}/submission/.submission_file_1.sh", "",
                                    "/elsewhere/{name}/submission/submission_file_1.sh --an-argument"])
def test_a_runs_own_job_is_shown_and_cancelled_also_by_another_path(
        tmp_path: Path, sixteen: RunFolder, script: str, capsys: pytest.CaptureFixture[str]) -> None:
    named = script.format(run=sixteen.path, name=f"{sixteen.name}/{sixteen.id}")
    (tmp_path / "scripts").write_text(f"A banner of the site\n16|{named}\n")
    assert cli.run(["jobs", str(sixteen.path)]) == 0
    assert "running" in capsys.readouterr().out
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    assert cli.run(["cancel", str(tmp_path / "link" / sixteen.name / sixteen.id)]) == 0
    assert capsys.readouterr().out == "cancelled 1 of 1 runs (jobs 16)\n"


def test_a_run_inside_of_somebodys_own_batch_script_has_that_ones_number(
        tmp_path: Path, sixteen: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (sixteen.path / "submission").rmdir()
    for script in ("/home/me/train.sh", "(null)", "bash"):
        (tmp_path / "scripts").write_text(f"16|{script}\n")
        assert cli.run(["jobs", str(sixteen.path)]) == 0
        assert "running" in capsys.readouterr().out
