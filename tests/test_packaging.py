"""From a checkout, an editable install and a wheel, each in an environment of its own: the commands, from elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.runs_for_tests import ROOT

pytestmark = [pytest.mark.packaging, pytest.mark.emulated]

PIP = ["-m", "pip", "--disable-pip-version-check", "-q"]
FEW_STEPS = ["+cluster=mixed", "cluster.partitions.ib.gpus_per_node=1", "cluster.partitions.roce.gpus_per_node=1",
             "train.steps=2", "model.hidden_size=32", "model.sequence_length=32",
             "train.global_batch_size=8", "train.validation_samples=8"]


@dataclass(frozen=True)
class Installed:
    """An environment: its interpreter, how `holmes` is called there, where the package must lie, and its variables."""

    python: Path
    holmes: list[str]
    package: Path
    variables: dict[str, str]

    def run(self, command: list[str], folder: Path) -> str:
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, cwd=folder, env={**clean, "OMP_NUM_THREADS": "1", **self.variables}, text=True,
                              capture_output=True, timeout=240, stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


def environment(folder: Path) -> Path:
    """Make an empty environment that sees the dependencies installed here, and return its interpreter.

    A .pth file adds the folder alone, not what .pth files there add: an editable install of this project stays out.
    """
    venv.create(folder, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def install(python: Path, *arguments: str) -> None:
    done = subprocess.run([sys.executable, *PIP, "--python", str(python), "install", "--no-deps",
                           "--no-build-isolation", "--ignore-installed", *arguments],
                          capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


# What `make` installs, and so what all tests run in, is editable too.
@pytest.fixture(scope="module", params=["checkout", pytest.param("editable", marks=pytest.mark.long), "wheel"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp(request.param)
    python = environment(folder / "environment")
    holmes = [str(python.parent / "holmes")]
    if request.param == "checkout":
        return Installed(python, [str(python), "-m", "holmes_hpc.cli"], ROOT / "holmes_hpc", {"PYTHONPATH": str(ROOT)})
    if request.param == "editable":
        install(python, "-e", str(ROOT))
        return Installed(python, holmes, ROOT / "holmes_hpc", {})
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    install(python, str(next(folder.glob("*.whl"))))
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "environment")}))
    return Installed(python, holmes, site / "holmes_hpc", {})


def test_the_commands_from_another_folder(installed: Installed, tmp_path: Path) -> None:
    program = "import holmes_hpc, analysis, sys; print(holmes_hpc.__path__[0])"
    assert Path(installed.run([str(installed.python), "-c", program], tmp_path).strip()) == installed.package
    assert "usage: holmes" in installed.run([*installed.holmes, "--help"], tmp_path)
    assert "holmes_paper" in installed.run([*installed.holmes, "train", "--help"], tmp_path)
    text = installed.run([str(installed.python), "-m", "holmes_hpc.plan", "+cluster=mixed", "output=json"], tmp_path)
    assert json.loads(text)["world_size"] == 8
    assert not list(tmp_path.iterdir())


def test_a_users_own_cluster_is_found(installed: Installed, tmp_path: Path) -> None:
    """The search path is a plug-in of Hydra's, which each kind of installation must let Hydra find."""
    (tmp_path / "holmes_hpc" / "cluster").mkdir(parents=True)
    (tmp_path / "holmes_hpc" / "cluster" / "ours.yaml").write_text("defaults: [mixed]\nname: ours\n")
    here = Installed(installed.python, installed.holmes, installed.package,
                     {**installed.variables, "XDG_CONFIG_HOME": str(tmp_path)})
    assert "name: ours" in here.run([*installed.holmes, "train", "+cluster=ours", "--cfg", "job"], tmp_path)


def test_the_templates_are_there(installed: Installed, tmp_path: Path) -> None:
    program = "from holmes_hpc.resources import folder; print(*(p.name for p in folder('sbatch_templates').iterdir()))"
    there = installed.run([str(installed.python), "-c", program], tmp_path).split()
    assert sorted(there) == sorted(path.name for path in (ROOT / "sbatch_templates").iterdir())


def test_the_main_job_and_its_analysis(installed: Installed, tmp_path: Path) -> None:
    installed.run([*installed.holmes, "train", *FEW_STEPS], tmp_path)
    (run,) = (tmp_path / "runs" / "mixed").iterdir()
    assert json.loads((run / "result.json").read_text())["status"] == "completed"
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "__init__.py").write_text("raise RuntimeError('a folder of the user')")
    table = json.loads(installed.run([*installed.holmes, "throughput", "--json", "--no-pictures", str(run)], tmp_path))
    assert table[0]["cluster"] == "mixed"
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("runs", "analysis")] == []
