"""Sweeps that meet a limit on submitted jobs: the rest is submitted as jobs end, by whoever is there."""

from __future__ import annotations

import json
import logging
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holmes_hpc import cli
from holmes_hpc.bounded import Answer
from holmes_hpc.launch.sweep import submit_what_waits, sweep
from holmes_hpc.runs import read_result, write_result
from holmes_hpc.runs.lease import lease_path
from holmes_hpc.runs.sweeps import Sweep
from holmes_hpc.submit import job, live, lost, onward, still_to_come
from holmes_hpc.submit.script import NEXT_RUN
from tests.played_slurm import configs, end, ending_as_they_come, play_slurm, shown, submitted_jobs


@pytest.fixture(name="slurm")
def played_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return play_slurm(tmp_path, monkeypatch)


def test_what_does_not_fit_is_submitted_as_jobs_end(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    caplog: pytest.LogCaptureFixture) -> None:
    (slurm / "limit").write_text("5")
    ending_as_they_come(slurm, monkeypatch)
    with caplog.at_level(logging.INFO):
        outcomes = sweep(*configs(6), tmp_path / "runs" / "sweeps" / "one")
    assert [status for status, _ in outcomes or ()] == [0] * 6
    assert submitted_jobs(slurm) == [str(number) for number in range(1, 7)]
    assert "Slurm takes no more jobs now (sbatch refused the job (het): sbatch: error: QOSMaxSubmitJob" in caplog.text
    assert "job 2: train.seed=1 (2 of 6)" in caplog.text, "progress is said as jobs go in"


def test_an_array_that_does_not_fit_is_halved(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm / "limit").write_text("3")
    ending_as_they_come(slurm, monkeypatch)
    outcomes = sweep(*configs(7, "ib"), tmp_path / "runs" / "sweeps" / "one")
    assert [status for status, _ in outcomes or ()] == [0] * 7
    arrays = [(slurm / "scripts" / job).read_text().partition("#SBATCH --array=")[2].split("\n")[0]
              for job in submitted_jobs(slurm)]
    assert arrays[0] == "0-1" and sum(2 if array else 1 for array in arrays) == 7, arrays


def test_a_job_that_never_fits_fails_with_the_limits_name(slurm: Path, tmp_path: Path) -> None:
    (slurm / "limit").write_text("1")
    place = tmp_path / "runs" / "sweeps" / "one"
    assert [status for status, _ in sweep(*configs(2), place) or ()] == [1, 1]
    begun = Sweep.read(place)
    assert begun is not None
    assert "QOSMaxSubmitJob" in (read_result(begun.folders[0]) or {})["error"]


def test_a_job_that_ends_as_the_next_one_is_refused_makes_room_for_it(slurm: Path, tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm / "limit").write_text("2")

    def nothing_queued(config: Any) -> bool:
        end(slurm, max(map(int, submitted_jobs(slurm))))
        return False

    monkeypatch.setattr("holmes_hpc.submit.sweep._anything_queued", nothing_queued)
    ending_as_they_come(slurm, monkeypatch)
    outcomes = sweep(*configs(3), tmp_path / "runs" / "sweeps" / "one")
    assert [status for status, _ in outcomes or ()] == [0] * 3


