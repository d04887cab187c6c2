"""Sweeps, their table, dry runs and followed runs on a real Slurm; ranks without torch where torch is not the point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holmes_hpc.data.write import write_text
from holmes_hpc.emulation.world import children
from tests.runs_for_tests import newest_run
from tests.slurm_cluster import SlurmCluster
from tests.slurm_cluster.fixture import MakeSlurm
from tests.slurm_sites import HOLDING, TINY, command, holmes, let_go, result, site, without_torch

pytestmark = pytest.mark.slurm

TWO = ["-m", "+cluster=one", "train.seed=1,2"]
FOUR = ["-m", "+cluster=pair,one", "parallel=holmes", "train.seed=1,2"]
EIGHT = ["-m", "+cluster=pair,one", "parallel=holmes,megatron", "train.seed=1,2"]


def folders(slurm: SlurmCluster) -> list[Path]:
    found = (path.parent for path in (slurm.shared / "runs").glob("*/2*/config.yaml"))
    return [path for path in found if not path.is_symlink()]


@pytest.mark.parametrize(("sweep", "runs", "in_arrays"), [
    (TWO, 2, 2), pytest.param(FOUR, 4, 2, marks=pytest.mark.long)], ids=["two", "four"])
def test_a_sweep_trains_and_shows_its_table(slurm: SlurmCluster, sweep: list[str], runs: int, in_arrays: int) -> None:
    done = holmes(slurm, "train", [site(slurm), *sweep, *TINY, "train.steps=1"], check=False)
    assert done.status == 0, done.stderr[-4000:]
    assert len(folders(slurm)) == runs
    table = done.stderr[done.stderr.rindex("job  "):].splitlines()
    assert [line.split()[2:4] for line in table[1:]] == [["completed", "1/1"]] * runs
    differ = "," in sweep[1]  # the clusters do; what all runs have is not shown
    assert all("train.seed=" in line and ("+cluster=" in line) == differ for line in table[1:])
    ids = [line.split()[0] for line in table[1:]]
    assert sum("_" in job for job in ids) == in_arrays, "the runs on one partition are an array"
    losses = {line.split()[5] for line in table[1:]}
    assert len(losses) >= 2
    assert all(result(folder)["status"] == "completed" for folder in folders(slurm))


@pytest.mark.long
def test_a49_a_sweep_may_return_at_once_and_be_watched_later(make_each_slurm: MakeSlurm) -> None:
    slurm = make_each_slurm(extra=("MaxArraySize=3",))
    done = holmes(slurm, "train", [site(slurm), without_torch(slurm), *EIGHT, *TINY, "launch.wait=false"])
    assert "submitted 8 jobs; `holmes jobs " in done.stderr
    place = done.stderr.partition("`holmes jobs ")[2].partition("`")[0]
    assert done.stderr.count("  completed  ") == 0
    let_go(slurm)
    later = holmes(slurm, "jobs", [place, "--watch"])
    rows = later.stdout[later.stdout.rindex("job  "):].splitlines()[1:]
    assert [row.split()[2] for row in rows] == ["completed"] * 8
    arrays = {row.split()[0].partition("_")[0] for row in rows if "_" in row.split()[0]}
    assert len(arrays) == 1, "four runs are an array of three (MaxArraySize) and a single job"
    for job in {row.split()[0].partition("_")[0] for row in rows}:
        assert set(slurm.wait_for(int(job))) == {"COMPLETED"}
    batch = holmes(slurm, "logs", [rows[0].split()[0]]).stdout
    assert "srun ended with 0; completed" in batch


def test_a_sweep_with_a_failed_run_is_1_and_shows_why(slurm: SlurmCluster) -> None:
    text = slurm.shared / "text.txt"
    text.write_text("some text, again and again, " * 200)
    write_text(slurm.shared / "good.tokens", [text])
    (slurm.shared / "bad.tokens").write_bytes(b"no header")
    done = holmes(slurm, "train", [
        site(slurm), "-m", "+cluster=one", "data=tokens", "data.path=good.tokens,bad.tokens", *TINY,
        "train.steps=1", "data.check_before_start=false"], check=False)
    assert done.status == 1, done.stderr
    table = done.stderr[done.stderr.rindex("job  "):]
    assert table.splitlines()[1].split()[2] == "completed"
    assert table.splitlines()[2].split()[2] == "failed"
    assert "the last lines of its traceback:" in table
    assert "DataError: " in table


def test_a_run_that_slurm_refuses_stays_in_the_table_beside_the_others(slurm: SlurmCluster) -> None:
    run = [site(slurm), without_torch(slurm), *TINY]
    let_go(slurm)
    done = holmes(slurm, "train", [*run, "-m", "+cluster=pair", "cluster.partitions.ib.constraint=hdr200,no_such"],
                  check=False)
    assert done.status == 1, done.stderr
    table = done.stderr[done.stderr.rindex("job  "):].splitlines()[1:3]
    assert table[0].split()[2] == "completed" and "constraint=hdr200" in table[0]
    assert table[1].split()[0] == "-" and "not submitted" in table[1] and "constraint=no_such" in table[1]
    assert "Invalid feature specification" in done.stderr
    place = done.stderr.partition("`holmes jobs ")[2].partition("`")[0]
    later = holmes(slurm, "jobs", [place]).stdout
    assert "was not submitted: " in later and "Invalid feature specification" in later


def test_a_followed_run_is_detached_by_ctrl_c_and_goes_on(slurm: SlurmCluster) -> None:
    words = command("train", [site(slurm), without_torch(slurm), "+cluster=pair", *TINY])
    following = subprocess.Popen(slurm.command_line(words, environment=HOLDING), stderr=subprocess.PIPE, text=True,
                                 stdout=subprocess.DEVNULL, start_new_session=True)
    assert following.stderr is not None
    for line in following.stderr:
        if "submitted job" in line:
            job = int(line.partition("submitted job ")[2].partition(";")[0])
        if "RUNNING" in line:
            break
    os.kill(children(following.pid)[0], signal.SIGINT)  # nsenter forks to enter the PID namespace
    rest = following.stderr.read()
    assert following.wait(timeout=20) == 0
    assert f"no longer following job {job}, which goes on" in rest
    assert set(slurm.states(job)) == {"RUNNING"}
    let_go(slurm)
    assert slurm.wait_for(job) == ["COMPLETED", "COMPLETED"]
    folder = newest_run(slurm.shared)
    assert folder is not None
    assert result(folder)["status"] == "completed"
    shown = holmes(slurm, "jobs", [str(job)]).stdout.splitlines()
    assert shown[1].split()[2:4] == ["completed", "2/2"]


@pytest.mark.long
def test_states_come_from_accounting_once_the_queue_forgot(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(accounting=True, extra=("MinJobAge=2",))
    done = holmes(slurm, "train", [site(slurm), without_torch(slurm), "+cluster=pair", *TINY,
                                   "launch.wait=false"])
    job = int(done.stderr.partition("submitted job ")[2].partition(";")[0])
    slurm.wait_for(job, ["RUNNING"])
    assert holmes(slurm, "jobs", []).stdout.splitlines()[1].split()[2] == "running"
    slurm.run(f"scancel {job}")
    deadline = time.monotonic() + 60
    while slurm.states(job):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    while (state := holmes(slurm, "jobs", []).stdout.splitlines()[1].split()[2]) == "unknown":  # accounting lags
        assert time.monotonic() < deadline
    assert state == "cancelled"


def test_a41_a40_a_dry_run_of_features_is_tried_by_slurm(slurm: SlurmCluster) -> None:
    done = holmes(slurm, "train", [site(slurm), "+cluster=counted", *TINY, "launch.dry_run=true",
                                   "+launch.sbatch.comment='two words'"])
    assert "#SBATCH --constraint=[roce*1&(ib&hdr200)*1]" in done.stdout
    assert '#SBATCH --comment="two words"' in done.stdout
    assert "to start at" in done.stderr
    refused = holmes(slurm, "train", [site(slurm), "+cluster=counted", *TINY, "launch.dry_run=true",
                                      "cluster.partitions.a.constraint=nosuch"], check=False)
    assert refused.status == 2
    assert "Slurm would refuse this job" in refused.stderr
    assert json.dumps(slurm.squeue()).count("COMPLETED") == 1


def interrupted(slurm: SlurmCluster, words: list[str], number: signal.Signals) -> str:
    """Start a sweep, signal it once it has submitted a run or is at the limit, and return what it said then."""
    following = subprocess.Popen(slurm.command_line(command("train", words), environment=HOLDING), text=True,
                                 stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    assert following.stderr is not None
    said = []
    for line in following.stderr:
        said.append(line)
        if (line.startswith("job ") and " of " in line) or "takes no more jobs" in line:
            os.kill(children(following.pid)[0], number)  # nsenter forks to enter the PID namespace
            break
    rest = following.stderr.read()
    assert following.wait(timeout=60) == 130, "".join(said) + rest
    return rest


@pytest.mark.long
@pytest.mark.parametrize(("make_each_slurm", "runs", "limit"), [
    ("tree", 4, 5), ("installed", 20, 7)], indirect=["make_each_slurm"])
def test_a_sweep_beyond_the_submission_limit_that_is_interrupted_twice_ends_and_none_runs_twice(
        make_each_slurm: MakeSlurm, runs: int, limit: int) -> None:
    slurm = make_each_slurm(accounting=True, extra=(
        "AccountingStorageEnforce=associations,limits,qos", "MinJobAge=3600"))
    slurm.run("sacctmgr -i add account physics && sacctmgr -i add user root account=physics && "
              f"sacctmgr -i modify user root set MaxSubmitJobs={limit}")
    seeds = ",".join(map(str, range(runs)))
    words = [site(slurm), without_torch(slurm), "-m", "+cluster=pair", f"train.seed={seeds}", *TINY]
    first = interrupted(slurm, words, signal.SIGINT)
    assert "SIGINT: no longer following the sweep in " in first and "are not submitted yet" in first
    place = first.partition("following the sweep in ")[2].partition(". ")[0]
    second = interrupted(slurm, words, signal.SIGTERM)
    assert f"SIGTERM: no longer following the sweep in {place}" in second
    assert "not submitted yet; `holmes sweep " in holmes(slurm, "jobs", [place]).stdout
    following = subprocess.Popen(slurm.command_line(command("sweep", [place, "--resume"]), environment=HOLDING),
                                 text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert following.stderr is not None
    assert any("Slurm takes no more jobs now" in line for line in following.stderr)
    let_go(slurm)
    rest = following.stderr.read()
    assert following.wait(timeout=60) == 0, rest[-4000:]
    made = folders(slurm)
    assert len(made) == runs
    assert [result(folder)["status"] for folder in made] == ["completed"] * runs
    for folder in made:
        assert set(slurm.wait_for(json.loads((folder / "job.json").read_text())["job_id"])) == {"COMPLETED"}
    states = [state for name, state in slurm.squeue().items() if "+" in name]
    assert states.count("COMPLETED") == 2 * runs, "each of two components, each once"
    # What the limit refused: Slurm keeps a record of the component that it had taken before.
    assert {state for state in states if state != "COMPLETED"} <= {"FAILED", "CANCELLED"}, states
    a_sweep_goes_on_by_its_own_jobs(slurm, 4)


def a_sweep_goes_on_by_its_own_jobs(slurm: SlurmCluster, runs: int) -> None:
    """The command that followed was killed: the sweep's jobs submit what the limit kept out, also the last of all."""
    (slurm.shared / "templates" / "go").unlink()
    before = set(folders(slurm))
    words = [site(slurm), without_torch(slurm), "-m", "+cluster=pair",
             f"train.seed={','.join(str(100 + number) for number in range(runs))}", *TINY]
    following = subprocess.Popen(slurm.command_line(command("train", words), environment=HOLDING), text=True,
                                 stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    assert following.stderr is not None
    assert any("takes no more jobs now" in line for line in following.stderr)
    os.kill(children(following.pid)[0], signal.SIGKILL)
    following.wait(timeout=60)
    made = [folder for folder in folders(slurm) if folder not in before]
    assert len(made) == runs
    let_go(slurm)
    until(lambda: all((folder / "result.json").exists() for folder in made), 120, lambda: batch_logs(made))
    assert [result(folder)["status"] for folder in made] == ["completed"] * runs
    jobs = [int(json.loads((folder / "job.json").read_text())["job_id"]) for folder in made]
    assert len(set(jobs)) == runs
    for job in jobs:
        assert set(slurm.wait_for(job)) == {"COMPLETED"}
    submitted = slurm.run("squeue --noheader --states=COMPLETED --format='%i %o'").stdout
    assert all(submitted.count(f"{folder}/submission") == 2 for folder in made), "each of two components, each once"
    place = json.loads((made[0] / "job.json").read_text())["sweep"]
    assert "not submitted yet" not in holmes(slurm, "jobs", [place]).stdout


@pytest.mark.long
@pytest.mark.parametrize(("make_each_slurm", "cluster", "limit"), [("installed", "pair", 2), ("tree", "one", 1)],
                         indirect=["make_each_slurm"])
def test_where_a_limit_has_room_for_one_job_alone_it_goes_on_with_run_after_run(
        make_each_slurm: MakeSlurm, cluster: str, limit: int) -> None:
    slurm = make_each_slurm(accounting=True, extra=("AccountingStorageEnforce=associations,limits,qos",))
    slurm.run("sacctmgr -i add account physics && sacctmgr -i add user root account=physics && "
              f"sacctmgr -i modify user root set MaxSubmitJobs={limit}")
    words = [site(slurm), without_torch(slurm), "-m", f"+cluster={cluster}", "train.seed=1,2,3", *TINY,
             "launch.wait=false"]
    done = holmes(slurm, "train", words)
    assert "2 runs to be submitted as there is room, and the sweep's jobs submit them as they end" in done.stderr
    place, made = newest_sweep(slurm)
    (made[2] / "hold").touch()
    let_go(slurm)
    until(lambda: all((folder / "result.json").exists() for folder in made[:2]), 120, lambda: batch_logs(made))
    until((made[2] / "metrics.jsonl").exists, 60, lambda: batch_logs(made))
    jobs = {json.loads((folder / "job.json").read_text())["job_id"] for folder in made}
    assert len(jobs) == 1, "one job after another run of itself"
    shown = [line.split()[2] for line in holmes(slurm, "jobs", [place]).stdout.splitlines()[1:]]
    assert shown == ["completed", "completed", "running"]
    (made[2] / "hold").unlink()
    until((made[2] / "result.json").exists, 60, lambda: batch_logs(made))
    assert [result(folder)["status"] for folder in made] == ["completed"] * 3
    until(lambda: all("srun ended with 0; completed" in (folder / "logs" / "batch.log").read_text() for folder in made),
          20, lambda: batch_logs(made))
    assert "queued again and goes on with train.seed=2" in (made[0] / "logs" / "batch.log").read_text()
    (slurm.shared / "templates" / "go").unlink()
    a_run_that_was_taken_up_is_cancelled(slurm, words)


def newest_sweep(slurm: SlurmCluster) -> tuple[str, list[Path]]:
    """Return the folder of the newest sweep, and those of its runs in order."""
    path = max((slurm.shared / "runs" / "sweeps").glob("*/sweep.json"), key=lambda path: path.parent.name)
    return str(path.parent), [Path(run) for run in json.loads(path.read_text())["runs"]]


def a_run_that_was_taken_up_is_cancelled(slurm: SlurmCluster, words: list[str]) -> None:
    """Only that one ends; what waits is not submitted any more."""
    until(lambda: not slurm.run("squeue --noheader").stdout, 60, lambda: slurm.run("squeue").stdout)
    holmes(slurm, "train", [*words, "launch.new_sweep=true"])
    place, (first, second, third) = newest_sweep(slurm)
    (second / "hold").touch()
    let_go(slurm)
    until((second / "metrics.jsonl").exists, 120, lambda: batch_logs([first, second]))
    assert holmes(slurm, "cancel", [str(first)]).stdout == "cancelled 0 of 1 runs; the others are over\n"
    said = holmes(slurm, "cancel", [place]).stdout
    assert said.startswith("cancelled 1 of 3 runs (jobs ") and "1 more are not submitted" in said
    until(lambda: not slurm.run("squeue --noheader").stdout, 60, lambda: slurm.run("squeue").stdout)
    assert not (third / "job.json").exists() and result(third)["error"] == "cancelled before it was submitted"


@pytest.mark.long
def test_a_long_job_does_not_hold_up_the_window(each_slurm: SlurmCluster) -> None:
    slurm = each_slurm
    words = [site(slurm), without_torch(slurm), "-m", "+cluster=one,pair", "train.seed=1,2,3", *TINY,
             "launch.max_jobs=2", "launch.wait=false"]
    holmes(slurm, "train", [*words, "launch.dry_run=false"])
    made = folders(slurm)
    array = [folder for folder in made if "_" in json.loads((folder / "job.json").read_text())["job_id"]]
    assert len(made) == 6 and len(array) == 3
    (long := sorted(array)[0]).joinpath("hold").touch()
    let_go(slurm)
    most = 0

    def others_ended() -> bool:
        nonlocal most
        running = [name for name, state in slurm.squeue().items() if state == "RUNNING" and not name.endswith("+1")]
        most = max(most, len(running))
        return all((folder / "result.json").exists() for folder in made if folder != long)

    until(others_ended, 120, lambda: batch_logs(made))
    assert not (long / "result.json").exists() and most == 2
    (long / "hold").unlink()
    until((long / "result.json").exists, 30, lambda: batch_logs(made))
    assert [result(folder)["status"] for folder in made] == ["completed"] * 6


def until(condition: Callable[[], bool], seconds: float, explain: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.2)


def batch_logs(made: list[Path]) -> str:
    return "\n".join(f"--- {path}\n{path.read_text()}" for folder in made
                     for path in sorted((folder / "logs").glob("batch.log")))


def test_a_sweep_is_cancelled_as_a_whole(slurm: SlurmCluster) -> None:
    done = holmes(slurm, "train", [site(slurm), without_torch(slurm), *FOUR, *TINY, "launch.wait=false",
                                   "launch.max_jobs=1"])
    place = done.stderr.partition("`holmes jobs ")[2].partition(",")[0].partition("`")[0]
    assert holmes(slurm, "cancel", [place]).stdout.startswith("cancelled 4 of 4 runs (jobs ")
    for job in {int(name.partition("+")[0].partition("_")[0]) for name in slurm.squeue()}:
        slurm.wait_for(job)
    assert not any("RUNNING" in state or "PENDING" in state for state in slurm.squeue().values())
    assert holmes(slurm, "cancel", [place]).stdout == "cancelled 0 of 4 runs; the others are over\n"
