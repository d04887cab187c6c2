"""From a checkout, an editable install and a wheel, each in an environment of its own: the commands, from elsewhere."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import hatchling.build
import pytest
import yaml

from holmes_hpc import __version__
from tests.runs_for_tests import ROOT
from tools.readme_for_index import for_index

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


def test_what_the_package_says_of_itself(installed: Installed, tmp_path: Path) -> None:
    assert installed.run([*installed.holmes, "--version"], tmp_path) == f"holmes {__version__}\n"
    program = ("import holmes_hpc, analysis, pathlib; assert all((pathlib.Path(each.__file__).parent / 'py.typed')"
               ".is_file() for each in (holmes_hpc, analysis))")
    installed.run([str(installed.python), "-c", program], tmp_path)


def test_the_source_distribution_is_whole_and_builds_the_same_wheel(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with tarfile.open(tmp_path / hatchling.build.build_sdist(str(tmp_path))) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / f"holmes_hpc-{__version__}"
    for name in ("LICENSE", "CITATION.cff", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "docs/python.md",
                 "docs/reference/settings.md", "docs/examples/first_run.ipynb", "docs/pictures/timeline.png",
                 "containers/Dockerfile", "containers/apptainer.def", ".dockerignore", "docs/containers.md",
                 "conf/cluster/mixed.yaml", "tests/test_packaging.py"):
        assert (source / name).read_bytes() == (ROOT / name).read_bytes(), name
    of_checkout = hatchling.build.build_wheel(str(tmp_path))
    (tmp_path / "again").mkdir()
    monkeypatch.chdir(source)
    again = hatchling.build.build_wheel(str(tmp_path / "again"))
    with zipfile.ZipFile(tmp_path / of_checkout) as first, zipfile.ZipFile(tmp_path / "again" / again) as second:
        names = first.namelist()
        assert sorted(names) == sorted(second.namelist())
        metadata = email.message_from_bytes(first.read(f"holmes_hpc-{__version__}.dist-info/METADATA"))
    assert {name.partition("/")[0] for name in names} == {
        "holmes_hpc", "analysis", "hydra_plugins", f"holmes_hpc-{__version__}.dist-info"}
    assert {"holmes_hpc/py.typed", "analysis/py.typed", "analysis/page/page.js", "analysis/page/page.css"} <= set(names)
    assert metadata["License-Expression"] == "Apache-2.0" and metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Author"] == "holmes_hpc developers" and "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "(`docs/clusters.md`)" not in metadata.get_payload() and "`docs/clusters.md`" in metadata.get_payload()
    assert re.findall(r"\]\((?!https?://|#)", metadata.get_payload()) == []


@pytest.mark.parametrize(("text", "with_source", "without"), [
    ("[a](docs/a.md)", "[a](https://x.example/docs/a.md)", "a (`docs/a.md`)"),
    ("[docs/a.md](docs/a.md#b)", "[docs/a.md](https://x.example/docs/a.md#b)", "`docs/a.md`"),
    ("![a step](p.png)", "![a step](https://x.example/p.png)", "*(a step)*"),
    ("[b](https://y.example/c) [d](#e)", "[b](https://y.example/c) [d](#e)",
     "[b](https://y.example/c) [d](#e)")])
def test_links_of_the_readme_on_an_index(text: str, with_source: str, without: str) -> None:
    assert for_index(text, "https://x.example/") == with_source
    assert for_index(text, None) == without


def test_versions_and_licences_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (__version__, "Apache-2.0")
    assert f"in {__version__}," in (ROOT / "CHANGELOG.md").read_text()


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
