"""Damaged run folders are named, and never shown as something else."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import analysis
from analysis.report import main as report
from analysis.throughput import main as throughput
from holmes_hpc import cli
from tests.run_folders import make_run, metric


@pytest.fixture(name="whole")
def whole_run(tmp_path: Path) -> Path:
    metrics = [{"step": step, "loss": 5.0 - step, "tokens": 4096, "step_seconds": 0.1, "tokens_per_second": 40960.0,
                "bytes_ethernet": 1000, "emulated": True} for step in (1, 2, 3, 4)]
    return make_run(tmp_path / "runs", "20261129-120000-aaaa", metrics=metrics)


def test_a_whole_run_has_no_damage(whole: Path) -> None:
    (row,) = analysis.runs(whole).to_dict("records")
    assert row["damages"] == ""


@pytest.mark.parametrize(("name", "words"), [
    ("config.yaml", "model and cluster are unknown"), ("plan.json", "layout and prediction are unknown"),
    ("job.json", "where it ran is unknown")])
@pytest.mark.parametrize("kind", ["missing", "empty", "cut", "list"])
def test_a_file_that_is_lost_or_none_is_named(whole: Path, name: str, words: str, kind: str) -> None:
    path = whole / name
    text = path.read_text()
    {"missing": path.unlink, "empty": lambda: path.write_text(""),
     "cut": lambda: path.write_text("{" + text[: len(text) // 2]), "list": lambda: path.write_text("[1, 2]")}[kind]()
    (row,) = analysis.runs(whole).to_dict("records")
    assert f"{name} {'is missing' if kind == 'missing' else 'is damaged or empty'} ({words})" in row["damages"]


def test_a_run_without_its_plan_is_not_called_real(whole: Path) -> None:
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    (whole / "metrics.jsonl").write_text("".join(json.dumps({**line, "emulated": False}) + "\n" for line in lines))
    (whole / "plan.json").unlink()
    job = json.loads((whole / "job.json").read_text())
    for job_id, machine in ((None, "unknown"), ("4711", "real")):
        (whole / "job.json").write_text(json.dumps({**job, "job_id": job_id}))
        assert analysis.runs(whole)["machine"].tolist() == [machine]


@pytest.mark.parametrize("others", [{}, {"tokens": "many"}], ids=["alone", "beside another"])
def test_a_figure_of_400_digits_is_unknown_and_an_error_that_is_no_text_is_shown(whole: Path, others: dict[str, str],
                                                                                capsys: pytest.CaptureFixture[str]
                                                                                ) -> None:
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    lines[0] |= {"step_seconds": 10**400, **others}
    (whole / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (whole / "result.json").write_text(json.dumps({"status": "failed", "error": [1, "a"]}))
    (row,) = analysis.runs(whole).to_dict("records")
    assert "taken as unknown: step_seconds" in row["damages"] and row["step_seconds"] == pytest.approx(0.1)
    assert throughput([str(whole), "--no-pictures"]) == 0 and report([str(whole)]) == 0
    assert "failed: [1, 'a']" in capsys.readouterr().out and "[1, &#x27;a&#x27;]" in (whole / "report.html").read_text()


def test_figures_that_cannot_be_are_unknown_and_named(whole: Path) -> None:
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    wrong = {"step_seconds": -1.0, "tokens_per_second": "fast", "bytes_ethernet": -5}
    (whole / "metrics.jsonl").write_text("".join(json.dumps({**line, **wrong}) + "\n" for line in lines))
    table = analysis.load(whole)
    assert table["step_seconds"].isna().all() and table["tokens_per_second"].isna().all()
    (row,) = analysis.runs(whole).to_dict("records")
    assert row["damages"].endswith("taken as unknown: bytes_ethernet, step_seconds, tokens_per_second")


def test_a_later_version_is_read_as_far_as_it_is_known(whole: Path) -> None:
    (whole / "result.json").write_text(json.dumps({"status": "hibernated", "steps": 3, "mood": "good"}))
    (row,) = analysis.runs(whole).to_dict("records")
    assert row["status"] == "hibernated" and "unknown status 'hibernated'" in row["damages"]


def test_the_table_the_page_and_the_warning_name_each_bad_folder(whole: Path, capsys: pytest.CaptureFixture[str],
                                                                 caplog: pytest.LogCaptureFixture) -> None:
    runs = whole.parent
    bad = runs / "20261129-120000-bbbb"
    shutil.copytree(whole, bad)
    (bad / "config.yaml").unlink()
    (runs / "20261129-120000-cccc" / "logs").mkdir(parents=True)
    assert throughput(["--no-pictures", str(runs)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{bad.name} is damaged: config.yaml is missing" in shown and "nan" not in shown
    assert "20261129-120000-cccc: an empty run folder" in caplog.text
    assert report([str(runs), "--output", str(runs / "page.html")]) == 0
    assert "config.yaml is missing" in " ".join((runs / "page.html").read_text().split())


@pytest.mark.parametrize("file", ["multirun.yaml", "sweep.json"])
def test_the_folder_of_a_sweep_is_no_empty_run(file: str, whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs = whole.parent.parent
    for stamp in ("20261129-120000-cccc", "20261129-120000-dddd"):
        (runs / "sweeps" / stamp).mkdir(parents=True)
    (runs / "sweeps" / "20261129-120000-cccc" / file).write_text("{}")
    assert len(analysis.runs(runs)) == 1
    assert "dddd: an empty run folder" in caplog.text and "cccc" not in caplog.text


@pytest.mark.parametrize("name", [
    pytest.param(b"20261003-120000-\xff\xfe", id="no UTF-8"),
    pytest.param(b"$\\bad{$", id="a broken formula", marks=pytest.mark.long),
    pytest.param(b"a\x1b[31m\nb\t", id="escapes", marks=pytest.mark.long),
    pytest.param(b"<script>", id="markup"),
    pytest.param("ü".encode() * 60, id="long", marks=pytest.mark.long)])
def test_runs_of_any_name_get_tables_pictures_and_a_page(name: bytes, tmp_path: Path,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    made = make_run(tmp_path, metrics=[metric(step) for step in range(1, 8)], timeline_steps=[7])
    folder = made.rename(made.with_name(os.fsdecode(name)))
    plan = json.loads((folder / "plan.json").read_text())
    plan["ranks"][0]["node"] = os.fsdecode(name).encode(errors="replace").decode()
    (folder / "plan.json").write_text(json.dumps(plan))
    for command in ("throughput", "report"):
        assert cli.run([command, str(folder)]) == 0
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err and "\x1b[31m" not in captured.out + captured.err
    page = (folder / "report.html").read_text()
    assert page.count("<script") == 1 and "timeline" in page and (folder / "timeline.png").stat().st_size > 5000
