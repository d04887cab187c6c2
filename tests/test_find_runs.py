"""A run's name finds the run, whatever lies in the current folder under the same name."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.reading import named_runs
from holmes_hpc import cli
from holmes_hpc.architecture import Architecture
from holmes_hpc.compare import read
from holmes_hpc.config.compose import compose
from holmes_hpc.engine.whole_model import find_origin_of_model
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.export import _checkpoints
from holmes_hpc.launch.here.resume import resolve_resume
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.find import find_run, refuse_two
from tests.checkpoint_folders import make_checkpoint
from tests.run_folders import make_run, metric

RUNS = Path("runs")


@pytest.fixture(name="run")
def made_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(RUNS, "ll", {"config.yaml": "{}"})
    make_checkpoint(folder.checkpoints / "step-000001", 1)
    return folder


def test_a_folder_without_runs_hides_no_run_of_its_name(run: RunFolder) -> None:
    Path("ll", "texts").mkdir(parents=True)
    assert find_run("ll", RUNS) == run
    assert find_origin_of_model("ll", RUNS).folder == run.path
    assert _checkpoints("ll", None, RUNS)[0] == run.checkpoints / "step-000001"
    with pytest.raises(ConfigurationError, match=r"\./ll: no run has this folder, job id, id or name"):
        find_run("./ll", Path("other"))


def test_a_model_here_that_has_the_name_of_a_run_must_be_written_as_a_path(run: RunFolder) -> None:
    Path("ll").mkdir()
    Path("ll", "config.json").write_text("{}")
    words = f"ll is a folder here, {Path('ll').absolute()}, and the name of runs in .*: write ./ll for the folder, or "
    with pytest.raises(ConfigurationError, match=words + "runs/ll for"):
        find_origin_of_model("ll", RUNS)
    assert find_origin_of_model("./ll", RUNS).folder == Path("ll").absolute()
    assert find_origin_of_model("runs/ll", RUNS).folder == run.path
    make_checkpoint(Path("ll", "checkpoints", "step-000002"), 2)
    with pytest.raises(ConfigurationError, match=words):
        _checkpoints("ll", None, RUNS)
    assert _checkpoints("./ll", None, RUNS)[0].name == "step-000002"
    refuse_two("ll", Path())  # the folder of runs itself


def test_tables_reports_and_comparisons_take_a_runs_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    older, newer = (make_run(RUNS, f"20261003-12000{number}-ab12", run_name="ll", metrics=[metric(1, 0.1 * number)])
                    for number in (1, 2))
    Path("ll").mkdir()  # holds no runs
    assert named_runs(["ll"], RUNS) == [older.absolute(), newer.absolute()]
    assert named_runs([newer.name, "runs/ll"], RUNS) == [newer.absolute(), older.absolute()]
    assert read("ll", RUNS).measured_seconds == 0.2
    for words in (["throughput", "ll", "--json", "--no-pictures"], ["report", newer.name],
                  ["compare", "ll", older.name]):
        assert cli.run(words) == 0, capsys.readouterr().err
    assert (newer / "report.html").is_file()
    for words in (["throughput", "other"], ["report", "other"], ["compare", "other", "ll"]):
        assert cli.run(words) == 2
        error = capsys.readouterr().err
        assert "other: no run has this folder, job id, id or name" in error and "where the runs are ll" in error


def test_a_resume_takes_the_newest_run_of_a_name_that_has_a_checkpoint(
        run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    newest = RunFolder.create(RUNS, "ll", {"config.yaml": "{}"})
    small = ["+cluster=laptop", "model.num_layers=1", "model.hidden_size=16", "model.num_heads=2", "train.steps=50"]
    config = compose([*small, "train.resume=ll"])
    shapes = {info.name: info.shape for info in Architecture.from_config(config.model).parameters()}
    parts = {"model": {}, "optimizer": {"name": "adamw"}}
    make_checkpoint(run.checkpoints / "step-000002", 2, {"parts": parts}, shapes)
    caplog.set_level("INFO")
    assert resolve_resume(config) == str(run.path)
    assert f"train.resume=ll: {run.path}" in caplog.text
    with pytest.raises(ConfigurationError, match="no checkpoint lies there.*a run's id or name"):
        resolve_resume(compose([*small, f"train.resume={newest.id}"]))
