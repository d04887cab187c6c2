"""Paths that the system does not let us see, read or write: one message that names them, never a traceback."""

from __future__ import annotations

import importlib
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from holmes_hpc import cli, front, plan
from holmes_hpc.config.compose import compose
from holmes_hpc.config.plugins import load_plugins
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch import train
from holmes_hpc.launch.here.resume import resolve_resume
from holmes_hpc.paths import at_home, check_output
from holmes_hpc.runs.place import check_place
from tests.run_folders import make_run, metric
from tests.runs_for_tests import ROOT, environment, open_to_all, ordinary_user

LONG = "n" * 300
# As an ordinary user the tests may not be able to import any more.
ANALYSIS = [importlib.import_module(f"analysis.{name}") for name in (*cli.ANALYSIS_VERBS, "pictures", "timeline")]
importlib.import_module("importlib.readers")  # which importlib.resources looks for when it reads
READERS = ("compare", "jobs", "logs", "top", "throughput", "report", "calibrate")


@pytest.fixture(name="places")
def make_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Path]]:
    """Yield paths that cannot be seen, and stay an ordinary user meanwhile."""
    closed = tmp_path / "closed"
    (closed / "inside").mkdir(parents=True)
    (closed / "plugin.py").write_text("")
    closed.chmod(0)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("A line of text.\n" * 1000)
    (tmp_path / "round").symlink_to("round")
    open_to_all(tmp_path)
    tmp_path.chmod(0o777)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = {"Permission denied": closed / "inside", "File name too long": tmp_path / LONG,
             "Too many levels of symbolic links": tmp_path / "round"}
    with ordinary_user():
        yield found


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to a pipe", "socket"])
def test_no_file_is_put_in_the_place_of_what_is_none(kind: str, tmp_path: Path,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    """As root `holmes tokenize /dev/null x` left a file there, for everybody on the machine."""
    path, text = tmp_path / "there", tmp_path / "a.txt"
    text.write_text("words\n")
    if kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    elif kind == "device":
        path = Path("/dev/none of ours")
    else:
        os.mkfifo(tmp_path / "pipe")
        path = tmp_path / "pipe" if kind == "pipe" else path
        if kind == "link to a pipe":
            path.symlink_to(tmp_path / "pipe")
    before = os.lstat(path) if kind != "device" else None
    assert cli.run(["tokenize", str(path), str(text)]) == 2
    message = capsys.readouterr().err
    assert f"OUT {path}: it is no regular file" in message and "Traceback" not in message
    for option in ("--to", "--output"):
        with pytest.raises(ConfigurationError, match=f"{option} .*no regular file"):
            check_output(path, option)
    assert (os.lstat(path) if path.exists() else None) == before


def test_a_name_that_is_none_is_refused_for_a_file_to_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("", ".", "/"):
        assert cli.run(["tokenize", name, "a.txt"]) == 2
        assert "it names no file" in capsys.readouterr().err


FACTS = ["Permission denied", "File name too long", "Too many levels of symbolic links"]


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize("verb", READERS)
def test_commands_say_that_a_run_cannot_be_read(verb: str, fact: str, places: dict[str, Path],
                                                capsys: pytest.CaptureFixture[str]) -> None:
    path = str(places[fact])
    assert cli.run([verb, *[path] * (2 if verb == "compare" else 1)]) == 2
    error = capsys.readouterr().err
    assert path in error and f"cannot be read: {fact};" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("fact", FACTS)
def test_settings_that_name_such_paths_are_refused(fact: str, places: dict[str, Path]) -> None:
    path = places[fact]
    looks: list[tuple[str, Callable[[], object]]] = [
        ("run.folder", lambda: check_place(path, "name")),
        ("data.cache", lambda: train.check_before(compose(["+cluster=mixed", "data=text", "data.path=text",
                                                           f"data.cache={path}"]))),
        ("train.resume", lambda: resolve_resume(compose(["+cluster=mixed", f"train.resume={path}"]))),
        ("plugins.0", lambda: load_plugins(OmegaConf.create({"plugins": [f"{path}.py"]}))),
        ("hydra.searchpath", lambda: compose(["+cluster=mixed", f"hydra.searchpath=[{path}]"])),
    ]
    for setting, look in looks:
        if setting == "plugins.0" and "links" in fact:
            continue  # with .py behind, it is another name
        with pytest.raises(ConfigurationError) as refused:
            look()
        assert setting in str(refused.value) and fact in str(refused.value)


def test_long_names_of_runs_are_refused_by_their_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="run.name=nnn.* has 300 bytes"):
        check_place(tmp_path, LONG)


def test_a_cache_where_only_the_system_writes_is_refused_before_the_ranks(places: dict[str, Path]) -> None:
    with pytest.raises(ConfigurationError, match="data.cache=/proc/x cannot be written: /proc: "):
        train.check_before(compose(["+cluster=mixed", "data=text", "data.path=text", "data.cache=/proc/x"]))


def test_a_link_to_nothing_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(ConfigurationError, match=r"gone cannot be written: No such file or directory"):
        check_place(tmp_path / "gone", "name")


def test_a_plugin_that_may_not_be_read_is_no_fault_of_its_code(places: dict[str, Path]) -> None:
    path = places["Permission denied"].parent / "plugin.py"
    with pytest.raises(ConfigurationError, match=f"plugins.0={path}: {path} cannot be read: Permission denied"):
        load_plugins(OmegaConf.create({"plugins": [str(path)]}))


