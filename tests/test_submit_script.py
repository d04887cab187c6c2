"""What the batch script says: options of each component, what a site forbids, containers, own templates."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import submitit

from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.quoting import for_sbatch
from holmes_hpc.runs import RunFolder
from holmes_hpc.submit import executor as holmes_executor
from holmes_hpc.submit.commands import SlurmCommandError, clean_environment
from holmes_hpc.submit.components import job_components, job_shape
from holmes_hpc.submit.job import job_request, submit
from holmes_hpc.submit.options import cluster_of, file_name
from holmes_hpc.submit.script import render_script
from holmes_hpc.submit.states import JobStatus
from tests.runs_for_tests import ROOT

ONE_PARTITION = ["cluster.partitions.ib.partition=gpu", "cluster.partitions.roce.partition=gpu"]


def script(tmp_path: Path, *overrides: str) -> str:
    return render_script(job_request(compose(["+cluster=mixed", *overrides]), RunFolder.create(tmp_path, "run")))


def option_lines(text: str) -> list[list[str]]:
    """Return the options of each component."""
    parts: list[list[str]] = [[]]
    for line in text.splitlines():
        if line == "#SBATCH hetjob":
            parts.append([])
        elif line.startswith("#SBATCH "):
            parts[-1].append(line.removeprefix("#SBATCH "))
    return parts


def srun_line(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("srun "))


def test_each_component_has_its_own_options(tmp_path: Path) -> None:
    text = script(tmp_path, "cluster.partitions.ib.account=physics", "cluster.partitions.ib.time_limit='12:00:00'",
                  "cluster.partitions.roce.qos=long", "cluster.partitions.roce.gpus_per_node=4",
                  "cluster.partitions.roce.exclude='roce[1-3]'", "+launch.sbatch={reservation: course}",
                  "+cluster.partitions.roce.sbatch={mem: 0, exclusive: true}")
    first, second = option_lines(text)
    assert first[-7:] == ["--partition=ib", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2",
                          "--account=physics", "--time=12:00:00", "--reservation=course"]
    assert second == ["--partition=roce", "--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--qos=long",
                      "--exclude=roce[1-3]", "--reservation=course", "--mem=0", "--exclusive"]


def test_a42_one_script_holds_all_components_between_hetjob_lines(tmp_path: Path) -> None:
    text = script(tmp_path)
    assert len(option_lines(text)) == 2
    assert srun_line(text).startswith("srun --het-group=0,1 --kill-on-bad-exit=1 ")


def test_a46_gpus_are_asked_for_by_node(tmp_path: Path) -> None:
    lines = option_lines(script(tmp_path))
    assert all("--gpus-per-node=2" in part for part in lines)
    assert not any(line.startswith("--gpus=") for part in lines for line in part)
    typed = option_lines(script(tmp_path, "cluster.partitions.ib.gres='gpu:a100:2'"))
    assert "--gres=gpu:a100:2" in typed[0]
    assert "--gpus-per-node=2" not in typed[0]


def test_a14_nothing_is_asked_for_that_nobody_set(tmp_path: Path) -> None:
    names = {line.partition("=")[0] for part in option_lines(script(tmp_path)) for line in part}
    assert names == {"--job-name", "--output", "--open-mode", "--chdir", "--signal", "--requeue", "--partition",
                     "--nodes", "--ntasks-per-node", "--gpus-per-node"}


def test_a15_null_leaves_an_option_out(tmp_path: Path) -> None:
    text = script(tmp_path, "+launch.sbatch={ntasks_per_node: null, chdir: null, job-name: null}")
    first, second = option_lines(text)
    assert not [line for line in first + second if "ntasks-per-node" in line or "chdir" in line or "job-name" in line]
    assert "--ntasks=4" in first, "the tasks are said in the other way"
    assert "--ntasks-per-node=2" in srun_line(text), "and their places to srun, which no site's plug-in reads"
    bare = script(tmp_path, "+launch.sbatch={ntasks-per-node: null, ntasks: null, nodes: null}")
    assert not [line for part in option_lines(bare) for line in part if "ntasks" in line or "nodes" in line]
    assert "--nodes=2 --ntasks=4 --ntasks-per-node=2" in srun_line(bare)


def test_a16_cpus_per_task_are_said_to_srun_too(tmp_path: Path) -> None:
    equal = script(tmp_path, "cluster.partitions.ib.cpus_per_task=10", "cluster.partitions.roce.cpus_per_task=10")
    assert all("--cpus-per-task=10" in part for part in option_lines(equal))
    assert "--het-group=0,1 --cpus-per-task=10 " in srun_line(equal)
    unlike = srun_line(script(tmp_path, "cluster.partitions.ib.cpus_per_task=10",
                              "cluster.partitions.roce.cpus_per_task=6"))
    first, second = unlike.removeprefix("srun ").split(" : ")
    assert first.startswith("--het-group=0 --cpus-per-task=10 ")
    assert second.startswith("--het-group=1 --cpus-per-task=6 ")
    assert first.partition(" -m ")[2] == second.partition(" -m ")[2] == 'holmes_hpc.launch.step "$run"'


def test_a13_memory_is_asked_for_in_one_way(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--mem and --mem-per-cpu exclude each other"):
        script(tmp_path, "+launch.sbatch={mem: 8G}", "+cluster.partitions.roce.sbatch={mem_per_cpu: 1G}")
    assert "--mem-per-cpu=1G" in option_lines(script(tmp_path, "+launch.sbatch={mem_per_cpu: 1G, mem: null}"))[1]


@pytest.mark.parametrize(("option", "setting"), [
    ("nodes: 3", "cluster.partitions.<label>.nodes"), ("output: a.log", "run folder"), ("array: 0-3", "sweep"),
    ("signal: USR1@10", "launch.signal"), ("partition: gpu", "cluster.partitions.<label>.partition"),
])
def test_options_that_other_settings_decide_are_refused(tmp_path: Path, option: str, setting: str) -> None:
    with pytest.raises(ConfigurationError, match=setting):
        script(tmp_path, f"+launch.sbatch={{{option}}}")


def test_a2_the_signal_is_the_configured_one(tmp_path: Path) -> None:
    lines = option_lines(script(tmp_path, "launch.signal=USR1", "launch.signal_seconds=300"))[0]
    assert "--signal=USR1@300" in lines
    assert "--no-requeue" in option_lines(script(tmp_path, "launch.requeue=false"))[0]
    for wrong in ("SIGUSR2", "KILL", "usr", "12"):
        with pytest.raises(ConfigurationError, match=r"launch\.signal="):
            compose(["+cluster=mixed", f"launch.signal={wrong}"])


def test_shapes_and_why_one_is_refused(tmp_path: Path) -> None:
    def shape(*overrides: str) -> str:
        return job_shape(compose(["+cluster=mixed", *overrides]).cluster)

    features = [*ONE_PARTITION, "cluster.partitions.ib.constraint=ib", "cluster.partitions.roce.constraint='roce&eth'"]
    assert shape() == "het"
    assert shape(*ONE_PARTITION) == "plain"
    assert shape(*features) == "features"
    assert shape(*features, "cluster.partitions.ib.gpus_per_node=1") == "het"
    assert shape(*ONE_PARTITION, "cluster.partitions.ib.constraint=ib") == "het", "roce nodes have no name"

    assert "--constraint=[ib*2&(roce&eth)*2]" in option_lines(script(tmp_path, *features))[0]
    assert "--nodes=4" in option_lines(script(tmp_path, *features))[0]
    assert "--het-group" not in srun_line(script(tmp_path, *features))

    def refused(*overrides: str) -> str:
        with pytest.raises(ConfigurationError) as error:
            job_components(compose(["+cluster=mixed", *overrides]).cluster, {})
        return str(error.value)

    assert "the labels name ib, roce; use cluster.shape=het" in refused("cluster.shape=features")
    assert "the same gpus_per_node, but the labels have 1, 2" in refused(
        *features, "cluster.shape=features", "cluster.partitions.ib.gpus_per_node=1")
    assert "the same constraint" in refused(*features, "cluster.shape=plain")
    assert "needs cluster.partitions.ib.constraint" in refused(*ONE_PARTITION, "cluster.shape=features")
    assert "counts and brackets are written for you" in refused(
        *features, "cluster.partitions.ib.constraint='[ib*2]'", "cluster.shape=features")
    assert "the short form" in refused_short_form()


def refused_short_form() -> str:
    with pytest.raises(ConfigurationError) as error:
        job_components(compose(["+cluster=uniform"]).cluster, {})
    return str(error.value)


def test_containers(tmp_path: Path) -> None:
    apptainer = script(tmp_path, "launch.container=/images/holmes.sif", "launch.container_args=[--bind,/scratch]")
    assert ("apptainer exec --nv --bind /scratch /images/holmes.sif python3 -m holmes_hpc.launch.step"
            in srun_line(apptainer))
    assert f"\n{sys.executable} -m holmes_hpc.submit.outcome" in apptainer, "the script itself runs outside"
    pyxis = srun_line(script(tmp_path, "launch.container='nvcr.io#holmes:1'", "launch.container_kind=pyxis",
                             "launch.container_args=['--container-mounts=/scratch:/scratch']",
                             "launch.python=/opt/python"))
    assert "'--container-image=nvcr.io#holmes:1' --container-mounts=/scratch:/scratch /opt/python -m" in pyxis


def test_own_templates_come_first_and_their_faults_are_named(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "job.sh.j2").write_text("#!/bin/bash\n{{ step }}\n# {{ job_name }}, {{ launch.setup[0] }}\n")
    text = script(tmp_path, f"launch.templates={own}", "launch.setup=[module load cuda]")
    assert text.splitlines()[2] == "# mixed, module load cuda"
    (own / "job.sh.j2").write_text("{{ no_such_value }}")
    with pytest.raises(ConfigurationError, match=r"launch\.templates=.*no_such_value.*docs/slurm\.md"):
        script(tmp_path, f"launch.templates={own}")


def test_values_are_quoted_as_sbatch_reads_them() -> None:
    assert for_sbatch("[ib*2&roce*2]") == "[ib*2&roce*2]"
    assert for_sbatch("two words") == '"two words"'
    assert for_sbatch('a "b"') == '"a \\"b\\""'
    assert file_name("/runs/100%j/batch.log") == "/runs/100%%j/batch.log"


def test_a51_the_job_imports_what_the_command_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "mine")
    text = script(tmp_path)
    line = next(line for line in text.splitlines() if line.startswith("export PYTHONPATH="))
    entries = line.partition("=")[2].split(":")
    assert str(tmp_path / "mine") in entries
    assert all(os.path.isabs(entry) for entry in entries)
    assert f"--chdir={tmp_path}" in option_lines(text)[0]


def test_a11_a13_the_callers_own_job_does_not_leak() -> None:
    leaks = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3", "SLURM_MEM_PER_CPU": "8192",
             "SBATCH_PARTITION": "debug", "SRUN_CPUS_PER_TASK": "3", "PMIX_RANK": "3",
             "PMIX_NAMESPACE": "slurm.pmix.7.0", "PMI_FD": "6", "PMI2_X": "1"}
    stays = {"SLURM_CONF": "/etc/slurm.conf", "HOME": "/home/a", "PMIX_MCA_gds": "hash"}
    assert clean_environment(leaks | stays) == {**stays, "SLURM_BITSTR_LEN": "0"}


def test_another_cluster_of_the_site_is_named_once_for_the_whole_job(tmp_path: Path) -> None:
    text = script(tmp_path, "+launch.sbatch.clusters=west")
    assert text.count("#SBATCH --clusters=west\n") == 1, "a job of two components is on one cluster"
    for setting in ("+launch.sbatch.clusters=[a,b]", "+launch.sbatch.clusters='a,b'", "+launch.sbatch.clusters=all"):
        with pytest.raises(ConfigurationError, match="the name of one cluster"):
            cluster_of(compose(["+cluster=mixed", setting]).launch)
    assert cluster_of(compose(["+cluster=mixed", "+launch.sbatch={cluster: west}"]).launch) == "west"
    with pytest.raises(ConfigurationError, match="a job is on one cluster; set launch.sbatch.clusters"):
        script(tmp_path, "+cluster.partitions.ib.sbatch.clusters=west")


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `sbatch` that writes down its environment and answers as told by the file `answer`.

    What else asks Slurm may not, and is told so at once: the machine's own programs would wait for a controller.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "sbatch"
    program.write_text(f'#!/bin/sh\nenv > {tmp_path}/environment\n. {tmp_path}/answer\n')
    for name in ("scontrol", "sinfo"):
        (folder / name).write_text("#!/bin/sh\necho 'error: Access/permission denied' >&2\nexit 1\n")
    for each in folder.iterdir():
        each.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path / "answer"


def test_a45_the_whole_of_sbatchs_error_is_shown(tmp_path: Path, sbatch: Path) -> None:
    sbatch.write_text("echo 'sbatch: error: Memory limit of the plug-in\nsbatch: error: Batch job submission failed: "
                      "Invalid feature specification' >&2; exit 1\n")
    folder = RunFolder.create(tmp_path, "run")
    with pytest.raises(SlurmCommandError) as error:
        submit(compose(["+cluster=mixed"]), folder)
    assert "Memory limit of the plug-in" in str(error.value)
    assert "Invalid feature specification" in str(error.value)
    assert '"status": "failed"' in folder.result_path.read_text()


def test_submission_through_submitit(tmp_path: Path, sbatch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch.write_text("echo '66;cluster2'\n")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    folder = RunFolder.create(tmp_path, "run")
    run = submit(compose(["+cluster=mixed"]), folder)
    assert run.job_id == "66"
    assert (folder.path.parent / "slurm-66").resolve() == folder.path
    environment = (tmp_path / "environment").read_text()
    assert "SLURM_ARRAY_TASK_ID" not in environment
    assert "SLURM_CONF=/etc/slurm/slurm.conf" in environment
    scripts = list((folder.path / "submission").glob("[!.]*.sh"))
    assert [path.name for path in scripts] == ["66_submission.sh"]
    assert scripts[0].read_text().startswith("#!/bin/bash\n#SBATCH --job-name=mixed\n")


def test_the_executor_is_submitits_own_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = holmes_executor.HolmesExecutor(tmp_path)
    assert isinstance(executor, submitit.SlurmExecutor)
    answers: dict[str, Any] = {"66": JobStatus("RUNNING")}
    monkeypatch.setattr(holmes_executor, "read_states", lambda ids: answers)
    job: Any = holmes_executor.HolmesJob(folder=tmp_path, job_id="66", tasks=[0])
    job.watcher.clear()
    assert job.watcher.get_state("66", mode="force") == "RUNNING"
    answers["66"] = JobStatus("COMPLETED")
    time.sleep(0.01)  # submitit answers from memory when asked again within a millisecond
    assert job.watcher.get_state("66", mode="force") == "COMPLETED"


def test_the_script_is_valid_shell(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(script(tmp_path, "launch.setup=['module load cuda', 'export X=\"a b\"']"))
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert shlex.split(srun_line(path.read_text()))[0] == "srun"


def test_submitting_loads_no_torch() -> None:
    program = ("import sys, holmes_hpc.launch.train, holmes_hpc.launch.sweep, holmes_hpc.submit.executor, "
               "holmes_hpc.jobs, holmes_hpc.logs\n"
               "print('holmes_hpc.submit.executor' in sys.modules, "
               "*sorted({'torch', 'pandas', 'matplotlib'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False,
                          timeout=60)
    assert done.stdout.split() == ["True"], done.stderr
