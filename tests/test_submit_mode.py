"""Where `launch.mode` sends a run, from an environment and what the machine offers."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc import cli
from holmes_hpc.cluster import read_cluster
from holmes_hpc.cluster.slurm import read_allocation, read_place
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import LaunchImpossibleError
from holmes_hpc.launch.slurm.in_allocation import allocation_command, step_environment
from holmes_hpc.runs import RunFolder, write_result
from holmes_hpc.runs.job import describe_job
from holmes_hpc.submit import Decision, commands, controller, decide_mode, patience
from holmes_hpc.submit.controller import Controller, ask_controller
from holmes_hpc.submit.machines import show_machines_until_over
from holmes_hpc.submit.mode import Probes
from holmes_hpc.submit.watch import LIFELESS_SECONDS
from tests.run_folders import make_run, metric

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "ib-[1-2],roce-[1-2]", "SLURM_TASKS_PER_NODE": "2(x4)"}
BATCH = {**JOB, "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
STEP = {**JOB, "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8"}
HET = {"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "ib-[1-2]",
       "SLURM_JOB_NODELIST_HET_GROUP_1": "roce-[1-2]", "SLURM_JOB_ID_HET_GROUP_1": "8"}
ABSENT = Controller(None, "this machine has no Slurm", here=False)


@pytest.fixture(scope="module")
def config() -> Any:
    return compose(["+cluster=mixed"])


def decide(config: Any, environment: dict[str, str], *, partitions: set[str] | None = None, namespaces: bool = True,
           nodes_of_job: int | None = None, controller: Controller | None = None) -> Decision:
    known = ABSENT if partitions is None else Controller(frozenset(partitions))
    probes = Probes(controller=lambda: controller or known, namespaces=lambda: (namespaces, "not allowed here"),
                    nodes_of_job=lambda job: nodes_of_job)
    return decide_mode(config, read_cluster(config.cluster), environment, probes)


@pytest.mark.parametrize(("environment", "mode"), [
    (STEP, "rank"),
    (JOB, "srun"),
    (HET, "srun"),
    (BATCH, "srun"),
    ({**STEP, "SLURM_PTY_PORT": "5", "SLURM_PROCID": "0"}, "srun"),
    ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, "srun"),
    ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0"}, "srun"),
    ({}, "slurm"),
], ids=["a site's srun", "salloc", "salloc of components", "batch script", "srun --pty", "a notebook",
        "salloc's own interactive step", "login node"])
def test_the_order_of_auto(config: Any, environment: dict[str, str], mode: str) -> None:
    assert decide(config, environment, partitions={"ib", "roce"}).mode == mode


def test_a_notebook_in_a_small_job_submits_a_job_of_its_own(config: Any) -> None:
    notebook = {**JOB, "SLURM_JOB_NODELIST": "ib-1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    decision = decide(config, notebook, partitions={"ib", "roce"}, nodes_of_job=1)
    assert decision.mode == "slurm"
    assert "has 1 of the 4 nodes" in decision.reason
    assert decide(config, notebook, partitions={"ib", "roce"}, nodes_of_job=4).mode == "srun", "its step is smaller"
    for place in ({}, {"SLURM_PROCID": "0"}):
        with pytest.raises(LaunchImpossibleError, match="has 1 of the 4 nodes"):
            decide(config, {**JOB, "SLURM_JOB_NODELIST": "ib-1", **place}, partitions={"ib", "roce"})


def test_a_step_of_another_size_is_refused(config: Any) -> None:
    with pytest.raises(LaunchImpossibleError, match="srun started 4 tasks in job 7"):
        decide(config, {**STEP, "SLURM_STEP_NUM_TASKS": "4"}, partitions={"ib", "roce"})
    with pytest.raises(LaunchImpossibleError, match="task 3 of `srun --pty`"):
        decide(config, {**STEP, "SLURM_PTY_PORT": "5"}, partitions={"ib", "roce"})


def test_without_slurm_the_cluster_is_emulated_and_the_reason_is_told(config: Any) -> None:
    plain = decide(config, {})
    assert plain.mode == "emulated"
    assert plain.reason == "emulated cluster on this machine (network namespaces)"
    assert "this machine has no Slurm" in plain.not_slurm
    assert decide(site_of(config), {}).mode == "emulated", "a site's own cluster too"
    unknown = decide(config, {}, partitions={"gpu", "cpu"})
    assert unknown.mode == "emulated", "a cluster that ships with us"
    assert unknown.full_reason.count("lurm knows no partition ib, roce") == 1, unknown.full_reason
    assert unknown.full_reason.count("not to Slurm") == unknown.reason.count("not to Slurm") == 1
    assert "Slurm knows no partition ib, roce; it knows cpu, gpu" in unknown.full_reason
    assert "gpu" not in unknown.reason and "knows no partition ib, roce" in unknown.reason, "one short line"
    assert decide(config, {}, namespaces=False).mode == "local"


def site_of(config: Any, **changes: Any) -> Any:
    """Return the cluster as a site's own, whose label ib has its partition's name mistyped."""
    changed = config.copy()
    changed.cluster.name, changed.cluster.partitions.ib.partition = "ours", "gpu-ibb"
    changed.launch.mode = changes.get("mode", "auto")
    return changed


SILENT = Controller(None, "the controller did not answer within 20 s")


@pytest.mark.parametrize(("told", "said"), [
    (Controller(frozenset({"gpu-ib", "roce"})), r"knows no partition gpu-ibb; it knows gpu-ib, roce; set "
                                                r"cluster\.partitions\.ib\.partition\. .*launch\.mode=emulated"),
    (SILENT, "did not answer within 20 s, so whether Slurm has the partitions gpu-ibb, roce is not known"),
], ids=["a mistyped partition", "silence"])
@pytest.mark.parametrize("namespaces", [True, False])
def test_where_there_is_slurm_a_sites_cluster_is_never_played_unasked(config: Any, told: Controller, said: str,
                                                                     namespaces: bool) -> None:
    with pytest.raises(LaunchImpossibleError, match=said) as refused:
        decide(site_of(config), {}, controller=told, namespaces=namespaces)
    assert refused.value.exit_status == 2
    assert decide(site_of(config, mode="emulated"), {}, controller=told).mode == "emulated"
    assert decide(site_of(config, mode="local"), {}, controller=told).mode == "local"
    with pytest.raises(LaunchImpossibleError, match=r"launch\.mode=slurm is impossible here"):
        decide(site_of(config, mode="slurm"), {}, controller=told)


def test_a_cluster_of_ours_is_a_sites_own_where_slurm_may_have_its_partitions(config: Any) -> None:
    assert decide(config, {}, controller=SILENT).mode == "emulated"
    assert "did not answer" in decide(config, {}, controller=SILENT).full_reason
    laptop = compose(["+cluster=laptop"])
    configured = Controller(None, "the controller is down", configured=frozenset({"ib", "login"}))
    assert decide(laptop, {}, controller=configured).mode == "emulated"
    for told in (configured, Controller(frozenset({"ib", "login"}))):
        with pytest.raises(LaunchImpossibleError, match="roce"):
            decide(config, {}, controller=told)
    assert decide(compose(["+cluster=uniform"]), {}, controller=SILENT).mode == "emulated"
    own = compose(["+cluster=uniform", "cluster.name=ours"])
    with pytest.raises(LaunchImpossibleError, match=r"write cluster\.partitions"):
        decide(own, {}, partitions={"ib"})


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Slurm's commands and configuration; programs put into the folder are on its PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(controller, "CONFIGURATIONS", (tmp_path / "slurm.conf",))
    return tmp_path


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("sinfo", "said"), [
    ("echo 'slurm_load_partitions: Unable to contact slurm controller (connect failure)' >&2; exit 1",
     "the controller is down or cannot be reached (`sinfo --noheader --format=%R`: slurm_load_partitions: Unable to"),
    ("exec /bin/sleep 60", "the controller did not answer within 0.5 s"),
    ("echo 'slurm_load_partitions: Access/permission denied' >&2; exit 1",
     "the controller refused the question (`sinfo --noheader --format=%R`: slurm_load_partitions: Access/permission"),
    ("echo 'sinfo: error: Munge encode failed: Failed to access \"/run/munge/munge.socket.2\": No such file' >&2\n"
     "echo 'slurm_load_partitions: Protocol authentication error' >&2; exit 1",
     "munged does not run on this machine, so its commands cannot say who you are (`sinfo --noheader --f"),
    ("echo 'slurm_load_partitions: Protocol authentication error' >&2; exit 1",
     "the controller does not believe who you are (`sinfo --noheader --format=%R`: slurm_load_partitions: Protocol"),
    ("echo 'sinfo: fatal: Could not establish a configuration source' >&2; exit 1", "find no configuration"),
    ("echo 'sinfo: error: s_p_parse_file: cannot stat file /x, retrying in 1sec up to 60sec' >&2; exec /bin/sleep 60",
     "find no configuration here (`sinfo --noheader --format=%R`: sinfo: error: s_p_parse_file: cannot stat file /x"),
    (None, "sbatch is on the PATH, but sinfo is not"),
], ids=["down", "slow", "refused", "without munged", "another key", "not configured", "configuration away", "missing"])
def test_each_cause_of_silence_is_told_as_what_it_is(machine: Path, sinfo: str | None, said: str) -> None:
    program(machine / "sbatch", "exit 1")
    if sinfo is not None:
        program(machine / "sinfo", sinfo)
    found = ask_controller(patience_seconds=0.5)
    assert found.here and found.partitions is None and found.configured is None
    assert said in found.silence


def test_a_machine_has_slurm_by_its_commands_its_configuration_or_a_variable(machine: Path) -> None:
    assert not ask_controller({}).here
    named = ask_controller({"SLURM_CONF": "/opt/slurm.conf"})
    assert named.here and "configured here (/opt/slurm.conf), but sinfo is not on the PATH" in named.silence
    (machine / "slurm.conf").write_text("ClusterName=c\ninclude more.conf\nPartitionName=DEFAULT State=UP\n"
                                        "PartitionName=gpu Nodes=n1\n")
    (machine / "more.conf").write_text(" PartitionName=ib Nodes=n2\n")
    assert ask_controller({}).configured == {"gpu", "ib"}
    program(machine / "sinfo", "echo gpu; echo 'ib*'")
    assert ask_controller({}).partitions == {"gpu", "ib"}


def test_a_slow_controller_is_waited_for_with_a_word(machine: Path, monkeypatch: pytest.MonkeyPatch,
                                                     caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(commands, "WORD_SECONDS", 0.1)
    program(machine / "sinfo", "/bin/sleep 0.4; echo ib")
    with caplog.at_level(logging.INFO):
        assert ask_controller({}, patience_seconds=10).partitions == {"ib"}
    assert caplog.messages == ["Slurm has not answered `sinfo --noheader --format=%R` for 0.1 s; waiting for up to "
                               "10 s"]


def test_a_controller_that_restarts_is_asked_again(machine: Path, monkeypatch: pytest.MonkeyPatch,
                                                   caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(patience, "FIRST_WAIT_SECONDS", 0.05)
    program(machine / "sinfo", f"cd {machine}; [ -e up ] && echo ib && exit\n: > up\n"
                               "echo 'sinfo: error: Socket timed out on send/recv operation' >&2; exit 1")
    with caplog.at_level(logging.INFO):
        assert ask_controller({}).partitions == {"ib"}
    assert "Socket timed out on send/recv operation; asking again in 0.05 s" in caplog.text


def test_forced_modes(config: Any) -> None:
    def forced(mode: str, environment: dict[str, str], **machine: Any) -> Decision:
        changed = config.copy()
        changed.launch.mode = mode
        return decide(changed, environment, **machine)

    assert forced("local", STEP, partitions={"ib", "roce"}).mode == "local"
    assert forced("emulated", STEP, partitions={"ib", "roce"}).mode == "emulated"
    with pytest.raises(LaunchImpossibleError, match=r"launch\.mode=slurm is impossible here: this machine has no"):
        forced("slurm", {})
    with pytest.raises(LaunchImpossibleError, match=r"launch\.mode=emulated is impossible here: not allowed"):
        forced("emulated", {}, namespaces=False)


def step(config: Any, environment: dict[str, str], tmp_path: Path) -> str:
    return allocation_command(config, RunFolder(tmp_path), read_allocation(environment), read_place(environment))


def test_a17_steps_overlap_only_where_another_step_holds_the_cores(config: Any, tmp_path: Path) -> None:
    assert "--overlap" not in step(config, JOB, tmp_path)
    assert "--overlap" not in step(config, BATCH, tmp_path)
    assert "--overlap" in step(config, {**STEP, "SLURM_PTY_PORT": "5"}, tmp_path)


def test_the_step_inside_an_allocation_says_its_size(config: Any, tmp_path: Path) -> None:
    assert step(config, JOB, tmp_path).startswith("srun --kill-on-bad-exit=1 --nodes=4 --ntasks=8 --ntasks-per-node=2 ")
    assert step(config, HET, tmp_path).startswith(
        "srun --het-group=0,1 --nodes=2 --ntasks=4 --ntasks-per-node=2 --kill-on-bad-exit=1 ")
    with pytest.raises(LaunchImpossibleError, match="has 3 components, and mixed needs 2: ib, roce"):
        step(config, {**HET, "SLURM_HET_SIZE": "3", "SLURM_JOB_NODELIST_HET_GROUP_2": "ib-3"}, tmp_path)


def test_a_new_step_is_not_told_of_the_old_one() -> None:
    kept = step_environment({**STEP, **HET, "SLURM_CPU_BIND": "mask", "SLURM_MEM_PER_CPU": "100", "HOME": "/home/a"})
    assert kept.keys() >= {"SLURM_JOB_ID", "SLURM_HET_SIZE", "SLURM_JOB_NODELIST_HET_GROUP_0", "HOME"}
    assert not kept.keys() & {"SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_CPU_BIND", "SLURM_MEM_PER_CPU", "SLURM_PROCID"}


@pytest.mark.parametrize("module", ["launch.step", "submit.outcome", "submit.step_guard"])
def test_modules_of_batch_scripts_say_what_they_want(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", f"holmes_hpc.{module}"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"usage: python -m holmes_hpc.{module} RUN_FOLDER") and done.stdout == ""


def test_a_cluster_file_is_not_written_where_slurm_tells_nothing(machine: Path, tmp_path: Path,
                                                                 capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["site", "ours", "--output", "-"]) == 2
    assert "this machine has no Slurm" in capsys.readouterr().err
    program(machine / "sinfo", "echo 'sinfo: error: resolve_ctls_from_dns_srv: res_nsearch error' >&2\n"
                               "echo 'sinfo: fatal: Could not establish a configuration source' >&2; exit 1")
    assert cli.run(["site", "ours", "--output", "-"]) == 2
    told = capsys.readouterr()
    assert len(told.err.splitlines()) == 1 and told.out == ""
    assert "set SLURM_CONF" in told.err and "--nodes" in told.err


def test_a_run_that_lost_its_record_was_not_cancelled_before_it_was_submitted(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`holmes jobs` called a completed run failed, and `holmes cancel` wrote so into one that went on."""
    done = make_run(tmp_path / "runs", metrics=[metric(1)],
                    result={"status": "completed", "steps": 1})
    (done / "job.json").unlink(missing_ok=True)
    assert cli.run(["jobs", str(done)]) == 0
    told = capsys.readouterr().out
    assert f"{done} says in no job.json that can be read where it was started, emulated: completed at step 1" in told
    assert "not submitted" not in told and "failed" not in told
    (done / "result.json").unlink()
    assert cli.run(["cancel", str(done)]) == 0 and not (done / "result.json").exists()
    assert "is no job of Slurm: end it where it runs" in capsys.readouterr().out
    (done / "job-7.json").write_text("{}")  # set aside, to be submitted again
    assert cli.run(["cancel", str(done)]) == 0 and (done / "result.json").exists()