@pytest.mark.parametrize("name", ["plan.json", "metrics.jsonl", "config.yaml"])
def test_a_run_whose_files_may_not_be_read_is_told_from_a_page_that_cannot_be_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "runs", metrics=[metric(step, 0.1) for step in range(1, 5)])
    open_to_all(run)
    page = tmp_path / "made" / "page.html"
    tmp_path.chmod(0o555)
    with ordinary_user():
        assert cli.run(["report", str(run), "--output", str(page)]) == 2
    tmp_path.chmod(0o755)
    assert f"{page.parent}: cannot be written: Permission denied; name another file by --output" in \
        capsys.readouterr().err
    (run / name).chmod(0)
    with ordinary_user():
        assert cli.run(["report", str(run), "--output", str(page)]) == 2
    assert f"{run / name} cannot be read: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "said"), [
    (PermissionError(13, "Permission denied", "/there/x"), ["holmes plan: /there/x: Permission denied"]),
    (OSError(28, "No space left on device", "/there/x"), ["holmes plan: /there/x: No space left on device"]),
    (BrokenPipeError(32, "Broken pipe"), []),
])
def test_what_nobody_foresaw_is_one_line(error: OSError, said: list[str], monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    def act(config: object) -> front.Outcome:
        raise error

    for arguments in (["+cluster=mixed"], ["+cluster=mixed", "hydra.verbose=false", "hydra.job.chdir=false"]):
        assert front.main(front.Command("plan", "", act), arguments) == 1
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == len(said) and all(line.startswith(words) for line, words in zip(lines, said, strict=True))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert front.main(front.Command("plan", "", act), ["+cluster=mixed"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_stdout_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "holmes_hpc.cli", "--version"], stdout=full, env=environment(),
                              stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("holmes: stdout cannot be written: No space left on device"), done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("way", ["write", "rich", "at the end", "front"])
def test_a_reader_that_has_gone_is_no_failure(way: str) -> None:
    """`head -1` leaves a pipe without a reader; what a command found before stays its status."""
    program = f"""
import sys
from rich.console import Console
from holmes_hpc import front, program
def write():
    sys.stdout.write('x' * 200000) if {way!r} != 'rich' else [Console().print('x') for _ in range(9)]
    sys.stdout.flush()
    return 1
def end():
    sys.stdout.write('x')
    return 3
plan = front.Command('plan', '', lambda config: (write(), None))
act = {{'at the end': end, 'front': lambda: front.main(plan, ['+cluster=mixed'])}}.get({way!r}, write)
sys.exit(program.run_program('doctor', act))
"""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, text=True,
                              env=environment() | {"PYTHONUNBUFFERED": ""}, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (3 if way == "at the end" else 0, "")


PROGRAMS = ["holmes_hpc.jobs", "holmes_hpc.logs", "holmes_hpc.calibrate", "holmes_hpc.site", "holmes_hpc.compare",
            "holmes_hpc.plan", "holmes_hpc.train", "holmes_hpc.doctor", "holmes_hpc.probe", "analysis.report",
            "analysis.throughput", "holmes_hpc.cancel", "holmes_hpc.sweep", "holmes_hpc.cli", "holmes_hpc.settings",
            "holmes_hpc.trace", "holmes_hpc.top", "holmes_hpc.tokenize", "holmes_hpc.evaluate", "holmes_hpc.export",
            "holmes_hpc.sample"]
OF_OUR_OWN = {"analysis.parsing"}
"""What programs start for themselves."""


def test_all_programs_are_known() -> None:
    found = {f"{path.parent.name}.{path.stem}" for folder in ("holmes_hpc", "analysis")
             for path in (ROOT / folder).glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    assert found == {*PROGRAMS, *OF_OUR_OWN}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("module", PROGRAMS)
def test_every_program_says_in_one_line_that_the_disk_is_full(module: str, monkeypatch: pytest.MonkeyPatch,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as end:
            runpy.run_module(module, run_name="__main__")
    assert end.value.code == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "stdout cannot be written: No space left on device" in lines[0], lines


@pytest.mark.parametrize(("picture", "message"), [
    ("nowhere/plan.png", "there is no folder"), ("folder.png", "is a folder"), ("closed/plan.png", "Permission denied"),
    ("shut/plan.png", "Permission denied"),
])
def test_a_picture_that_cannot_be_drawn_is_refused_before_the_search(
    picture: str, message: str, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path.cwd() / "folder.png").mkdir()
    (Path.cwd() / "shut").mkdir(mode=0o555)

    def search(*_: object, **__: object) -> None:
        raise AssertionError("planned before the check")

    monkeypatch.setattr("holmes_hpc.planner.plan", search)
    with pytest.raises(ConfigurationError, match=f"picture.*{message}"):
        plan.act(compose(["+cluster=mixed", f"picture={picture}"]))


@pytest.mark.parametrize("variable", ["$HOME", "${HOME}"])
def test_a_variable_that_no_shell_replaces_is_no_name(variable: str, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for setting in ("run.folder", "data.path", ""):
        with pytest.raises(ConfigurationError) as error:
            at_home(f"{variable}/runs", setting)
        begin = f"{setting}=" if setting else ""
        assert str(error.value).startswith(f"{begin}{variable}/runs: {variable} is no variable here")
    assert at_home("a$(id)") == Path("a$(id)")
    (tmp_path / variable).mkdir()
    assert at_home(variable) == Path(variable)
