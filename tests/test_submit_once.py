"""Submissions while Slurm's controller is busy or restarts: asked again, and no job is submitted twice."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.runs import RunFolder, read_result
from holmes_hpc.submit import commands, once, patience
from holmes_hpc.submit.commands import (
    MissingCommandError,
    RefusedSubmissionError,
    SlurmCommandError,
    SubmissionLimitError,
    TransientSlurmError,
    passes,
    refused_submission,
)
from holmes_hpc.submit.job import submit
from tests.runs_for_tests import ROOT, newest_run
from tests.slurm_cluster import SlurmCluster
from tests.slurm_cluster.fixture import MakeSlurm
from tests.slurm_sites import TINY, holmes, site, without_torch

LOST = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"

SBATCH = """\
#!/bin/sh
cd {folder}
for last; do :; done
echo "$last" >> asked
tries=$(wc -l < asked)
. ./answer
"""
SQUEUE = """\
#!/bin/sh
cd {folder}
echo x >> searched
if [ -e busy ]; then rm busy; {lost}; fi
cat queue
"""
TAKE = 'echo "$1|$last" >> queue'


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm whose sbatch answers as the file `answer` says, and whose queue is the file `queue`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("sacct", "#!/bin/sh\nexit 1\n"),
                       ("scancel", "#!/bin/sh\necho $* >> {folder}/cancelled\n")):
        (folder / name).write_text(text.format(folder=folder, lost=LOST))
        (folder / name).chmod(0o755)
    (folder / "queue").touch()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(patience, "FIRST_WAIT_SECONDS", 0.01)
    return folder


def submitted(tmp_path: Path) -> tuple[str, RunFolder]:
    folder = RunFolder.create(tmp_path / "runs", "run")
    return submit(compose(["+cluster=mixed"]), folder).job_id, folder


def test_a_job_that_slurm_took_although_its_answer_was_lost_is_not_submitted_again(
        tmp_path: Path, slurm: Path, caplog: pytest.LogCaptureFixture) -> None:
    (slurm / "answer").write_text(f'echo "66+0|$last" >> queue; echo "66+1|$last" >> queue; echo "5|/else" >> queue\n'
                                  f"{LOST}\n")
    (slurm / "busy").touch()  # the first search fails as well: nothing is submitted before one succeeds
    with caplog.at_level(logging.INFO):
        job, folder = submitted(tmp_path)
    assert job == "66"
    assert (slurm / "asked").read_text().count("\n") == 1
    assert (slurm / "searched").read_text().count("\n") >= 2
    assert "Socket timed out on send/recv operation; asking again in 0.01 s" in caplog.text
    script = next((folder.path / "submission").glob("[!.]*.sh"))
    assert script.name == "66_submission.sh"
    assert script.read_text().startswith("#!/bin/bash\n")


def test_a_controller_that_is_busy_is_asked_again(tmp_path: Path, slurm: Path) -> None:
    (slurm / "answer").write_text(f"[ $tries -lt 3 ] && {{ {LOST}; }}\necho 7; echo \"7|$last\" >> queue\n")
    assert submitted(tmp_path)[0] == "7"
    assert (slurm / "asked").read_text().count("\n") == 3
    assert not (slurm / "cancelled").exists()


def test_a_job_that_slurm_takes_late_and_so_twice_is_cancelled(tmp_path: Path, slurm: Path) -> None:
    late = 'echo "6|$(head -n1 asked)" >> queue; echo "7|$last" >> queue; echo 7'
    (slurm / "answer").write_text(f"[ $tries = 1 ] && {{ {LOST}; }}\n{late}\n")
    assert submitted(tmp_path)[0] == "6"
    assert (slurm / "cancelled").read_text() == "7\n"


def test_patience_ends_and_the_run_keeps_its_reason(tmp_path: Path, slurm: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "PATIENCE_SECONDS", 0.05)
    (slurm / "answer").write_text(LOST)
    with pytest.raises(TransientSlurmError, match="squeue --me"):
        submitted(tmp_path)
    folder = newest_folder(tmp_path)
    assert "Socket timed out" in (read_result(folder) or {})["error"]


@pytest.mark.parametrize("taken", [True, False])
def test_an_sbatch_that_does_not_end_is_ended_and_the_queue_asked(
        tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch, taken: bool) -> None:
    monkeypatch.setattr(commands, "SUBMISSION_SECONDS", 1.0)
    take = 'echo "7|$last" >> queue;' if taken else ""
    second = 'echo "8|$last" >> queue; echo 8'
    (slurm / "answer").write_text(f"[ $tries = 1 ] && {{ {take} exec sleep 600; }}\n{second}\n")
    assert submitted(tmp_path)[0] == ("7" if taken else "8")
    assert (slurm / "asked").read_text().count("\n") == (1 if taken else 2)


def newest_folder(tmp_path: Path) -> RunFolder:
    return RunFolder(next((tmp_path / "runs").glob("*/2*")))


@pytest.mark.parametrize(("said", "kind", "status"), [
    ("Batch job submission failed: Invalid account or account/partition combination specified",
     RefusedSubmissionError, 2),
    ("Batch job submission failed: Invalid qos specification", RefusedSubmissionError, 2),
    ("Batch job submission failed: Invalid feature specification", RefusedSubmissionError, 2),
    ("Batch job submission failed: Required partition not available (inactive or drain)", RefusedSubmissionError, 2),
    ("unrecognized option '--nonsense'", RefusedSubmissionError, 2),
    ("QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
     "(job submit limit, user's size and/or time limits)", SubmissionLimitError, 1),
])
def test_what_sbatch_refuses_because_of_options_is_status_2(
        tmp_path: Path, slurm: Path, said: str, kind: type[SlurmCommandError], status: int) -> None:
    (slurm / "said").write_text(f"sbatch: error: {said}\n")
    (slurm / "answer").write_text("cat said >&2; exit 1\n")
    with pytest.raises(kind) as refused:
        submitted(tmp_path)
    assert refused.value.exit_status == status
    assert said.splitlines()[-1] in str(refused.value)
    assert (slurm / "asked").read_text().count("\n") == 1


def test_without_sbatch_that_is_what_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingCommandError, match="sbatch: not found here"):
        submitted(tmp_path)


@pytest.mark.parametrize("said", [
    "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
    "slurm_load_jobs error: Socket timed out on send/recv operation",
    "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
    "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
    "slurm_load_partitions: Slurm backup controller in standby mode",
    "sbatch: error: Munge encode failed: Failed to access \"/run/munge/munge.socket.2\": No such file or directory\n"
    "sbatch: error: Batch job submission failed: Protocol authentication error",
    "slurm_requeue error: Zero Bytes were transmitted or received",
])
def test_what_passes_by_itself(said: str) -> None:
    assert passes(said)
    assert refused_submission(said) is TransientSlurmError


@pytest.mark.slurm
@pytest.mark.parametrize("first", [
    pytest.param("/usr/bin/sbatch $* >/dev/null", id="taken"),
    pytest.param(":", id="not taken", marks=pytest.mark.long),
    pytest.param("scontrol shutdown; (sleep 2; slurmctld) &", id="the controller restarts", marks=pytest.mark.long)])
def test_a_lost_answer_of_a_real_sbatch_leads_to_one_job(each_slurm: SlurmCluster, first: str) -> None:
    program = each_slurm.shared / "lossy" / "sbatch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nfirst={program.parent}/first\n[ -e $first ] && exec /usr/bin/sbatch "$@"\n'
                       f': > $first\n{first}\n{LOST}\n')
    program.chmod(0o755)
    done = holmes(each_slurm, "train", [site(each_slurm), without_torch(each_slurm), "+cluster=pair", *TINY,
                                        "launch.wait=false"],
                  environment={"PATH": f"{program.parent}:{os.environ['PATH']}"})
    assert "Socket timed out on send/recv operation; asking again in 1 s" in done.stderr
    whole = {name.partition("+")[0] for name, job in each_slurm.squeue().items() if "+" in name}
    assert len(whole) == 1, "one job of two components"
    folder = newest_run(each_slurm.shared)
    assert folder is not None
    assert f"submitted job {whole.pop()};" in done.stderr
    assert ("Slurm had taken job" in done.stderr) == ("sbatch" in first)


@pytest.mark.long
@pytest.mark.slurm
def test_refusals_limits_and_forgotten_jobs_of_a_real_slurm_with_accounting(make_each_slurm: MakeSlurm) -> None:
    slurm = make_each_slurm(accounting=True, extra=("AccountingStorageEnforce=associations,limits,qos",))
    slurm.run("sacctmgr -i add account physics && sacctmgr -i add user root account=physics && "
              "sacctmgr -i modify user root set MaxSubmitJobs=2 && "
              "scontrol create partition=drained nodes=ib-1 state=drain")
    run = [site(slurm), without_torch(slurm), "+cluster=pair", *TINY, "launch.wait=false"]
    for setting, said in (("account=chemistry", "Invalid account"), ("qos=gold", "Invalid qos"),
                          ("constraint=no_such_feature", "Invalid feature"),
                          ("partition=drained", "inactive or drain")):
        refused = holmes(slurm, "train", [*run, f"cluster.partitions.ib.{setting}"], check=False)
        assert (refused.status, said in refused.stderr, "Traceback" in refused.stderr) == (2, True, False), \
            refused.stderr
    assert not any("+" in name for name in slurm.squeue()), "none was taken"
    holmes(slurm, "train", run)  # whose two components are all that one may submit
    limited = holmes(slurm, "train", run, check=False)
    assert limited.status == 1
    assert "MaxSubmitJob" in limited.stderr
    folder = next((slurm.shared / "runs" / "pair").glob("slurm-*")).resolve()
    silent = slurm.shared / "silent" / "squeue"
    silent.parent.mkdir()
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o755)
    program = ("from pathlib import Path; from holmes_hpc.submit.once import find_jobs; "
               f"print(*find_jobs(Path('{folder}')))")
    job = next(folder.parent.glob("slurm-*")).name.removeprefix("slurm-")
    deadline = time.monotonic() + 20
    while (found := slurm.run([sys.executable, "-c", program], environment={
            "PATH": f"{silent.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}).stdout.strip()) != job:
        assert time.monotonic() < deadline, found  # the accounting is a little behind
        time.sleep(0.2)
