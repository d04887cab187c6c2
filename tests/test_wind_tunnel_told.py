"""Every command says of a wind tunnel that it was one, why it has no speed if it has none, and that it has no model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.throughput import main as throughput
from holmes_hpc import cli
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.here.resume import resolve_resume
from holmes_hpc.launch.in_turn import COLUMNS, Ended, remarks
from holmes_hpc.runs import RunFolder, describe_job, write_result
from holmes_hpc.runs.circumstances import circumstances, is_timed
from tests.run_folders import make_plan, metric


def made(base: Path, *, timed: bool = True, valid: bool = True, others: float | None = None) -> RunFolder:
    """Return the folder of a run that has completed on the emulated cluster."""
    compute = "timed" if timed else "real"
    folder = RunFolder.create(base, "tunnel", {
        "config.yaml": f"cluster: {{emulate: {{compute: {compute}}}}}\ntrain: {{steps: 4}}\n",
        "job.json": json.dumps(describe_job(emulated=True, environment={})), "plan.json": make_plan().to_json()})
    assert circumstances(folder) == ("emulated, timed" if timed else "emulated"), "before its first step too"
    for step in range(1, 5):
        row = {**metric(step, 0.1), "emulated": True, "loss": None if timed else 2.0}
        if timed:
            row["timed"] = True
            if step == 1 or not valid:
                row |= {"tokens_per_second": None, "step_seconds": None, "not_valid": "ranks woke up too late"}
        folder.append_metrics(row)
    action = {"step": 4, "action": "0F0", "kind": "F", "pipeline": 0, "stage": 0, "microbatch": 0, "start": 0.0,
              "end": 0.1}
    folder.ranks.mkdir(exist_ok=True)
    folder.timeline_path(0).write_text(json.dumps(action) + "\n")
    write_result(folder, "completed", error=None, emulated=True, others_held_cores=others)
    return folder


@pytest.mark.parametrize(("kind", "said", "unsaid"), [
    ({}, ["emulated, timed", "40,960"], ["busy", "no tokens/s"]),
    ({"valid": False}, ["emulated, timed", "no tokens/s: 0 of 3 steps are valid", "ranks woke up too late"],
     ["40,960"]),
    ({"others": 1.5}, ["emulated, timed", "no tokens/s: other programs held 1.5 cores"], ["40,960"]),
    ({"timed": False, "others": 1.5}, ["emulated", "40,960", "busy"], ["timed", "no tokens/s"]),
], ids=["valid", "late", "timed-busy", "emulated-busy"])
def test_jobs_and_the_table_of_a_sweep_say_how_a_run_was_measured(
        kind: dict[str, bool], said: list[str], unsaid: list[str], tmp_path: Path,
        capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path, **kind)
    assert cli.run(["jobs", "--folder", str(tmp_path)]) == 0
    jobs = capsys.readouterr().out.replace(str(tmp_path), "")
    ended = Ended("", 0, 4, folder)
    table = "\n".join([ended.cells()[COLUMNS.index("tokens/s")], *remarks([ended])])
    for shown in (jobs, table):
        assert all(words in shown for words in said), shown
        assert not any(words in shown for words in unsaid), shown
    assert ("(busy)" in jobs) == ("(busy)" in table) == ("busy" in said)


def test_compare_and_trace_and_the_report_say_how_a_run_was_measured(tmp_path: Path,
                                                                     capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path, valid=False)
    assert cli.run(["compare", str(folder.path), str(folder.path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "is a run: emulated, timed; no tokens/s: 0 of 3 steps are valid" in shown
    assert "measured step" not in shown
    assert cli.run(["trace", str(folder.path)]) == 0
    assert "(emulated, timed)" in capsys.readouterr().out
    assert json.loads((folder.path / "trace-step-4.json").read_text())["otherData"]["measured"] == "emulated, timed"
    assert throughput([str(folder.path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "has no speed: 0 of 3 steps are valid" in shown and "a wind tunnel has no loss" in shown
    assert not (folder.path / "loss.png").exists()
    assert cli.run(["report", str(folder.path), "--output", str(tmp_path / "page.html")]) == 0
    assert "0 of 3 steps are valid" in (tmp_path / "page.html").read_text()


def test_a_wind_tunnel_has_no_model_to_go_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path)
    assert is_timed(folder)
    for words in (["export", str(folder.path), "--to", str(tmp_path / "out")], ["evaluate", str(folder.path)],
                  ["sample", str(folder.path), "a"]):
        assert cli.run(words) == 2, words
        told = capsys.readouterr().err
        assert "wind tunnel" in told and "hold no weights" in told and "checkpoint_every" not in told, told
    with pytest.raises(ConfigurationError, match="was a wind tunnel .* hold no weights"):
        resolve_resume(compose(["+cluster=mixed", f"train.resume={folder.path}"]))