def test_a_run_of_this_machine_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(tmp_path / "runs", "laptop", {"config.yaml": "train: {steps: 9}\n",
                                                            "job.json": json.dumps(describe_job(emulated=True))})
    folder.append_metrics({"step": 4, "loss": 3.0, "tokens_per_second": 1234.5})
    assert cli.run(["jobs", "laptop"]) == 0
    told = capsys.readouterr()
    assert f"{folder.path} is no job of Slurm but a run of the machine " in told.out and told.err == ""
    assert ": at step 4 of 9, 1,234 tokens/s, loss 3.000, going on; its logs: `holmes logs " in told.out
    assert cli.run(["jobs"]) == 0
    assert capsys.readouterr().out == told.out
    write_result(folder, "completed", error=None, emulated=True)
    assert cli.run(["jobs", str(folder.path)]) == 0
    assert ": completed at step 4 of 9, 1,234 tokens/s, loss 3.000; its logs" in capsys.readouterr().out


def test_a_run_of_this_machine_is_watched_until_it_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(tmp_path / "runs", "laptop", {"config.yaml": "train: {steps: 9}\n",
                                                            "job.json": json.dumps(describe_job(emulated=True))})
    folder.append_metrics({"step": 4, "loss": 3.0})
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            folder.append_metrics({"step": 9, "loss": 2.0})
            write_result(folder, "completed", error=None, emulated=True)

    show_machines_until_over([folder], sys.stdout, sleep=sleep)
    first, last = capsys.readouterr().out.splitlines()
    assert ": at step 4 of 9, loss 3.000, going on; " in first
    assert ": completed at step 9 of 9, loss 2.000; " in last and len(looks) == 3
    assert cli.run(["jobs", "laptop", "--watch"]) == 0
    assert capsys.readouterr().out.splitlines() == [last]


