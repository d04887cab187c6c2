"""The runs of a sweep: which share an array, how long arrays are, how many run at a time; their table."""

from __future__ import annotations

import io
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc import cli
from holmes_hpc.cluster.slurm import read_settings
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.launch.sweep import distinguishing
from holmes_hpc.runs import RunFolder, write_result
from holmes_hpc.runs.find import find_run, find_runs
from holmes_hpc.submit.board import Board, failure_lines, text
from holmes_hpc.submit.lanes import Lanes
from holmes_hpc.submit.live import show_until_over
from holmes_hpc.submit.states import JobStatus
from holmes_hpc.submit.sweep import Submitter, SweepRun, group_runs, split
from holmes_hpc.submit.watch import SubmittedRun, Watch


@pytest.fixture(scope="module")
def configs() -> dict[str, Any]:
    return {name: compose([f"+cluster={name}"]) for name in ("mixed", "ib", "roce")}


def runs(configs: dict[str, Any], tmp_path: Path, *names: str) -> list[SweepRun]:
    return [SweepRun(configs[name], RunFolder.create(tmp_path / "runs", name), f"+cluster={name}") for name in names]


def test_plain_jobs_with_equal_scripts_share_an_array(configs: dict[str, Any], tmp_path: Path) -> None:
    assert group_runs(runs(configs, tmp_path, "mixed", "ib", "mixed", "roce", "ib")) == [[0], [1, 4], [2], [3]]


def test_a10_a_long_sweep_is_split_under_max_array_size() -> None:
    longest = read_settings("MaxArraySize            = 1001\n").longest_array
    parts = split(range(1600), longest)
    assert [len(part) for part in parts] == [1001, 599]
    assert sum(parts, []) == list(range(1600))
    assert read_settings("MaxArraySize = 1001\nSchedulerParameters = bf_interval=1,max_array_tasks=100\n"
                         ).longest_array == 100
    assert split([3, 4], 0) == [[3], [4]], "MaxArraySize=0 forbids arrays"


def test_lanes_keep_the_number_of_running_jobs_as_a_sliding_window() -> None:
    def given(widths: list[int], count: int) -> list[tuple[str, ...]]:
        lanes, found = Lanes(count), []
        for number, width in enumerate(widths):
            places, after = lanes.choose(width)
            lanes.give(places, str(number))
            found.append(after)
        return found

    assert given([1, 1, 1, 1, 1], 2) == [(), (), ("0",), ("1",), ("2",)], "each waits for one job, not for a wave"
    assert given([8, 1, 1, 1], 3) == [(), ("0",), ("0",), ("0",)], "an array of 8 runs 3 at a time"
    assert given([1, 2, 1], 2) == [(), ("0",), ("1",)]
    lanes = Lanes(2, [("7", 1), ("8", 1)])
    assert lanes.choose(1)[1] == ("7",), "jobs of an earlier command take their lanes"
    assert Lanes(1, [("7", 1), ("8", 1)]).choose(1)[1] == ("7", "8"), "a smaller window waits for all"


def submit_sweep(sweep: list[SweepRun], place: Path, max_jobs: int | None = None) -> list[SubmittedRun | HolmesError]:
    submitter = Submitter(dict(enumerate(sweep)), place, lambda: Lanes(max_jobs) if max_jobs else None)
    answers = {answer.number: answer.run for answer in submitter.submit()}
    assert submitter.waiting == []
    return [answers[number] for number in range(len(sweep))]


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs `sbatch` and `scontrol`; the scripts that were submitted lie in the folder."""
    scripts, programs = tmp_path / "scripts", tmp_path / "bin"
    scripts.mkdir()
    programs.mkdir()
    (programs / "sbatch").write_text(f"""#!/bin/sh
