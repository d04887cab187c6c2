"""The recipes of images: they copy what is there and is enough, install what the package names, and test what works.

No image is built: the package is built from the files that a recipe copies, and its tests run in a fresh environment.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path

import hatchling.build
import pytest

from holmes_hpc import __version__
from holmes_hpc.config.compose import compose
from tests.runs_for_tests import ROOT
from tests.test_packaging import environment, install

DOCKERFILE = (ROOT / "containers" / "Dockerfile").read_text()
DEFINITION = (ROOT / "containers" / "apptainer.def").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLACE = "/opt/holmes_hpc"


def instructions(word: str) -> list[str]:
    """Return the arguments of the instructions of one kind of the Dockerfile, their lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    known = {"ARG", "FROM", "LABEL", "RUN", "COPY", "ENV", "WORKDIR", "ENTRYPOINT", "CMD"}
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    assert {line[0] for line in lines} <= known
    return [line[1] for line in lines if line[0] == word]


def section(name: str) -> list[str]:
    """Return the lines of a section of the definition, without comments."""
    found = re.search(rf"^%{name}\n(.*?)(?=^%|\Z)", DEFINITION, re.DOTALL | re.MULTILINE)
    assert found is not None, name
    return [line.strip() for line in found[1].splitlines() if line.strip() and not line.strip().startswith("#")]


def copied_by_docker() -> dict[str, str]:
    """Return source -> target of what the Dockerfile copies."""
    found = {}
    for line in instructions("COPY"):
        *sources, target = shlex.split(line)
        for source in sources:
            found[source] = target + Path(source).name if target.endswith("/") else target
    return found


COPIED = copied_by_docker()


def test_both_copy_the_same_files_which_are_there_and_kept_from_nothing() -> None:
    assert dict(line.split() for line in section("files")) == COPIED
    assert {target for source, target in COPIED.items()} == {f"{PLACE}/{source}" for source in COPIED}
    assert [source for source in COPIED if not (ROOT / source).exists()] == []
    kept = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert kept[0] == "*" and {line[1:] for line in kept if line.startswith("!")} == set(COPIED)


def test_both_install_what_the_package_names() -> None:
    post = section("post")
    docker = instructions("RUN")
    arguments = dict(line.split("=", 1) for line in section("arguments"))
    given = dict(line.split("=", 1) for line in instructions("ARG"))
    assert arguments["extras"] == given["EXTRAS"] and arguments["pip_args"] == given["PIP_ARGS"] == ""
    assert set(given["EXTRAS"].split(",")) <= set(PROJECT["optional-dependencies"])
    (pip,) = [line for line in post if " pip " in line]
    (of_docker,) = [each.strip() for line in docker for each in line.split("&&") if " pip " in each]
    assert pip.replace("{{ extras }}", "E").replace("{{ pip_args }}", "P") == (
        of_docker.replace("${EXTRAS}", "E").replace("${PIP_ARGS}", "P"))
    assert pip.split()[:4] == ["python3", "-m", "pip", "install"] and "-c constraints.txt" in pip
    (apt,) = [line for line in post if "apt-get install" in line]
    assert apt in re.sub(r" +", " ", docker[0]) and "iproute2" in apt and "libibverbs1" in apt
    base = re.search(r"^From: (\S+)$", DEFINITION, re.MULTILINE)
    assert base is not None and base[1] == given["BASE"] and instructions("FROM") == ["${BASE}"]
    version = re.search(r"python:3\.(\d+)-", base[1])
    assert version is not None and f"Programming Language :: Python :: 3.{version[1]}" in PROJECT["classifiers"]
    (entry,) = instructions("ENTRYPOINT")
    assert entry == '["holmes"]' and "holmes" in PROJECT["scripts"] and section("runscript") == ['exec holmes "$@"']


@pytest.mark.parametrize("script", [
    *instructions("RUN"), *("\n".join(section(name)) for name in ("post", "environment", "runscript", "test"))])
def test_their_scripts_are_ones(script: str) -> None:
    text = re.sub(r"\{\{ \w+ \}\}", "x", script)
    checked = subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_what_the_page_tells_an_image_composes() -> None:
    page = (ROOT / "docs" / "containers.md").read_text()
    told = re.findall(r"(?:holmes\.sif|holmes_hpc) train (\+cluster=.*)$", page, re.MULTILINE)
    assert len(told) == 4
    for line in told:
        assert compose(shlex.split(line)).train.steps > 0
    options = re.findall(r"--build-arg (\w+)=", page)
    assert set(options) <= {line.split("=")[0] for line in [*section("arguments"), *instructions("ARG")]}


@pytest.mark.packaging
def test_the_package_is_built_from_what_is_copied_and_passes_the_test_of_the_image(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    for name in COPIED:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    monkeypatch.chdir(source)
    built = tmp_path / hatchling.build.build_wheel(str(tmp_path))
    monkeypatch.chdir(ROOT)
    (tmp_path / "checkout").mkdir()
    of_checkout = tmp_path / "checkout" / hatchling.build.build_wheel(str(tmp_path / "checkout"))
    with zipfile.ZipFile(built) as few, zipfile.ZipFile(of_checkout) as whole:
        assert {name for name in few.namelist() if "__pycache__" not in name} == set(whole.namelist())
    python = environment(tmp_path / "environment")
    install(python, str(built))
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    exports = [line for line in section("environment") if line.startswith("export ")]
    done = subprocess.run(["sh", "-c", "\n".join([*exports, *section("test")])], cwd=tmp_path, text=True,
                          env={**variables, "PATH": path, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
                          capture_output=True, timeout=240, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.startswith(f"holmes {__version__}\n")
    (run,) = tmp_path.glob("tmp.*/runs/laptop/*/result.json")
    assert '"completed"' in run.read_text()
