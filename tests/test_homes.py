"""`~` in front of a path: the home of a user who is not there, or of one who has none, is one message or not needed."""

from __future__ import annotations

import pwd
import re
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc import calibrate, cli
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.here.resume import resolve_resume
from holmes_hpc.paths import at_home
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.place import check_place
from tests.run_folders import make_run, metric
from tests.runs_for_tests import ROOT

ABSENT = "~nobody-of-this-name/x"
COMMANDS = [
    *([verb, ABSENT] for verb in ("jobs", "logs", "cancel", "calibrate", "trace", "evaluate", "report",
                                 "throughput")),
    ["compare", ABSENT, ABSENT],
    ["sample", ABSENT, "words"], ["sweep", ABSENT, "--resume"], ["export", ABSENT, "--to", "x"],
    ["tokenize", "out", ABSENT], ["tokenize", "out", "text", "--tokenizer", ABSENT],
    *(["plan", "+cluster=laptop", override] for override in (
        f"cluster.measured={ABSENT}", f"cluster.calibrated={ABSENT}", f"cluster.profiled={ABSENT}",
        f"model.from_pretrained={ABSENT}", f"plugins=[{ABSENT}.py]", f"hydra.searchpath=[{ABSENT}]")),
]


@pytest.fixture(name="homeless")
def make_homeless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Be a user that the system does not know, without HOME, as in a container that is started for any user id."""
    def unknown(number: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: " ".join(argv)[:50])
def test_a_user_who_is_not_there_is_one_message(argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    assert cli.run(argv) == 2
    said = capsys.readouterr().err
    assert "there is no user nobody-of-this-name here" in said and ABSENT in said and said.count("\n") == 1


def test_settings_of_a_run_that_name_such_a_home_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"run\.folder=~nobody.*there is no user"):
        check_place(Path(ABSENT), "name")
    with pytest.raises(ConfigurationError, match=r"train\.resume=~nobody.*there is no user"):
        resolve_resume(compose(["+cluster=laptop", f"train.resume={ABSENT}"]))


def test_who_has_no_home_plans_reads_runs_and_is_told_where_one_is_needed(
        homeless: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`Could not determine home directory.` was all that such a user saw of any command."""
    assert cli.run(["plan", "+cluster=laptop", "model=gpt_tiny", "output=json"]) == 0
    assert cli.run(["plan", "--help"]) == 0
    run = make_run(homeless / "runs", metrics=[metric(1)], result={"status": "completed", "steps": 1})
    assert cli.run(["logs", str(run)]) == 0
    capsys.readouterr()
    assert cli.run(["plan"]) == 2 and "no cluster is named" in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match="you have no home folder here.*XDG_CONFIG_HOME"):
        calibrate.own_place("--output")
    with pytest.raises(ConfigurationError, match="you have no home folder here"):
        at_home("~/runs")
    monkeypatch.setenv("HOME", str(homeless))
    assert at_home("~/runs") == homeless / "runs" and at_home("a/~b") == Path("a/~b")


def test_a_path_is_brought_home_by_one_function() -> None:
    """`Path.expanduser` raises RuntimeError, which nobody expects of a path."""
    found = [str(path.relative_to(ROOT)) for folder in ("holmes_hpc", "analysis", "hydra_plugins")
             for path in (ROOT / folder).rglob("*.py") if re.search(r"\.expanduser\(\)|Path\.home\(", path.read_text())]
    assert sorted(found) == ["holmes_hpc/config/folders.py", "holmes_hpc/paths.py"]


def test_the_name_of_a_foreign_runs_cluster_leads_nowhere_else() -> None:
    class Run:
        config = compose(["+cluster=laptop"])
        folder = RunFolder(Path("/there"))

    Run.config.cluster.name = "../../../elsewhere"
    with pytest.raises(ConfigurationError, match="/there: its cluster is called '../../../elsewhere'.*--output"):
        calibrate._cluster_name([Run()])  # type: ignore[list-item]
