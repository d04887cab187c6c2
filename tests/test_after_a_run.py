"""What a user sees after runs: what to do next, whether something was kept, and all runs in one list."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_hpc import cli
from holmes_hpc.launch.follow.advice import next_steps
from holmes_hpc.runs import RunFolder, describe_job, write_result
from holmes_hpc.runs.files import write_json_atomic


def made(base: Path, name: str) -> RunFolder:
    folder = RunFolder.create(base, name, {"config.yaml": "train: {steps: 3}\n"})
    write_json_atomic(folder.job_path, describe_job(emulated=True, environment={}))
    write_result(folder, "completed", error=None, emulated=True)
    return folder


def test_the_next_step_names_the_newest_checkpoint_or_says_that_there_is_none(tmp_path: Path) -> None:
    folder = made(tmp_path, "first")
    assert "no checkpoint was kept (train.checkpoint_every=0)" in next_steps(folder, 0)
    assert "no checkpoint is left in it" in next_steps(folder, 5)
    for step in (5, 10):
        (folder.checkpoints / f"step-{step:06d}").mkdir()
    text = next_steps(folder, 5)
    assert f"train.resume={folder.path}" in text and "step-000010" in text and f"holmes report {folder.path}" in text


def test_jobs_lists_runs_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [made(tmp_path, name) for name in ("first", "second")]
    assert cli.run(["jobs", "--folder", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert all(folder.id in shown.out for folder in folders) and shown.out.count("completed") == 2, shown.out
    assert shown.err == ""
