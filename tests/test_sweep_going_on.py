"""Sweeps that are cut off or cancelled: gone on with, and none submitted twice."""

from __future__ import annotations

import json
import logging
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc import cli
from holmes_hpc.errors import LaunchImpossibleError
from holmes_hpc.launch import submitting
from holmes_hpc.launch.follow.interruption import InterruptedRunError
from holmes_hpc.launch.sweep import resume_sweep, sweep
from holmes_hpc.runs.sweeps import Sweep, sweep_named
from holmes_hpc.submit import job
from tests.played_slurm import configs, end, ending_as_they_come, play_slurm, submitted_jobs


@pytest.fixture(name="slurm")
def played_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return play_slurm(tmp_path, monkeypatch)


def test_commands_that_are_printed_hold_a_path_with_blanks_as_one_word(
        slurm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    (slurm / "limit").write_text("2")
    place = tmp_path / "runs of mine" / "sweeps" / "one"
    with caplog.at_level(logging.INFO):
        sweep(*configs(2, "mixed", "launch.wait=false"), place)
    assert cli.run(["jobs", str(place)]) == 0
    printed = re.findall("`(holmes [^`]+)`", caplog.text + capsys.readouterr().out)
    assert {shlex.split(line)[1] for line in printed} >= {"jobs", "cancel", "sweep"}
    assert all(shlex.split(line)[2] == str(place) for line in printed), printed


def interrupted_at(number: int, monkeypatch: pytest.MonkeyPatch, *, taken: bool) -> None:
    """Interrupt the submission of job `number` after Slurm has taken it, or before it was asked."""
    ask, calls = job._ask_sbatch, iter(range(1, 1000))

    def cut_off(*arguments: Any) -> str:
        if next(calls) < number:
            return ask(*arguments)
        if taken:
            ask(*arguments)
        raise InterruptedRunError("SIGTERM")

    monkeypatch.setattr(job, "_ask_sbatch", cut_off)


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("cluster", ["mixed", "ib"])
def test_an_interrupted_sweep_goes_on_by_the_same_command_and_none_is_submitted_twice(
        slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cluster: str,
        taken: bool) -> None:
    wanted = configs(4, cluster, "launch.wait=false")
    one = cluster == "ib"
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO), pytest.raises(SystemExit) as stopped:
        interrupted_at(1 if one else 3, patch, taken=taken)
        sweep(*wanted, tmp_path / "runs" / "sweeps" / "one")
        if one and taken:
            raise SystemExit(130)
    assert stopped.value.code == 130
    queued = (4 if taken else 0) if one else (3 if taken else 2)
    assert f"{queued} of its 4 runs are submitted" in caplog.text
    assert ("are not submitted yet" in caplog.text) == (queued < 4)
    assert ("`holmes cancel " in caplog.text) == (queued > 0)
    (tmp_path / "runs" / "sweeps" / "two").mkdir()
    outcomes = sweep(*wanted, tmp_path / "runs" / "sweeps" / "two")
    assert outcomes == [(0, None)] * 4
    assert not (tmp_path / "runs" / "sweeps" / "two").exists(), "no second sweep begins"
    assert len(submitted_jobs(slurm)) == (1 if one else 4)
    assert len(list((tmp_path / "runs" / cluster).glob("2*"))) == 4


