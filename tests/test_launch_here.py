"""A run on this machine: what ends it, and what its folder is documented to hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.config.compose import compose
from holmes_hpc.launch import here
from holmes_hpc.launch.torch_log import errors_only
from holmes_hpc.planner import bind, plan
from holmes_hpc.runs import RunFolder, read_result
from tests.runs_for_tests import ROOT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_end_a_run_with_130_and_a_result(number: signal.Signals, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(number)

    def start_world(network: object, body: object) -> None:
        os.kill(os.getpid(), number)
        raise AssertionError("the signal was not taken")

    monkeypatch.setattr(here, "start_world", start_world)
    config = compose(["+cluster=laptop", f"run.folder={tmp_path}"])
    cluster, folder = ClusterDescription.from_config(config.cluster), RunFolder.create(tmp_path, "laptop")
    chosen = plan(config, mode="local")
    bound = bind(chosen, {place.slot: place.slot.replace("/", "-") for place in chosen.ranks})
    assert here.run_here(bound, config, cluster, folder, "local") == 130
    result = read_result(folder)
    assert result is not None
    assert (result["status"], result["error"]) == ("failed", f"interrupted by {number.name}")
    assert signal.getsignal(number) == before


def test_everything_in_a_run_folder_is_documented() -> None:
    folder, text = RunFolder(Path("runs/mixed/id")), (ROOT / "docs" / "running.md").read_text()
    table = text.partition("## The run folder")[2].partition("\n\n`bubble_fraction`")[0]
    parts = {name: value.fget(folder) for name, value in vars(RunFolder).items() if isinstance(value, property)}
    paths = {name: path for name, path in parts.items() if isinstance(path, Path)}
    assert len(paths) > 10
    for name, path in paths.items():
        assert f"`{path.name}" in table, f"{name} ({path.name}) has no line in docs/running.md"
    for path in (folder.log_path(0), folder.timeline_path(0), folder.rank_error_path(0), folder.beat_path(0)):
        assert path.name.replace("0", "N") in table, path.name


def test_torch_logs_errors_unless_the_user_chose_a_level() -> None:
    chosen: dict[str, str] = {}
    errors_only(chosen)
    assert chosen == {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    chosen["TORCH_CPP_LOG_LEVEL"] = "INFO"
    errors_only(chosen)
    assert chosen["TORCH_CPP_LOG_LEVEL"] == "INFO"


@pytest.mark.parametrize("module", ["supervisor", "slurm_rank"])
def test_the_level_is_set_before_torch_is_imported(module: str) -> None:
    """torch reads it when it is loaded: nothing that the launcher imports may load it before."""
    text = (ROOT / "holmes_hpc" / "launch" / f"{module}.py").read_text()
    loads = min(text.find(words) for words in ("import torch\n", "import run_rank") if words in text)
    assert 0 < text.find("errors_only(os.environ)") < loads
    program = f"import sys, holmes_hpc.launch.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
