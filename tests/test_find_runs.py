"""A run's name finds the run, whatever lies in the current folder under the same name."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_hpc.engine.whole_model import find_origin_of_model
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.export import _checkpoints
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.find import find_run, refuse_two
from tests.checkpoint_folders import make_checkpoint

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