def test_an_array_that_was_taken_counts_whole_although_its_answers_were_cut_off(
        slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    take, calls = submitting._Work._take, iter(range(1, 5))

    def cut_off(work: Any, answer: Any) -> None:
        if next(calls) == 3:
            raise InterruptedRunError("SIGTERM")
        take(work, answer)

    monkeypatch.setattr(submitting._Work, "_take", cut_off)
    with caplog.at_level(logging.INFO):
        outcomes = sweep(*configs(4, "ib"), tmp_path / "runs" / "sweeps" / "one")
    assert outcomes == [(0, None)] * 4
    assert "4 of its 4 runs are submitted, and go on" in caplog.text and "not submitted yet" not in caplog.text


def test_failed_runs_are_submitted_again_into_their_folders(slurm: Path, tmp_path: Path) -> None:
    place = tmp_path / "runs" / "sweeps" / "one"
    wanted = configs(4, "mixed", "launch.wait=false")
    sweep(*wanted, place)
    end(slurm, 1)
    end(slurm, 2, "failed")
    outcomes = resume_sweep(place, wait=False)
    assert outcomes == [(0, None)] * 4
    begun = Sweep.read(place)
    assert begun is not None
    assert [json.loads(begun.folders[number].job_path.read_text())["job_id"] for number in range(4)] == [
        "1", "5", "3", "4"]
    assert (begun.folders[1].path / "job-2.json").exists()
    assert len(submitted_jobs(slurm)) == 5
    for number in (3, 4, 5):
        end(slurm, number)
    assert begun.completed
    sweep(*wanted, tmp_path / "runs" / "sweeps" / "two")
    assert len(submitted_jobs(slurm)) == 9, "a complete sweep begins anew"


def test_two_commands_do_not_submit_one_sweep(slurm: Path, tmp_path: Path) -> None:
    place = tmp_path / "runs" / "sweeps" / "one"
    sweep(*configs(2, "mixed", "launch.wait=false"), place)
    begun = Sweep.read(place)
    assert begun is not None
    with begun.alone(), pytest.raises(LaunchImpossibleError, match="another command submits the runs of"):
        resume_sweep(place)


def test_a_sweep_is_shown_and_cancelled_before_all_of_it_is_submitted(
        slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm / "limit").write_text("5")
    place = tmp_path / "runs" / "sweeps" / "one"
    assert sweep(*configs(4, "mixed", "launch.wait=false"), place) == [(0, None)] * 4
    assert "to be submitted" in capsys.readouterr().err
    assert (Sweep.read(place) or Sweep(place, [], "")).for_room
    assert cli.run(["jobs", str(place)]) == 0
    assert f"2 of the runs of {place} are not submitted yet; `holmes sweep {place} --resume`" in capsys.readouterr().out
    assert cli.run(["cancel", "one"]) == 0
    assert capsys.readouterr().out == "cancelled 2 of 4 runs (jobs 1, 2); 2 more are not submitted\n"
    assert (slurm / "cancelled").read_text() == "2 1\n", "those that wait for others first"
    assert cli.run(["cancel", "one", "--folder", str(tmp_path / "runs")]) == 0
    assert capsys.readouterr().out == "cancelled 0 of 4 runs; 2 were never submitted; the others are over\n"
    assert cli.run(["cancel", "nothing"]) == 2
    ending_as_they_come(slurm, monkeypatch)
    assert cli.run(["sweep", "one", "--resume"]) == 0
    assert (sweep_named("one", tmp_path / "runs") or Sweep(place, [], "")).completed
    assert cli.run(["sweep", "nothing", "--resume"]) == 2


def test_a_sweep_of_which_nothing_was_submitted_is_not_said_to_be_over(
        slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "runs" / "sweeps" / "one"
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO), pytest.raises(SystemExit):
        interrupted_at(1, patch, taken=False)
        sweep(*configs(3, "mixed"), place)
    assert "0 of its 3 runs are submitted" in caplog.text
    assert "holmes cancel" not in caplog.text and f"`holmes sweep {place} --resume`" in caplog.text
    assert cli.run(["cancel", str(place)]) == 0
    assert capsys.readouterr().out == "cancelled 0 of 3 runs; 3 more are not submitted\n"
    assert cli.run(["cancel", str(place)]) == 0
    assert capsys.readouterr().out == "cancelled 0 of 3 runs; 3 were never submitted\n"


@pytest.mark.parametrize("further", [[], ["launch.dry_run=true"]])
def test_a_sweep_of_which_a_part_can_be_submitted_is_refused_in_one_message(
        slurm: Path, capfd: pytest.CaptureFixture[str], further: list[str]) -> None:
    assert cli.run(["train", "-m", "+cluster=mixed,laptop", *further]) == 2
    told = capfd.readouterr().err
    assert "1 of the 2 runs go to Slurm, but not `+cluster=laptop" in told
    assert "Traceback" not in told and "HYDRA_FULL_ERROR" not in told, told
    assert not submitted_jobs(slurm)


@pytest.mark.parametrize("sweeping", [[], ["-m", "train.seed=1,2"]])
def test_variables_that_would_choose_for_every_group_are_refused_at_the_submission(
        slurm: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, sweeping: list[str]) -> None:
    monkeypatch.setenv("NCCL_NET", "Socket")
    assert cli.run(["train", *sweeping, "+cluster=mixed", "launch.wait=false"]) == 2
    told = capfd.readouterr().err
    assert "in the environment of this command, which the ranks get: NCCL_NET=Socket is set" in told
    assert not submitted_jobs(slurm) and not list(slurm.parent.glob("runs/mixed/*"))


def test_a_window_of_jobs_goes_on_where_it_was(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "runs" / "sweeps" / "one"
    wanted = configs(5, "mixed", "launch.wait=false", "launch.max_jobs=2")
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        interrupted_at(4, patch, taken=False)
        sweep(*wanted, place)
    end(slurm, 2)
    sweep(*wanted, tmp_path / "runs" / "sweeps" / "two")
    waits = [(slurm / "scripts" / str(number)).read_text().partition("#SBATCH --dependency=afterany:")[2].split("\n")[0]
             for number in range(1, 6)]
    assert waits == ["", "", "1", "", "3"], "of the jobs 1 to 3 the second has ended, and the third waits for the first"