@pytest.mark.parametrize("handed_on", [True, False])
def test_who_watches_a_sweep_sees_what_its_jobs_submit_and_ends_where_nobody_submits_more(
        slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
        handed_on: bool) -> None:
    (slurm / "limit").write_text("2")
    place = tmp_path / "runs" / "sweeps" / "one"
    sweep(*configs(3, "mixed", "launch.wait=false"), place)
    assert len(submitted_jobs(slurm)) == 1

    def sleep(seconds: float) -> None:
        for path in (slurm / "active").iterdir():
            end(slurm, int(path.name))
            if handed_on:
                submit_what_waits(place, 0.0)

    monkeypatch.setattr(live, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    monkeypatch.setattr(still_to_come, "LOOK_SECONDS", 0.0)
    assert cli.run(["jobs", str(place), "--watch"]) == 0
    table = capsys.readouterr().out.rpartition("job  run")[2]
    assert table.count("completed") == (3 if handed_on else 1)
    assert table.count("to be submitted") == (0 if handed_on else 2)
    assert ("2 of the runs of" in table and "are not submitted yet" in table) != handed_on


@pytest.mark.parametrize("refused", [False, True])
def test_the_last_job_goes_on_with_the_next_run_where_no_other_has_room(
        slurm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, refused: bool) -> None:
    (slurm / "limit").write_text("2")
    place = tmp_path / "runs" / "sweeps" / "one"
    sweep(*configs(2, "mixed", "launch.wait=false"), place)
    (slurm / "refused").write_text(str(int(refused)))
    first, second = (folder for _, folder in sorted((Sweep.read(place) or Any).folders.items()))
    write_result(first, "completed", error=None, emulated=False)
    submit_what_waits(place, 0.0, "1")
    assert (slurm / "requeued").read_text() == "requeue 1\n"
    ended, next_one = job.submitted_run(first), job.submitted_run(second)
    assert ended is not None and ended.gone_on != refused
    assert (next_one is None) == refused and (second.path / "before").is_symlink() != refused
    if refused:
        assert "job 1 cannot go on with another run" in caplog.text and "--resume` does" in caplog.text
        return
    assert next_one is not None and (next_one.job_id, next_one.gone_on) == ("1", False)
    assert lost.strangers([next_one]) == set(), "its script is that of the first"
    script = f'run="{first.path}"\n{NEXT_RUN}\necho "$run" >&3'
    done = subprocess.run(["bash", "-c", f"exec 3>&1; {script}"], env={"SLURM_JOB_ID": "1"}, text=True,
                          stdout=subprocess.PIPE, check=True)
    assert done.stdout == f"{second.path}\n"
    assert [line.split()[2] for line in shown(place)] == ["completed", "pending"]


def test_jobs_of_a_sweep_submit_what_waits_and_nothing_else(slurm: Path, tmp_path: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def in_this_process(words: list[str], seconds: float) -> Answer:
        asked.append(words[6:])
        submit_what_waits(Path(words[3]), 0.0)
        return Answer(0, b"", b"")

    monkeypatch.setattr(onward, "run_bounded", in_this_process)
    (slurm / "limit").write_text("5")
    place = tmp_path / "runs" / "sweeps" / "one"
    sweep(*configs(5, "mixed", "launch.wait=false"), place)
    begun = Sweep.read(place)
    assert begun is not None and begun.for_room and begun.waiting == [2, 3, 4]
    end(slurm, 1, "failed")
    onward.go_on(begun.folders[0], "1")
    assert submitted_jobs(slurm) == ["1", "2", "3"] and asked[-1] == ["0.0"], "job 2 will try as well"
    lease_path(begun.submitting).write_text(json.dumps({"stays": True, "host": "another", "pid": 1, "start": 1}))
    end(slurm, 2)
    onward.go_on(begun.folders[1], "2")
    assert len(asked) == 1, "a command follows the sweep, and job 3 will look again"
    lease_path(begun.submitting).unlink()
    onward.go_on(begun.folders[1], "2")
    assert submitted_jobs(slurm) == ["1", "2", "3", "4"]
    end(slurm, 3)
    for name in ("active", "jobs"):  # job 4 ends as well, and both live still in Slurm's eyes
        (slurm / name / "3").write_text("3|3|RUNNING|ib||None|x" if name == "jobs" else "2")
    write_result(begun.folders[3], "failed", error=None, emulated=False)
    onward.go_on(begun.folders[2], "3")
    onward.go_on(begun.folders[3], "4")
    assert asked[-2:] == [["0.0"], [str(onward.ROOM_SECONDS), "--job", "4"]], \
        "the youngest waits for room"
    end(slurm, 3)
    assert cli.run(["cancel", str(place)]) == 0
    onward.go_on(begun.folders[3], "4")
    assert submitted_jobs(slurm) == ["1", "2", "3", "4"], "a failed and a cancelled run are left"