def test_a_watched_run_of_this_machine_whose_command_died_is_over(tmp_path: Path,
                                                                  capsys: pytest.CaptureFixture[str]) -> None:
    job = {**describe_job(emulated=True), "main_start": 1}
    folder = RunFolder.create(tmp_path, "laptop", {"config.yaml": "{}", "job.json": json.dumps(job)})
    show_machines_until_over([folder], sys.stdout, sleep=lambda seconds: pytest.fail("it is over"))
    assert "its command has ended without a word at step 0" in capsys.readouterr().out


def test_a_watched_run_of_another_machine_is_over_once_it_is_silent_for_long(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = {**describe_job(emulated=True), "host": "another"}
    folder = RunFolder.create(tmp_path, "laptop", {"config.yaml": "{}", "job.json": json.dumps(job)})
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 100.0
        if now[0] == 500.0:
            folder.append_metrics({"step": 1})

    show_machines_until_over([folder], sys.stdout, clock=lambda: now[0], sleep=sleep)
    assert 500.0 + LIFELESS_SECONDS < now[0] <= 700.0 + LIFELESS_SECONDS
    told = capsys.readouterr().out.splitlines()
    assert [line.partition("another, emulated: ")[2].partition(",")[0] for line in told] == ["at step 0", "at step 1"]
