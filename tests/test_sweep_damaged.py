"""A sweep whose file is damaged or forged is none: nothing is written where it points, and no command stumbles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc import cli
from holmes_hpc.config.compose import compose
from holmes_hpc.runs import RunFolder, write_job
from holmes_hpc.runs.sweeps import Sweep


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A sweep of two runs, the first of which has its folder."""
    made = Sweep.begin(tmp_path / "sweeps" / "first", [compose(["+cluster=laptop"])] * 2, ["a", "b"])
    made.folders[0] = RunFolder.create(tmp_path / "runs", "laptop")
    made.save()
    return made


def test_what_was_saved_is_read(sweep: Sweep) -> None:
    read = Sweep.read(sweep.place)
    assert read is not None and read.words == ["a", "b"] and read.folders == sweep.folders


@pytest.mark.parametrize("change", [
    {"words": []}, {"words": [1]}, {"words": None}, {"numbers": [2]}, {"numbers": [-1]}, {"numbers": [True]},
    {"numbers": [10**30]}, {"numbers": [0, 0], "runs": ["/a", "/b"]}, {"numbers": [0, 1]}, {"numbers": {}},
    {"runs": ["\0"]}, {"runs": ["/a\0b"]}, {"runs": ["relative"]}, {"runs": ["/a\x1b[31m"]}, {"runs": [None]},
    {"runs": []},
], ids=str)
def test_a_damaged_one_is_none(sweep: Sweep, change: dict[str, Any]) -> None:
    damage(sweep, change)
    assert Sweep.read(sweep.place) is None


@pytest.mark.parametrize("change", [{"words": []}, {"runs": ["/a\0b"]}], ids=str)
def test_no_command_stumbles_or_writes_where_it_points(
        sweep: Sweep, change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    damage(sweep, change)
    before = {*tmp_path.rglob("*"), sweep.folders[0].result_path}  # a run that the file names can be cancelled
    for command in ("jobs", "cancel"):
        assert cli.run([command, str(sweep.place), "--folder", str(tmp_path / "runs")]) in (0, 2)
    assert cli.run(["sweep", str(sweep.place), "--resume"]) == 2
    assert "holds no sweep" in capsys.readouterr().err
    assert {*tmp_path.rglob("*")} <= before


@pytest.mark.parametrize("change", [{"overrides": None}, {"overrides": [5]}, {"overrides": {"a": 1}}], ids=str)
def test_runs_are_shown_without_overrides_that_are_none(sweep: Sweep, change: dict[str, Any], tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    folder = sweep.folders[0]
    write_job(folder, job_id="16", emulated=False)
    folder.write_text(folder.config_path, "train: {steps: 20}\n")
    damage(sweep, change)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.run(["jobs", str(sweep.place)]) == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert "overrides" not in head and row.split()[:2] == ["16", f"laptop/{folder.id}"]


def test_a_run_folder_that_is_gone_keeps_no_other_run_from_being_cancelled(
        sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep.folders[1] = RunFolder(tmp_path / "runs" / "laptop" / "gone")
    sweep.folders = dict(sorted(sweep.folders.items(), reverse=True))
    sweep.save()
    assert cli.run(["cancel", str(sweep.place)]) == 2
    said = capsys.readouterr()
    assert "gone/result.json cannot be written" in said.err and "2 more are not submitted" in said.out
    assert (sweep.folders[0].path / "result.json").is_file()


def damage(sweep: Sweep, change: dict[str, Any]) -> None:
    path = sweep.place / "sweep.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
