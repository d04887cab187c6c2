"""Completion after verbs that compose no configuration: flags and run folders, as the shell asks for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_hpc import cli


@pytest.fixture(name="complete")
def completing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for name in ("mixed/20261129-120000-aaaa", "mixed/20261130-120000-bbbb", "other/20261128-120000-cccc"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").touch()
    (tmp_path / "runs" / "mixed" / "slurm-1").symlink_to("20261129-120000-aaaa")
    monkeypatch.chdir(tmp_path)

    def ask(line: str) -> list[str]:
        monkeypatch.setenv("COMP_LINE", line)
        assert cli.run(["-sc", "query=bash"]) == 0
        return capsys.readouterr().out.split()

    return ask


def test_no_word_gives_the_newest_runs(complete) -> None:
    assert complete("holmes logs ") == ["runs/mixed/20261130-120000-bbbb", "runs/mixed/20261129-120000-aaaa",
                                        "runs/other/20261128-120000-cccc"]


@pytest.mark.parametrize(("line", "found"), [
    ("holmes report runs/m", ["runs/mixed/"]),
    ("holmes compare runs/mixed/20261129-120000-aaaa runs/mixed/2026113", ["runs/mixed/20261130-120000-bbbb/"]),
    ("holmes trace runs/o", ["runs/other/"]), ("holmes evaluate runs/o", ["runs/other/"]),
    ("holmes sample runs/o", ["runs/other/"]), ("holmes export runs/o", ["runs/other/"]),
    ("holmes jobs oth", ["other"]), ("holmes jobs nowhere", []), ("holmes site ru", []), ("holmes nothing x", []),
    ("holmes jobs runs/[", [])])
def test_a_word_becomes_folders_that_begin_with_it(complete, line: str, found: list[str]) -> None:
    assert complete(line) == found


@pytest.mark.parametrize(("line", "flag"), [("holmes logs --", "--follow"), ("holmes jobs --w", "--watch"),
                                            ("holmes report --out", "--output"), ("holmes throughput --c", "--csv")])
def test_flags_are_those_of_the_commands_own_help(complete, line: str, flag: str) -> None:
    assert flag in complete(line) and all(each.startswith(line.split()[-1]) for each in complete(line))