number=$(ls {scripts} | wc -l)
for last; do :; done
if grep -q 'partition=roce' "$last" && [ -e {tmp_path}/refuse ]; then echo "Invalid qos" >&2; exit 1; fi
cp "$last" {scripts}/$((number + 1))
echo $((number + 1))
""")
    (programs / "scontrol").write_text("#!/bin/sh\necho 'MaxArraySize = 3'\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return scripts


def options(script: Path) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_a_sweep_is_submitted_at_once(configs: dict[str, Any], tmp_path: Path, sbatch: Path) -> None:
    sweep = runs(configs, tmp_path, "ib", "mixed", "ib", "ib", "ib")
    answers = submit_sweep(sweep, tmp_path / "sweep")
    assert [answer.job_id for answer in answers if isinstance(answer, SubmittedRun)] == ["1_0", "3", "1_1", "1_2", "2"]
    assert options(sbatch / "1")["array"] == "0-2"
    assert "array" not in options(sbatch / "2"), "one run is no array"
    assert "dependency" not in options(sbatch / "3")
    assert (sweep[2].folder.path.parent / "slurm-1_1").resolve() == sweep[2].folder.path
    links = Path(options(sbatch / "1")["output"].partition("/%a/")[0])
    assert [(links / str(task)).resolve() for task in range(3)] == [sweep[number].folder.path for number in (0, 2, 3)]
    line = next(line for line in (sbatch / "1").read_text().splitlines() if line.startswith("run="))
    told = os.popen(f'SLURM_ARRAY_TASK_ID=1; {line}; echo "$run"').read().strip()
    assert told == str(sweep[2].folder.path)
    assert json.loads(sweep[2].folder.job_path.read_text())["job_id"] == "1_1"


def test_max_jobs_is_kept_by_slurm_itself(configs: dict[str, Any], tmp_path: Path, sbatch: Path) -> None:
    submit_sweep(runs(configs, tmp_path, "mixed", "ib", "ib", "ib", "mixed"), tmp_path / "sweep", max_jobs=2)
    assert options(sbatch / "2")["array"] == "0-2%2"
    assert [options(sbatch / str(number)).get("dependency") for number in (1, 2, 3)] == [None, "afterany:1",
                                                                                         "afterany:2"]


def test_a_refused_job_keeps_the_others_not_back(configs: dict[str, Any], tmp_path: Path, sbatch: Path) -> None:
    (tmp_path / "refuse").touch()
    answers = submit_sweep(runs(configs, tmp_path, "roce", "ib", "roce"), tmp_path / "sweep")
    assert [isinstance(answer, HolmesError) for answer in answers] == [True, False, True]
    assert "Invalid qos" in str(answers[0])


def test_a47_runs_of_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = [RunFolder.create(tmp_path, "run").path for _ in range(200)]
    assert len(set(folders)) == 200


def test_what_distinguishes_runs() -> None:
    assert distinguishing(["+cluster=a x=1 parallel=h", "+cluster=b x=1 parallel=h"]) == ["+cluster=a", "+cluster=b"]


def submitted(tmp_path: Path, job_id: str, name: str = "mixed") -> SubmittedRun:
    folder = RunFolder.create(tmp_path / "runs", name)
    folder.write_text(folder.config_path, "train: {steps: 20}\n")
    folder.write_json(folder.job_path, {"job_id": job_id})
    (folder.path.parent / f"slurm-{job_id}").symlink_to(folder.path.name)
    return SubmittedRun(job_id, folder)


def test_a_run_that_was_not_submitted_stays_in_the_sweeps_table_with_its_reason(
        configs: dict[str, Any], tmp_path: Path, sbatch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "refuse").touch()
    sweep = runs(configs, tmp_path, "roce", "ib")
    for run in sweep:
        run.folder.write_text(run.folder.config_path, "train: {steps: 20}\n")
    answers = submit_sweep(sweep, tmp_path / "sweep")
    assert isinstance(answers[0], HolmesError)
    (tmp_path / "sweep").mkdir(exist_ok=True)
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps({
        "runs": [str(run.folder.path) for run in sweep], "overrides": [run.words for run in sweep]}))
    assert cli.run(["jobs", str(tmp_path / "sweep"), "--folder", str(tmp_path / "runs")]) == 0
    told = capsys.readouterr().out
    row = next(line for line in told.splitlines() if "+cluster=roce" in line)
    assert row.split()[0] == "-" and "not submitted" in row
    assert f"roce/{sweep[0].folder.id} was not submitted: sbatch refused the job" in told
    assert cli.run(["jobs", "--folder", str(tmp_path / "runs")]) == 0
    assert "not submitted" not in capsys.readouterr().out, "among all runs those that were submitted are listed"


def step(folder: RunFolder, number: int, loss: float, speed: float) -> None:
    folder.append_metrics({"step": number, "loss": loss, "tokens_per_second": speed})


def test_the_table_of_runs(tmp_path: Path) -> None:
    running, done, failed, waiting = (submitted(tmp_path, job) for job in ("3", "4", "5_0", "5_1"))
    step(running.folder, 7, 2.5, 1234.0)
    step(done.folder, 20, 1.25, 3000.0)
    write_result(done.folder, "completed", error=None, emulated=False, tokens_per_second_median=2000.0)
    write_result(failed.folder, "failed", error="out of memory", emulated=False)
    answers = {"3": JobStatus("RUNNING"), "5_1": JobStatus("PENDING", "Resources")}
    watch = Watch([running, done, failed, waiting], lambda jobs: answers)
    watch.poll()
    board = Board({running.folder.path: "parallel=holmes"})
    cells = [board.row(watched).cells() for watched in watch.runs]
    assert [line[0] for line in cells] == ["3", "4", "5_0", "5_1"]
    assert [line[2:6] for line in cells] == [
        ("running", "7/20", "1,234", "2.500"), ("completed", "20/20", "2,000", "1.250"), ("failed", "", "", ""),
        ("pending (Resources)", "", "", "")]
    lines = text([board.row(watched) for watched in watch.runs]).splitlines()
    assert lines[0].split() == ["job", "run", "state", "step", "tokens/s", "loss", "overrides"]
    assert lines[1].endswith("parallel=holmes")


def test_lines_where_the_output_is_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holmes_hpc.submit.live.LOOK_SECONDS", 0.0)
    run, asked, clock = submitted(tmp_path, "3"), itertools.count(), itertools.count(step=100)

    def ask(jobs: Any) -> dict[str, JobStatus]:
        number = next(asked)
        if number == 2:
            step(run.folder, 1, 3.0, 100.0)
        if number == 3:
            write_result(run.folder, "completed", error=None, emulated=False)
        return {"3": JobStatus("PENDING" if number < 2 else "RUNNING")}

    stream = io.StringIO()
    show_until_over(Watch([run], ask, lambda: next(clock)), Board(), stream)
    states = [line.split(": ")[1].split()[0] for line in stream.getvalue().splitlines() if line.startswith("job 3 ")]
    assert states == ["pending", "running", "completed"]
    assert "1/20" in stream.getvalue().splitlines()[-1]


def test_a_failed_run_shows_the_end_of_its_traceback(tmp_path: Path) -> None:
    folder = submitted(tmp_path, "3").folder
    write_result(folder, "failed", error="CUDA out of memory", emulated=False)
    trace = "Traceback (most recent call last):\n" + "  File x\n" * 50 + "torch.OutOfMemoryError: CUDA out of memory\n"
    folder.write_json(folder.rank_error_path(5), {"traceback": trace})
    lines = failure_lines(folder)
    assert lines[0] == "CUDA out of memory"
    assert lines[1].startswith("rank 5")
    assert lines[-1].strip() == "torch.OutOfMemoryError: CUDA out of memory"
    assert len(lines) < 10


def test_runs_are_found_by_what_a_user_has_at_hand(tmp_path: Path) -> None:
    base = tmp_path / "runs"
    first, second = submitted(tmp_path, "3"), submitted(tmp_path, "12_4")
    other = submitted(tmp_path, "7", "ib")
    assert [run.path for run in find_runs([], base)] == [run.folder.path for run in sorted(
        (first, second, other), key=lambda run: run.folder.id)]
    assert find_run("12_4", base).path == second.folder.path
    assert find_run("ib", base).path == other.folder.path
    assert find_run(first.folder.id, base).path == first.folder.path
    assert find_run(str(base / "mixed" / "slurm-3"), Path("/nowhere")).path == first.folder.path
    sweep = base / "sweeps" / "one"
    sweep.mkdir(parents=True)
    (sweep / "sweep.json").write_text(json.dumps({"runs": [str(other.folder.path)], "overrides": ["a=1"]}))
    assert [run.path for run in find_runs([str(sweep)], base)] == [other.folder.path]
    with pytest.raises(ConfigurationError, match=r"8: no run has this .*where the runs are ib, mixed"):
        find_runs(["8"], base)


def test_jobs_and_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["jobs"]) == 0
    assert "there is no run in" in capsys.readouterr().err
    run = submitted(tmp_path, "3")
    write_result(run.folder, "completed", error=None, emulated=False)
    assert cli.run(["jobs"]) == 0
    assert "3    mixed/" in capsys.readouterr().out
    (run.folder.logs / "batch.log").write_text("one\ntwo\n")
    run.folder.log_path(1).write_text("I am rank 1\n")
    assert cli.run(["logs", "3", "--follow", "--lines", "1"]) == 0
    assert capsys.readouterr().out == f"==> {run.folder.logs}/batch.log <==\ntwo\n"
    assert cli.run(["logs", "mixed", "--rank", "1"]) == 0
    assert capsys.readouterr().out == "I am rank 1\n"
    assert cli.run(["logs", "mixed", "--rank", "2"]) == 2
    assert "it holds batch.log, rank-1.log" in capsys.readouterr().err
    assert cli.run(["logs", "nothing"]) == 2
    assert cli.run(["logs"]) == 2
