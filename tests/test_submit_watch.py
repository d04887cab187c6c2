"""The states of submitted runs: what Slurm prints, how often it is asked, and when a run is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holmes_hpc import cli
from holmes_hpc.cluster.slurm import read_squeue
from holmes_hpc.cluster.slurm.jobs import read_task_numbers
from holmes_hpc.cluster.slurm.records import SlurmOutputError
from holmes_hpc.runs import RunFolder, read_result, write_job, write_result
from holmes_hpc.runs.shared import memory_file_system
from holmes_hpc.submit import commands, lost, states
from holmes_hpc.submit.board import Board
from holmes_hpc.submit.commands import SlurmCommandError
from holmes_hpc.submit.ending import exit_status_of, failure
from holmes_hpc.submit.states import JobStatus, read_states, statuses
from holmes_hpc.submit.watch import LIFELESS_SECONDS, LONGEST_WAIT_SECONDS, PATIENCE_SECONDS, SubmittedRun, Watch
from tests.printing_programs import printing_programs

QUEUE = """\
JOBID|JOBID|STATE|PARTITION|NODELIST|REASON|NAME
3+0|3|RUNNING|ib|ib-[1-2]|None|mixed
3+1|4|RUNNING|roce|roce-[1-2]|None|mixed
12_[2-4,7%2]|12|PENDING|ib||JobArrayTaskLimit|ib
12_1|14|RUNNING|ib|ib-1|None|ib
12_0|13|COMPLETED|ib|ib-1|None|ib
"""
ACCOUNTED = """\
JobID|JobIDRaw|State|ExitCode|Partition|NodeList|Restarts
20|20|CANCELLED by 1000|0:15|ib|ib-1|0
20.batch|20.batch|CANCELLED|0:15||ib-1|
21+0|21|OUT_OF_ME+|0:125|ib|ib-1|0
21+1|22|COMPLETED|0:0|roce|roce-1|0
"""


def test_jobs_components_and_array_tasks() -> None:
    found = statuses(read_squeue(QUEUE))
    assert {job: status.state for job, status in found.items()} == {
        "3": "RUNNING", "12_0": "COMPLETED", "12_1": "RUNNING", "12_2": "PENDING", "12_3": "PENDING",
        "12_4": "PENDING", "12_7": "PENDING"}
    assert str(found["12_7"]) == "PENDING (JobArrayTaskLimit)"
    assert str(found["3"]) == "RUNNING"


def test_a_job_that_waits_to_be_released_is_held() -> None:
    assert JobStatus("PENDING", "JobHeldUser").held and JobStatus("PENDING", "launch failed requeued held").held
    assert not JobStatus("PENDING", "Priority").held and not JobStatus("RUNNING", "JobHeldUser").held


def test_numbers_of_waiting_tasks() -> None:
    assert read_task_numbers("[0-3,7%2]") == (0, 1, 2, 3, 7)
    assert read_task_numbers("[1-7:2]") == (1, 3, 5, 7)
    assert read_task_numbers("[0x3FF%2]") == tuple(range(10))
    assert read_task_numbers("0x8000000000000000000a") == (1, 3, 79)
    with pytest.raises(SlurmOutputError, match="SLURM_BITSTR_LEN"):
        read_task_numbers("[0-3,5,...]")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    return printing_programs(tmp_path, monkeypatch)


def test_a8_a9_one_call_for_all_jobs_and_whole_words(programs: Callable[..., Path]) -> None:
    programs("squeue", QUEUE)
    calls = programs("sacct", ACCOUNTED)
    tasks = [f"{array}_{task}" for array in range(100, 108) for task in range(1000)]
    found = read_states(["3", "20", "21", *tasks])
    assert {job: status.state for job, status in found.items()} == {
        "3": "RUNNING", "20": "CANCELLED", "21": "OUT_OF_MEMORY"}
    asked = calls.read_text().splitlines()
    assert len(asked) == 1
    assert "--parsable2" in asked[0]
    assert len(asked[0]) < 300, "an array is named once, not by its thousand tasks"


def test_jobs_of_another_cluster_are_asked_for_there(programs: Callable[..., Path]) -> None:
    asked = programs("squeue", f"CLUSTER: west\n{QUEUE}")
    sacct = programs("sacct", ACCOUNTED)
    found = read_states(["3;west", "20;west", "3"])
    assert {job: status.state for job, status in found.items()} == {
        "3;west": "RUNNING", "20;west": "CANCELLED", "3": "RUNNING"}
    assert sorted("--clusters=west" in line for line in asked.read_text().splitlines()) == [False, True]
    assert "--clusters=west" in sacct.read_text()


def test_without_accounting_the_queue_has_to_do(programs: Callable[..., Path]) -> None:
    programs("squeue", QUEUE)
    programs("sacct", "", 1)
    assert read_states(["3", "20"]).keys() == {"3"}


def test_an_accounting_that_hangs_is_not_waited_for_long_and_not_in_silence(
        programs: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    programs("squeue", QUEUE)
    programs("sacct", "")
    (tmp_path / "bin" / "sacct").write_text("#!/bin/sh\nexec sleep 250\n")
    monkeypatch.setattr(commands, "WORD_SECONDS", 0.1)
    monkeypatch.setattr(states, "ACCOUNTING_SECONDS", 0.3)
    with caplog.at_level(logging.INFO):
        assert read_states(["3", "20"], say=True).keys() == {"3"}
    assert "Slurm has not answered `sacct --parsable2" in caplog.text


def test_a_dead_controller_is_an_error(programs: Callable[..., Path]) -> None:
    programs("squeue", "", 1)
    with pytest.raises(SlurmCommandError):
        read_states(["3"])


class Slurm:
    """A clock, and a controller that answers by it."""

    def __init__(self, *answers: tuple[float, JobStatus | None | Exception]) -> None:
        self.now, self.calls, self.answers = 0.0, 0, answers

    def ask(self, jobs: Sequence[str]) -> dict[str, JobStatus]:
        self.calls += 1
        answer = [answer for start, answer in self.answers if start <= self.now][-1]
        if isinstance(answer, Exception):
            raise answer
        return {} if answer is None else dict.fromkeys(jobs, answer)


def run_until_over(tmp_path: Path, slurm: Slurm, *, requeue: bool = True, until: float = 3600.0) -> Watch:
    folder = RunFolder.create(tmp_path, "run")
    watch = Watch([SubmittedRun("3", folder, requeue)], slurm.ask, lambda: slurm.now)
    while not watch.over and slurm.now < until:
        watch.poll()
        slurm.now += 0.5
    return watch


def test_a9_slurm_is_asked_less_and_less_often(tmp_path: Path) -> None:
    slurm = Slurm((0, JobStatus("RUNNING")))
    run_until_over(tmp_path, slurm, until=600)
    assert slurm.calls < 600 / LONGEST_WAIT_SECONDS + 15


def test_a6_a_preempted_job_is_watched_on_where_it_is_requeued(tmp_path: Path) -> None:
    preempted, waiting = JobStatus("PREEMPTED"), JobStatus("PENDING", "BeginTime")
    again = Slurm((0, JobStatus("RUNNING")), (20, preempted), (25, waiting), (200, JobStatus("RUNNING")),
                  (300, JobStatus("COMPLETED")))
    assert run_until_over(tmp_path, again).over
    assert again.now > 300
    cancelled = Slurm((0, JobStatus("RUNNING")), (20, preempted))
    assert run_until_over(tmp_path, cancelled).over, "where PreemptMode=CANCEL it never comes back"
    assert 20 + PATIENCE_SECONDS < cancelled.now < 20 + 3 * PATIENCE_SECONDS
    forbidden = Slurm((0, preempted))
    assert run_until_over(tmp_path, forbidden, requeue=False).over
    assert forbidden.now < 5


def test_a_controller_that_restarts_does_not_end_a_run(tmp_path: Path) -> None:
    slurm = Slurm((0, JobStatus("RUNNING")), (10, SlurmCommandError("no answer")), (400, JobStatus("RUNNING")))
    assert not run_until_over(tmp_path, slurm, until=500).over


def test_a_queue_that_hangs_holds_up_nobody_for_long_and_is_said_at_once(
        tmp_path: Path, programs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(lost, "QUEUE_SECONDS", 0.3)
    programs("squeue", "")
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\nexec sleep 600\n")
    run = SubmittedRun("3", RunFolder.create(tmp_path, "run"))
    began = time.monotonic()
    Watch([run], lost.OwnStates([run])).poll()
    assert time.monotonic() - began < 30
    assert caplog.text.count("Slurm does not tell of the jobs (squeue ") == 1


SILENT = (0, SlurmCommandError("squeue: no answer"))


def test_where_squeue_always_fails_the_ranks_signs_of_life_are_gone_by(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    slurm = Slurm(SILENT)
    folder = RunFolder.create(tmp_path, "run")
    watch = Watch([SubmittedRun("3", folder)], slurm.ask, lambda: slurm.now)
    while not watch.over and slurm.now < 5000:
        if slurm.now < 2 * LIFELESS_SECONDS:
            folder.beat_path(0).write_text(f"{slurm.now}")
        watch.poll()
        slurm.now += 5
    assert watch.over and 3 * LIFELESS_SECONDS < slurm.now < 3 * LIFELESS_SECONDS + 100
    assert exit_status_of(watch.runs[0]) == 1
    assert read_result(folder) is None, "nobody knows how the job is"
    assert "followed no longer" in failure(watch.runs[0])
    assert caplog.text.count("Slurm does not tell of the jobs (squeue: no answer)") == 1


def test_where_squeue_always_fails_a_failed_result_ends_the_following(tmp_path: Path) -> None:
    slurm = Slurm(SILENT)
    watch = run_until_over(tmp_path, slurm, until=20)
    write_result(watch.runs[0].run.folder, "failed", error="out of memory", emulated=False)
    while not watch.over and slurm.now < 500:
        watch.poll()
        slurm.now += 0.5
    assert slurm.now < 20 + 4 * PATIENCE_SECONDS
    assert failure(watch.runs[0]) == "out of memory"


def test_a_job_that_nobody_knows_any_more_is_over(tmp_path: Path) -> None:
    watch = run_until_over(tmp_path, Slurm((0, JobStatus("RUNNING")), (10, None)))
    assert watch.over
    assert exit_status_of(watch.runs[0]) == 1
    folder = watch.runs[0].run.folder
    assert ("Slurm does not know job 3 any more, which was RUNNING before, and the run was not complete"
            in failure(watch.runs[0]))
    assert (read_result(folder) or {})["status"] == "failed"


def test_what_the_ranks_wrote_counts_more_than_slurms_word(tmp_path: Path) -> None:
    watch = run_until_over(tmp_path, Slurm((0, JobStatus("RUNNING"))), until=1)
    folder = watch.runs[0].run.folder
    write_result(folder, "completed", error=None, emulated=False)
    assert watch.poll()[0].over
    assert exit_status_of(watch.runs[0]) == 0


def test_a_preempted_run_that_stays_away_keeps_its_result(tmp_path: Path) -> None:
    watch = run_until_over(tmp_path, Slurm((0, JobStatus("FAILED"))))
    folder = watch.runs[0].run.folder
    write_result(folder, "preempted", error=None, emulated=False)
    assert exit_status_of(watch.runs[0]) == 1
    assert (read_result(folder) or {})["status"] == "preempted"
    assert "its checkpoints are kept" in failure(watch.runs[0])


@pytest.mark.parametrize(("state", "result", "said"), [
    ("CANCELLED", "preempted", "job 3 was cancelled; its newest checkpoint is that of step 8"),
    ("CANCELLED", "failed", "job 3 was cancelled; its newest checkpoint is that of step 8"),
    ("CANCELLED", None, "job 3 was cancelled"),
    ("PREEMPTED", "preempted", "job 3 was preempted and is not in the queue again"),
    ("FAILED", "preempted", "job 3 was stopped before its end, as by its time limit or a preemption, and is not in"),
    ("TIMEOUT", None, "job 3 ended as TIMEOUT before the run was complete"),
])
def test_each_end_is_called_by_its_name_and_names_the_way_on(tmp_path: Path, state: str, result: str | None,
                                                             said: str) -> None:
    watch = run_until_over(tmp_path, Slurm((0, JobStatus("RUNNING"))), until=1)
    watched = watch.runs[0]
    folder = watched.run.folder
    (folder.checkpoints / "step-000008").mkdir()
    (folder.logs / "batch.log").write_text("a line\n")
    if result is not None:
        write_result(folder, result, error=None, emulated=False)
    watched.status = JobStatus(state)
    assert exit_status_of(watched) == 1
    assert failure(watched).startswith(said)
    assert f"train.resume={folder.path}" in failure(watched)


def test_a_job_that_left_nothing_names_the_run_folder(tmp_path: Path, programs: Callable[..., Path]) -> None:
    programs("scontrol", "JobId=3 JobState=FAILED\n   NodeList=ib-7\n   ExitCode=0:53\n")
    watch = run_until_over(tmp_path, Slurm((0, JobStatus("FAILED"))))
    assert exit_status_of(watch.runs[0]) == 1
    text = failure(watch.runs[0])
    assert "ended as FAILED before the run was complete (exit code 0:53 on ib-7), and left nothing in" in text
    assert "run.folder=PATH" in text


def test_a_script_that_ended_before_its_ranks_started_names_its_setup(tmp_path: Path,
                                                                      programs: Callable[..., Path]) -> None:
    programs("scontrol", "JobId=3 JobState=FAILED\n   NodeList=ib-7\n   ExitCode=4:0\n")
    watched = run_until_over(tmp_path, Slurm((0, JobStatus("RUNNING"))), until=1).runs[0]
    (watched.run.folder.logs / "batch.log").write_text("a line\n")
    watched.status = JobStatus("FAILED")
    assert "ended as FAILED (exit code 4:0 on ib-7) before its ranks were started, as where a line of launch.setup" in (
        failure(watched))
    assert failure(watched).endswith("batch.log ends with:\na line")


def test_the_memory_of_this_machine_is_no_place_for_a_run(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"overlay / overlay rw 0 0\ntmpfs {tmp_path}/a tmpfs rw 0 0\n"
                      f"home:/x {tmp_path}/a/home nfs4 rw 0 0\n/dev/sda1 {tmp_path}/b ext4 rw 0 0\n"
                      f"tmpfs {tmp_path}/b tmpfs rw 0 0\n")
    for place, kind in (("a/runs", "tmpfs"), ("a/home/runs", None), ("b/runs", "tmpfs"), ("c", None)):
        assert memory_file_system(tmp_path / place, mounts) == kind, place


def test_without_slurm_the_table_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(tmp_path / "runs", "mixed")
    write_job(folder, job_id="16", emulated=False)
    folder.write_text(folder.config_path, "train: {steps: 20}\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.run(["jobs", "--folder", str(tmp_path / "runs")]) == 0
    assert "Slurm does not tell of the jobs: squeue: not found here" in capsys.readouterr().err


@pytest.mark.parametrize(("reason", "said"), [
    ("PartitionTimeLimit", "lower cluster.partitions.<label>.time_limit"), ("PartitionDown", "once the site opens"),
    ("QOSMaxWallDurationPerJobLimit", "a limit of its account or QOS (QOSMaxWallDurationPerJobLimit) allows a job"),
    ("AssocMaxCpuPerJobLimit", "AssocMaxCpuPerJobLimit"), ("AssocGrpNodeLimit", None), ("QOSMaxJobsPerUserLimit", None),
    ("Resources", None), (None, None)])
def test_a_job_that_waits_for_what_no_other_job_makes_free_is_said_to_need_a_change(reason: str | None,
                                                                                    said: str | None) -> None:
    obstacle = JobStatus("PENDING", reason).obstacle
    assert obstacle is None if said is None else said in (obstacle or "")
    assert JobStatus("RUNNING", reason).obstacle is None


def test_a_failed_script_shows_the_end_of_its_log(tmp_path: Path) -> None:
    watch = run_until_over(tmp_path, Slurm((0, JobStatus("TIMEOUT"))))
    run = watch.runs[0].run
    (run.folder.logs / "batch.log").write_text("line\n" * 100 + "slurmstepd: *** JOB 3 CANCELLED DUE TO TIME LIMIT\n")
    assert exit_status_of(watch.runs[0]) == 1
    text = failure(watch.runs[0])
    assert "TIMEOUT" in text
    assert text.endswith("DUE TO TIME LIMIT")
    assert text.count("\n") < 20


def test_of_components_the_reason_that_does_not_go_by_is_told() -> None:
    jobs = read_squeue("JOBID|JOBID|STATE|PARTITION|NODELIST|REASON|NAME\n"
                       "16+0|16|PENDING|ib||PartitionNodeLimit|train\n16+1|17|PENDING|roce||Resources|train\n"
                       "20+0|20|PENDING|ib||Priority|train\n20+1|21|PENDING|roce||Resources|train\n")
    assert {whole: str(status) for whole, status in statuses(jobs).items()} == {
        "16": "PENDING (PartitionNodeLimit)", "20": "PENDING (Priority)"}


def test_a_cancelled_job_stays_cancelled_when_slurm_has_forgotten_it(tmp_path: Path) -> None:
    for status in (None, "preempted", "failed"):
        folder = RunFolder.create(tmp_path, "mixed")
        write_job(folder, job_id="16", emulated=False)
        answers = iter([{"16": JobStatus("CANCELLED")}, {}])
        watch = Watch([SubmittedRun("16", folder, requeue=True)], ask=lambda jobs, told=answers: next(told))
        watch._due = 0.0
        watch.poll()
        if status is not None:
            write_result(folder, status, error="the job was cancelled", emulated=False)
        later = Watch([SubmittedRun("16", folder, requeue=True)], ask=lambda jobs, told=answers: next(told))
        later.poll()
        assert [Board({}).row(watched).state for watched in (*watch.runs, *later.runs)] == ["cancelled"] * 2
