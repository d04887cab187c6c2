"""What Slurm's commands print in odd forms is read as far as it goes, and else counts as no answer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holmes_hpc import cli
from holmes_hpc.config.compose import compose
from holmes_hpc.runs import RunFolder, write_job
from holmes_hpc.submit.commands import SlurmCommandError, run_command
from holmes_hpc.submit.controller import ask_controller
from holmes_hpc.submit.fit import check_submission
from holmes_hpc.submit.once import find_jobs
from holmes_hpc.submit.states import read_states
from holmes_hpc.submit.window import read_queue

HEAD = b"JOBID|JOBID|STATE|PARTITION|NODELIST|REASON|NAME\n"
ROW = b"16|16|RUNNING|ib|ib-1|None|mixed\n"

Fake = Callable[[str, bytes], None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Make a command of Slurm that prints some bytes, whatever it is asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, printed: bytes) -> None:
        (folder / f"{name}.out").write_bytes(printed)
        (folder / name).write_text(f"#!/bin/sh\ncat {folder}/{name}.out\n")
        (folder / name).chmod(0o755)

    make("sacct", b"")
    return make


@pytest.mark.parametrize("text", [
    HEAD + ROW.replace(b"mixed", b"\xe9t\xe9"), HEAD + ROW.replace(b"mixed", b"\xff\xfe\x00"),
    HEAD + ROW + b"17|17|RUNNING|ib|ib-2|None|a|b\n", b"Welcome to the site\n\n" + HEAD + ROW,
    HEAD + b"17|17|RUNNING|ib|ib-2|None|two\rlines\n" + ROW,
], ids=["latin-1", "utf-16", "bar", "banner", "return"])
def test_names_of_any_bytes_and_banners_hide_no_job(fake: Fake, text: bytes) -> None:
    fake("squeue", text)
    assert read_states(["16"])["16"].state == "RUNNING"


@pytest.mark.parametrize("text", [
    HEAD + b"16|16|RUNNING|ib|ib-[1-|None|x\n", HEAD + b"sixteen|16|RUNNING|ib|ib-1|None|x\n",
    HEAD + b"16|-|RUNNING|ib|ib-1|None|x\n", b'{"jobs": [{}]}', b'{"jobs": ', b"[" * 100_000, HEAD + b"16|16|\n",
], ids=["list", "id", "own", "json", "torn", "deep", "state"])
def test_what_cannot_be_understood_counts_as_no_answer(
        fake: Fake, text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(tmp_path / "runs", "mixed")
    write_job(folder, job_id="16", emulated=False)
    folder.write_text(folder.config_path, "train: {steps: 20}\n")
    fake("squeue", text)
    assert cli.run(["jobs", str(folder.path)]) == 0
    told = capsys.readouterr()
    assert "16" in told.out and "Traceback" not in told.err
    assert cli.run(["cancel", str(folder.path)]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err


def test_accounting_that_cannot_be_understood_is_none(fake: Fake) -> None:
    fake("squeue", HEAD)
    fake("sacct", b"JobID|JobIDRaw|State|ExitCode|Partition|NodeList\n16|16|COMPLETED|zero|ib|ib-[1|\n")
    assert read_states(["16"]) == {}


def test_a_window_passes_banners_by_and_says_what_it_does_not_understand(fake: Fake) -> None:
    fake("squeue", b"Welcome\n7|PENDING|(null)\n")
    assert [queued.job for queued in read_queue(["7"])] == ["7"]
    fake("squeue", b"seven|PENDING|(null)\n")
    with pytest.raises(SlurmCommandError, match="seven"):
        read_queue(["7"])


def test_a_job_is_found_by_its_script_between_lines_of_other_forms(fake: Fake, tmp_path: Path) -> None:
    place = tmp_path / "mixed" / "20260101-000000-abcd" / "submission"
    fake("squeue", f"Welcome\nx|{place}/a.sh\n9|{place}/a.sh\n".encode() + b"8|/home/\xe9/x.sh\n")
    assert find_jobs(place) == ["9"]


@pytest.mark.parametrize("text", [b"", b"|||\n", b"[1-", b'{"sinfo": [{}]}', b"\xe9\x00",
                                  b"NODELIST|PARTITION\nn[1-99999]|p\n"])
def test_sinfo_of_another_form_refuses_no_submission(fake: Fake, text: bytes) -> None:
    """What sbatch can judge by itself is left to it."""
    fake("sinfo", text)
    fake("scontrol", b"\xff\n")
    check_submission(compose(["+cluster=mixed"]))
    assert cli.run(["site", "ours", "--output", "-"]) in (1, 2)


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "a\nb: 1", "a b", "-x"])
def test_a_cluster_file_goes_nowhere_else_by_its_name(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "nodes").write_text("NODELIST|PARTITION|STATE|GRES\nn1|p|idle|gpu:4\n")
    assert cli.run(["site", "--nodes", str(tmp_path / "nodes"), "--", name]) == 2
    assert "is no name for a cluster file" in capsys.readouterr().err
    assert not list((tmp_path).rglob("*.yaml"))


def test_a_file_of_nodes_that_lists_none_is_named_with_status_2(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("CgroupPlugin=cgroup/v1\n", "", "NODELIST|PARTITION\nn[1-|p\n", "{", "NodeName=n[3-1]\n"):
        (tmp_path / "nodes").write_text(text)
        assert cli.run(["site", "ours", "--nodes", str(tmp_path / "nodes"), "--output", "-"]) == 2, text
        assert f"holmes site: {tmp_path / 'nodes'}: " in capsys.readouterr().err


def test_a_slurm_conf_that_is_none_holds_nobody(fake: Fake, tmp_path: Path) -> None:
    fake("sinfo", b"")
    (tmp_path / "bin" / "sinfo").write_text("#!/bin/sh\necho refused >&2\nexit 1\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "conf").write_text(f"PartitionName=ib\ninclude {tmp_path}/pipe\n")
    for path in ("/dev/zero", str(tmp_path / "pipe"), str(tmp_path / "conf"), str(tmp_path)):
        assert ask_controller({"SLURM_CONF": path}).configured is None
    assert run_command(["sacct"]) == ""
