"""The code of a submission: what is written down of it, what a job finds changed, and the copy that it runs from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.foreign import read_object
from holmes_hpc.runs import RunFolder, code
from holmes_hpc.runs.code import CODE_FILE, DIFF_FILE, Code, other_code
from holmes_hpc.submit import snapshot
from holmes_hpc.submit.job import job_request
from holmes_hpc.submit.script import render_script
from holmes_hpc.submit.snapshot import copy_code, keep_code
from tests.runs_for_tests import ROOT, newest_run
from tests.slurm_cluster import SlurmCluster
from tests.slurm_sites import HOLDING, TINY, holmes, site

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small checkout that stands for ours: tracked, ignored and new files."""
    root = tmp_path / "checkout"
    for name, text in (("holmes_hpc/__init__.py", ""), ("holmes_hpc/a.py", "a = 1\n"), ("holmes_hpc/gone.py", ""),
                       ("conf/c.yaml", "x: 1\n"), (".gitignore", "ignored.py\nruns/\n")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*GIT, *words], cwd=root, check=True)
    monkeypatch.setattr(code, "_PACKAGE", root / "holmes_hpc")
    return root


def test_a_run_folder_keeps_the_state_of_the_code_and_a_job_names_what_changed(checkout: Path, tmp_path: Path) -> None:
    (checkout / "holmes_hpc" / "a.py").write_text("a = 2\n")
    plugin = tmp_path / "plugin.py"
    plugin.write_text("p = 1\n")
    folder = RunFolder.create(tmp_path / "runs", "run")
    Code.now([str(plugin)]).keep(folder)
    kept = read_object(folder.path / CODE_FILE) or {}
    assert kept["root"] == str(checkout) and kept["git"]["changed"] is True and len(kept["git"]["commit"]) == 40
    assert "-a = 1\n+a = 2\n" in (folder.path / DIFF_FILE).read_text()
    assert other_code(folder) is None
    (checkout / "holmes_hpc" / "a.py").write_text("a = 3\n")
    (checkout / "holmes_hpc" / "new.py").write_text("")
    plugin.write_text("p = 2\n")
    assert other_code(folder) == f"{checkout} differs in a.py, new.py, {plugin}"
    (folder.path / CODE_FILE).unlink()
    assert other_code(folder) is None, "a run of an earlier release says nothing"


def test_a_copy_holds_tracked_and_changed_files_and_new_code(checkout: Path, tmp_path: Path) -> None:
    (checkout / "holmes_hpc" / "a.py").write_text("a = 2\n")
    (checkout / "holmes_hpc" / "gone.py").unlink()
    for name in ("new.py", "ignored.py", "data.bin", "runs/mixed/x.py"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("1")
    copy_code(checkout, tmp_path / "copy")
    assert sorted(str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*")
                  if path.is_file()) == [".gitignore", "conf/c.yaml", "holmes_hpc/__init__.py", "holmes_hpc/a.py",
                                         "new.py"]
    assert (tmp_path / "copy" / "holmes_hpc" / "a.py").read_text() == "a = 2\n"
    shutil.rmtree(checkout / ".git")
    copy_code(checkout, tmp_path / "installed")
    assert sorted(os.listdir(tmp_path / "installed")) == ["holmes_hpc"]


def test_a_checkout_full_of_data_is_refused(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MOST_BYTES", 10)
    (checkout / "holmes_hpc" / "a.py").write_text("# " * 10)
    folder = RunFolder.create(tmp_path / "runs", "run")
    with pytest.raises(ConfigurationError, match="launch.snapshot=true would copy"):
        keep_code(compose(["+cluster=mixed", "launch.snapshot=true"]), [folder], folder.path)
    assert not (folder.path / "code").exists()


def test_the_script_of_a_copy_imports_from_it_alone(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                    ) -> None:
    config, folder = compose(["+cluster=mixed", "launch.snapshot=true"]), RunFolder.create(tmp_path / "runs", "run")
    (checkout / "holmes_hpc" / "a.py").write_text("a = 2\n")
    copy = keep_code(config, [folder], folder.path)
    (checkout / "holmes_hpc" / "a.py").write_text("a = 3\n")
    assert copy == folder.path / "code" == keep_code(config, [folder], folder.path), "made once"
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    text = render_script(job_request(config, folder, code=copy))
    exports = "\n".join(line for line in text.splitlines() if line.startswith("export PYTHON"))
    told = subprocess.run(["bash", "-c", f"{exports}\n{sys.executable} -m holmes_hpc.a; "
                                         f"{sys.executable} -c 'import holmes_hpc.a as m; print(m.a)'"],
                          cwd=checkout, capture_output=True, text=True, check=True)
    assert told.stdout == "2\n"
    assert str(checkout) in exports, "other modules of the working folder are found after the copy"
    assert "PYTHONSAFEPATH" not in render_script(job_request(config, folder))


@pytest.mark.slurm
def test_a_job_that_waits_says_that_the_code_changed_or_runs_from_a_copy(each_slurm: SlurmCluster) -> None:
    checkout = each_slurm.shared / "checkout"
    copy_code(ROOT, checkout)
    environment = {**HOLDING, "PYTHONPATH": str(checkout)}
    logs, jobs = {}, {}
    for kept in ("false", "true"):
        done = holmes(each_slurm, "train", [
            site(each_slurm), "+cluster=one", *TINY, "train.steps=1", "launch.wait=false", "+launch.sbatch.hold=true",
            f"launch.snapshot={kept}"], cwd=checkout, environment=environment)
        folder = newest_run(checkout)
        assert folder is not None
        jobs[kept] = int(done.stderr.partition("submitted job ")[2].partition(";")[0])
        logs[kept] = folder / "logs" / "rank-0.log"
    with (checkout / "holmes_hpc" / "launch" / "slurm" / "rank.py").open("a") as file:
        file.write("\n\nsys.stderr.write('edited while the job waited\\n')\n")
    for kept, job in jobs.items():
        each_slurm.run(f"scontrol release {job}")
        assert each_slurm.wait_for(job) == ["COMPLETED"], logs[kept].read_text()
    assert "edited while the job waited" in logs["false"].read_text()
    warning = f"WARNING: the code is not that of the submission: {checkout} differs in launch/slurm/rank.py."
    assert warning in logs["false"].read_text()
    assert warning in (logs["false"].with_name("notes.log")).read_text(), "who follows the job is told"
    assert "edited" not in logs["true"].read_text() and "WARNING" not in logs["true"].read_text()
