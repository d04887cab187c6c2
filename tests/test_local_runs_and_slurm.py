"""Runs of this machine and damaged job ids, in the commands that are about Slurm; files read while a sweep runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from holmes_hpc import cancel, cli
from holmes_hpc.config.written_files import text_as_written, text_as_yaml_reads_it
from holmes_hpc.runs import RunFolder, read_result
from holmes_hpc.submit.job import submitted_run


def run_folder(base: Path, job: object | None) -> RunFolder:
    folder = RunFolder(base / "mixed" / "20261129-201530-x7k2")
    folder.path.mkdir(parents=True)
    folder.config_path.write_text("train: {steps: 3}\n")
    if job is not None:
        folder.job_path.write_text(json.dumps(job))
    return folder


def test_cancel_leaves_a_run_of_this_machine_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path, {"job_id": None, "main_pid": 1, "emulated": False})
    assert cancel.main([str(folder.path), "--folder", str(tmp_path)]) == 0
    assert read_result(folder) is None
    assert "is no job of Slurm: end it where it runs" in capsys.readouterr().out


@pytest.mark.parametrize("job_id", ["x_y", "--state=PENDING", ["a"], "Submitted batch job 4711", True, {}, "1_2_3", ""])
def test_what_is_no_job_id_is_no_job(tmp_path: Path, job_id: object) -> None:
    assert submitted_run(run_folder(tmp_path, {"job_id": job_id})) is None
    assert cli.run(["jobs", "--folder", str(tmp_path)]) in (0, 2)


@pytest.mark.parametrize("job_id", [4711, "4711", "4711_3"])
def test_a_job_id_is_read(tmp_path: Path, job_id: object) -> None:
    found = submitted_run(run_folder(tmp_path, {"job_id": job_id}))
    assert found is not None and found.job_id == str(job_id)


def test_files_of_programs_are_read_as_yaml_says_while_hydra_composes() -> None:
    text = "{dry_run: false, nodes: 2, word: off}"
    with text_as_written():
        assert yaml.load(text, yaml.SafeLoader)["dry_run"] == "false"
        with text_as_yaml_reads_it():
            assert yaml.load(text, yaml.SafeLoader) == {"dry_run": False, "nodes": 2, "word": False}
        assert yaml.load(text, yaml.SafeLoader)["dry_run"] == "false"
    assert yaml.load(text, yaml.SafeLoader)["dry_run"] is False
