"""Files that helpers parse ahead read as they do without: whole ones the same, damaged ones with what is wrong."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from analysis import parsing
from analysis.parsing import Ahead, parse_whole
from analysis.reading import read_run, read_runs
from tests.run_folders import make_run, metric


@pytest.fixture(name="runs")
def runs_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Whole, torn, resumed, running and impossible metrics, a folder without any, one that is no text, a pipe."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(parsing, "LEAST_BYTES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    steps = [metric(step) for step in range(1, 6)]
    base = tmp_path / "runs"
    done = {"status": "completed", "steps": 5, "final_loss": 2.0, "error": None, "emulated": True}
    for number, options in enumerate((
            {"metrics": steps, "result": done}, {"metrics": steps, "torn": True}, {"metrics": [*steps, metric(3)]},
            {"metrics": steps}, {"metrics": [*steps, metric(6, step_seconds=-1.0)], "result": done},
            {"metrics": [metric(1, note="\u2028\x85 \u00fc")]}, {"metrics": []})):
        make_run(base, f"20261201-00000{number}-aaaa", **options)
    (make_run(base, "20261201-000007-aaaa") / "metrics.jsonl").write_bytes(b'{"step": 1}\n\xff\n{"step": 2}\n')
    pipe = make_run(base, "20261201-000008-aaaa") / "metrics.jsonl"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    return base


def _parsed_ahead(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the runs whose metrics helpers give, filled as they are read."""
    given: list[str] = []
    ask = Ahead.records

    def records(ahead: Ahead, path: Path) -> list[parsing.Record] | None:
        found = ask(ahead, path)
        given.extend([path.parent.name] if found is not None else [])
        return found

    monkeypatch.setattr(Ahead, "records", records)
    return given


def test_helpers_change_nothing_but_the_time(runs: Path, monkeypatch: pytest.MonkeyPatch,
                                             caplog: pytest.LogCaptureFixture) -> None:
    alone = [read_run(folder) for folder in sorted((runs / "mixed").iterdir())]
    told = [record.message for record in caplog.records]
    caplog.clear()
    given = _parsed_ahead(monkeypatch)
    assert read_runs(runs) == alone
    assert [record.message for record in caplog.records] == told
    assert [name[14] for name in given] == ["0", "2", "3", "4", "5"]


def test_a_helper_that_is_killed_leaves_its_files_to_the_reader(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = read_runs(runs)
    start = parsing._started

    def killed(paths: list[Path]) -> subprocess.Popen[bytes]:
        helper = start(paths)
        helper.send_signal(signal.SIGKILL)
        helper.wait()
        return helper

    monkeypatch.setattr(parsing, "_started", killed)
    assert read_runs(runs) == alone
    monkeypatch.setattr(parsing.sys, "executable", "/nowhere/python")
    monkeypatch.setattr(parsing, "_started", start)
    assert read_runs(runs) == alone


def test_a_run_that_goes_on_after_its_helper_has_read_it_is_read_as_it_is_now(runs: Path) -> None:
    folder = runs / "mixed" / "20261201-000003-aaaa"
    path = folder / "metrics.jsonl"
    with Ahead([path]) as ahead:
        (helper,) = ahead._helpers
        assert isinstance(helper.stdout, io.BufferedReader) and helper.stdout.peek(1)
        with path.open("a") as file:
            file.write(json.dumps(metric(6)) + "\n")
        assert [step["step"] for step in read_run(folder, ahead).metrics] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("cores", [{0}, {0, 1}], ids=["one core", "little to read"])
def test_no_helper_is_started_where_it_saves_nothing(cores: set[int], runs: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores)
    if len(cores) > 1:
        monkeypatch.setattr(parsing, "LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(parsing, "_started", None)
    assert len(read_runs(runs)) == 9


@pytest.mark.parametrize("text", [
    '{"step": 1}\n{"step": 2', '{"a": [{}\n{}]}\n', '{"step": 1}, {"step": 2}\n', '{"step": 1}{"step": 2}\n', "[1]\n",
    '{"a": ' + "[" * 65 + "]" * 65 + "}\n", "1\n"], ids=["torn", "two lines", "comma", "joined", "list",
                                                                "deep", "number"])
def test_what_is_not_well_formed_throughout_is_left_to_the_reader(text: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n' + text)
    assert parse_whole(str(path)) is None
    path.write_text('{"step": 0}\n{"loss": NaN}\n')
    assert json.dumps(parse_whole(str(path))) == '[{"step": 0}, {"loss": NaN}]'
