"""Jobs, their states and ids, as squeue and sacct tell of them."""

from __future__ import annotations

import pytest

from holmes_hpc.cluster.slurm import SlurmOutputError, read_job_id, read_sacct, read_squeue, states_of_jobs
from holmes_hpc.cluster.slurm.states import combined_state, is_final, read_job_state
from tests.slurm_data import text

WAITING = {f"18_{task}": "PENDING" for task in range(10)}
"""What the recordings hold of an array of ten tasks that wait."""


@pytest.mark.parametrize(("said", "state"), [
    ("CANCELLED by 1000", "CANCELLED"), ("OUT_OF_ME+", "OUT_OF_MEMORY"), ("PD", "PENDING"), ("R", "RUNNING"),
    ("NF", "NODE_FAIL"), ("COMPLETED", "COMPLETED"), ("", "UNKNOWN"), ("CANCELLED+", "CANCELLED"),
    ("BRAND_NEW", "BRAND_NEW"),
])
def test_job_states(said: str, state: str) -> None:
    assert read_job_state(said) == state


def test_a_preempted_job_has_ended_only_where_it_is_not_requeued() -> None:
    assert is_final("PREEMPTED") and not is_final("PREEMPTED", requeue=True)
    assert is_final("FAILED", requeue=True)
    assert not is_final("PENDING")


@pytest.mark.parametrize(("states", "whole"), [
    (["RUNNING", "CANCELLED"], "RUNNING"), (["PENDING", "RUNNING"], "RUNNING"), (["COMPLETED", "FAILED"], "FAILED"),
    (["COMPLETED", "COMPLETED"], "COMPLETED"), (["COMPLETED", "PENDING"], "PENDING"),
    (["COMPLETING", "COMPLETED"], "COMPLETING"), ([], "UNKNOWN"),
])
def test_a_job_of_several_components_lives_while_one_does(states: list[str], whole: str) -> None:
    assert combined_state(states) == whole


@pytest.mark.parametrize(("said", "parts"), [
    ("7", (7, None, None, None)), ("3+1", (3, 1, None, None)), ("12_4", (12, None, "4", None)),
    ("12_[0-3,7%2]", (12, None, "[0-3,7%2]", None)), ("3+0.batch", (3, 0, None, "batch")),
    ("9.0", (9, None, None, "0")),
])
def test_job_ids(said: str, parts: tuple) -> None:
    identity = read_job_id(said)
    assert (identity.job, identity.component, identity.task, identity.step) == parts
    assert str(identity) == said


def test_a_text_that_is_no_job_id_is_refused() -> None:
    with pytest.raises(SlurmOutputError, match="no job id"):
        read_job_id("Submitted batch job 7")
    assert read_job_id("3+1").whole == "3" and read_job_id("12_4").whole == "12_4"


def test_squeue_in_both_forms() -> None:
    old, new = read_squeue(text("squeue-22.05.json")), read_squeue(text("squeue-24.11.json"))
    assert states_of_jobs(old) == {"1": "COMPLETED", "2": "COMPLETED", "3": "RUNNING"}
    assert states_of_jobs(new) == {"16": "RUNNING", **WAITING}
    component = next(job for job in old if str(job.id) == "3+1")
    assert (component.own_id, component.partition, component.nodes) == (4, "roce", ("roce-1", "roce-2"))

    ours = read_squeue("JOBID|JOBID|STATE|PARTITION|NODELIST|REASON|NAME\n"
                       "18_[0-9%2]|18|PENDING|ib||Resources|a|b\n16+0|16|RUNNING|ib|ib-[1-2]|None|train\n"
                       "16+1|17|CANCELLED|roce|roce-[1-2]|None|train\n10_1|10|COMPLETED|mixed|ib-1|None|x\n")
    assert states_of_jobs(ours) == {**WAITING, "16": "RUNNING", "10_1": "COMPLETED"}
    assert (ours[0].reason, ours[0].nodes, ours[0].name) == ("Resources", (), "a|b")
    assert (ours[2].own_id, ours[2].nodes) == (17, ("roce-1", "roce-2"))

    default = read_squeue("             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
                          "        18_[0-9%2]        ib   sbatch     root PD       0:00      1 (Resources)\n"
                          "              16+0        ib   sbatch     root  R       0:02      2 ib-[1-2]\n")
    assert [(str(job.id), job.state, job.nodes, job.reason) for job in default] == [
        ("18_[0-9%2]", "PENDING", (), "Resources"), ("16+0", "RUNNING", ("ib-1", "ib-2"), None)]


def test_sacct_in_both_forms() -> None:
    jobs = read_sacct("JobID|JobIDRaw|State|ExitCode|Partition|NodeList|Restarts\n"
                      "16+0|16|CANCELLED by 0|0:0|ib|ib-[1-2]|0\n16+0.batch|16.batch|CANCELLED|0:15||ib-1|0\n"
                      "16+1|17|CANCELLED by 0|0:0|roce|roce-[1-2]|0\n"
                      "75|75|PREEMPTED|0:0|ib|ib-[1-2]|0\n75|75|COMPLETED|0:0|ib|ib-[1-2]|1\n"
                      "80|80|OUT_OF_ME+|0:125|ib|ib-1|0\n81|81|PENDING|0:0|ib|None assigned|0\n"
                      "18_3|21|FAILED|7:0|ib|ib-1|0\n")
    assert states_of_jobs(jobs) == {"16": "CANCELLED", "75": "COMPLETED", "80": "OUT_OF_MEMORY", "81": "PENDING",
                                    "18_3": "FAILED"}
    assert [job.id.step for job in jobs[:3]] == [None, "batch", None]
    assert (jobs[1].signal, jobs[7].exit_code, jobs[4].restarts, jobs[6].nodes) == (15, 7, 1, ())

    assert states_of_jobs(read_sacct(text("sacct-22.05.json"))) == {"3": "COMPLETED"}
    assert [(str(job.id), job.own_id) for job in read_sacct(text("sacct-22.05.json"))] == [("3+0", 3), ("3+1", 4)]
    assert states_of_jobs(read_sacct(text("sacct-24.11.json"))) == {
        "2": "COMPLETED", "10_0": "COMPLETED", "10_1": "COMPLETED", "16": "RUNNING", **WAITING}
