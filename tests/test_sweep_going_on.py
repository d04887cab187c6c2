"""Sweeps that are cut off, meet a limit on submitted jobs, or are cancelled: gone on with, none submitted twice."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holmes_hpc import cli
from holmes_hpc.bounded import Answer
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import LaunchImpossibleError
from holmes_hpc.launch import submitting
from holmes_hpc.launch.follow.interruption import InterruptedRunError
from holmes_hpc.launch.sweep import resume_sweep, submit_what_waits, sweep
from holmes_hpc.runs import RunFolder, read_result, write_result
from holmes_hpc.runs.lease import lease_path
from holmes_hpc.runs.sweeps import Sweep, sweep_named
from holmes_hpc.submit import job, live, lost, onward, still_to_come, watch
from holmes_hpc.submit.script import NEXT_RUN

SBATCH = """\
#!/bin/sh
cd {slurm}
for last; do :; done
size=$(grep -c '#SBATCH hetjob' "$last"); size=$((size + 1))
array=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$last")
[ -n "$array" ] && size=$((array + 1))
used=$(cat active/* 2>/dev/null | awk '{{ total += $1 }} END {{ print total + 0 }}')
limit=$(cat limit)
if [ $((used + size)) -gt $limit ]; then
  echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1
fi
number=$(($(cat number) + 1)); echo $number > number
sed -n 's/^#SBATCH --dependency=//p' "$last" > waits/$number
echo $size > active/$number
for task in $(seq 0 ${{array:-0}}); do
  [ -n "$array" ] && id=${{number}}_$task || id=$number
  echo "$id|$number|PENDING|ib||Priority|x" > jobs/$id
done
echo "$number|$last" >> commands
cp "$last" scripts/$number
[ -e lose ] && {{ rm lose; kill -INT $PPID; sleep 5; }}
echo $number
"""
SQUEUE = """\
#!/bin/sh
cd {slurm}
case "$*" in
  *"%o"*) cat commands 2>/dev/null;;
  *"%E"*) for job in $(ls active); do
      for path in jobs/$job jobs/${{job}}_*; do
        [ ! -e $path ] || echo "$(cut -d'|' -f1,3 $path)|$(cat waits/$job)"
      done
    done;;
  *"--format=%i") ls active;;
  *) echo "JOBID|JOBID|STATE|PARTITION|NODELIST|REASON|NAME"; cat jobs/* 2>/dev/null;;
esac
"""
SCONTROL = """\
#!/bin/sh
cd {slurm}
[ "$1" = requeue ] && {{ echo "$*" >> requeued; exit $(cat refused 2>/dev/null || echo 0); }}
[ "$1" = update ] || {{ echo 'MaxArraySize = 1001'; exit; }}
echo "$*" >> updates
for word; do
  case $word in JobId=*) job=${{word#JobId=}};; Dependency=*) echo "${{word#Dependency=}}" > waits/$job;; esac
done
"""
SCANCEL = """\
#!/bin/sh
cd {slurm}
echo "$*" >> cancelled
for id; do sed -i 's/PENDING\\|RUNNING/CANCELLED/' jobs/$id; rm -f active/${{id%_*}}; done
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm with a limit on submitted components; every job waits until `end` is called."""
    folder = tmp_path / "slurm"
    for name in ("active", "jobs", "scripts", "bin", "waits"):
        (folder / name).mkdir(parents=True)
    (folder / "limit").write_text("1000")
    (folder / "number").write_text("0")
    (folder / "commands").touch()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scancel", SCANCEL), ("sacct", "#!/bin/sh\nexit 1\n"),
                       ("scontrol", SCONTROL),
                       ("sinfo", "#!/bin/sh\nprintf 'ib\\nroce\\nethernet\\n'\n")):
        (folder / "bin" / name).write_text(text.format(slurm=folder))
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "check_submission", lambda config: None)
    monkeypatch.setattr(submitting, "plan_for_job", lambda config, cluster: Any)
    monkeypatch.setattr(submitting, "make_folder", _folder)
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watch, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(submitting, "ROOM_SECONDS", 0.0)
    return folder


def _folder(config: Any, chosen: Any) -> RunFolder:
    from omegaconf import OmegaConf

    return RunFolder.create(Path(config.run.folder), config.cluster.name, {"config.yaml": OmegaConf.to_yaml(config)})


def end(slurm: Path, number: int, status: str = "completed") -> None:
    """Let a job end, its runs with this status."""
    for path in (slurm / "jobs").glob(f"{number}*"):
        if path.name.partition("_")[0] == str(number):
            state = "COMPLETED" if status == "completed" else "FAILED"
            path.write_text(path.read_text().replace("PENDING", state))
            for kept in slurm.parent.glob("runs/*/2*/job.json"):
                if json.loads(kept.read_text())["job_id"] == path.name:
                    write_result(RunFolder(kept.parent), status, error=None, emulated=False)
    (slurm / "active" / str(number)).unlink(missing_ok=True)


def configs(count: int, cluster: str = "mixed", *overrides: str) -> tuple[list[Any], list[str]]:
    words = [f"+cluster={cluster} train.seed={seed}" for seed in range(count)]
    return [compose([*word.split(), *overrides]) for word in words], words


def submitted_jobs(slurm: Path) -> list[str]:
    return [line.partition("|")[0] for line in (slurm / "commands").read_text().splitlines()]


def ending_as_they_come(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the oldest job end at every look of who follows."""
    def sleep(seconds: float) -> None:
        active = sorted(int(path.name) for path in (slurm / "active").iterdir())
        if active:
            end(slurm, active[0])

    monkeypatch.setattr(live, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))


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


def shown(place: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-m", "holmes_hpc.jobs", str(place)], text=True, capture_output=True,
                          check=True)
    return done.stdout.splitlines()[1:]


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


