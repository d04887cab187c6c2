"""Resume through the command: bitwise on the same layout, the same curve on any other, and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holmes_hpc.checkpoint.index import read_index
from tests.runs_for_tests import ROOT, Finished, command, environment, newest_run, run, train

pytestmark = pytest.mark.emulated

RELATIVE_TOLERANCE = 1e-5
STEPS, SAVED_AT = 10, 4
TRAIN = [
    f"train.steps={STEPS}", "train.global_batch_size=8", "train.validate_every=0", "train.validation_samples=4",
    "train.timeline_every=0", "model.num_layers=4", "model.hidden_size=32", "model.num_heads=2",
    "model.sequence_length=32", "optimizer.clip_grad_norm=0.5", "optimizer.warmup_steps=2",
]
COMMON = [*TRAIN, "parallel.micro_batch_size=2"]
SAVING = [f"train.checkpoint_every={SAVED_AT}"]


def mixed(ib: tuple[int, int], roce: tuple[int, int]) -> list[str]:
    return ["+cluster=mixed", f"cluster.partitions.ib.nodes={ib[0]}", f"cluster.partitions.ib.gpus_per_node={ib[1]}",
            f"cluster.partitions.roce.nodes={roce[0]}", f"cluster.partitions.roce.gpus_per_node={roce[1]}"]


ONE = ["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1"]
PP2_DP2 = [*mixed((1, 2), (1, 2)), "parallel=holmes", "parallel.pipeline=2", *COMMON]
PP4 = [*mixed((2, 1), (2, 1)), "parallel=holmes", "parallel.pipeline=4", *COMMON]
OTHERS = {
    "pp4": PP4,
    "tp2-pp2": [*mixed((1, 2), (1, 2)), "parallel=holmes", "parallel.tensor=2", "parallel.pipeline=2", *COMMON],
    "dp3-unequal-nodes": [
        *mixed((1, 2), (1, 1)), "parallel=manual", *COMMON,
        "parallel.pipelines=[{microbatches: 2, stages: [{ranks: [0], layers: 4}]},"
        "{microbatches: 1, stages: [{ranks: [1], layers: 4}]}, {microbatches: 1, stages: [{ranks: [2], layers: 4}]}]",
    ],
    "one-process-other-micro-batch": [*ONE, *TRAIN, "parallel.micro_batch_size=4"],
    "unlike-pipelines": [
        *mixed((1, 2), (1, 1)), "parallel=manual", *COMMON,
        "parallel.pipelines=[{microbatches: 3, stages: [{ranks: [0], layers: 1}, {ranks: [1], layers: 3}]},"
        "{microbatches: 1, stages: [{ranks: [2], layers: 4}]}]",
    ],
}

DAILY = ("tp2-pp2", "unlike-pipelines")
"""Which of them the daily tests try through the command; `test_checkpoint_state` loads every layout in every other."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """An uninterrupted run at PP2 x DP2 that saved after steps 4, 8 and 10."""
    return train(tmp_path_factory.mktemp("saved"), [*PP2_DP2, *SAVING])


def curve(rows: list[dict], first: int = SAVED_AT + 1) -> list[tuple[float, float]]:
    return [(row["loss"], row["grad_norm"]) for row in rows if row["step"] >= first]


def checkpoint(finished: Finished, step: int) -> Path:
    assert finished.folder is not None
    return finished.folder / "checkpoints" / f"step-{step:06d}"


def assert_same_curve(rows: list[dict], expected: list[dict]) -> None:
    assert [row["step"] for row in rows] == list(range(SAVED_AT + 1, STEPS + 1))
    for found, wanted in zip(curve(rows), curve(expected), strict=True):
        assert found == pytest.approx(wanted, rel=RELATIVE_TOLERANCE)
    assert rows[-1]["validation_loss"] == pytest.approx(expected[-1]["validation_loss"], rel=RELATIVE_TOLERANCE)


def test_the_same_layout_goes_on_bit_by_bit(saved: Finished, tmp_path: Path) -> None:
    names = sorted(path.name for path in checkpoint(saved, 1).parent.iterdir())
    assert names == ["step-000004", "step-000008", "step-000010"], "the last step is saved too"
    resumed = train(tmp_path, [*PP2_DP2, "run.name=again", f"train.resume={checkpoint(saved, SAVED_AT)}"])
    assert f"resuming after step {SAVED_AT} from {checkpoint(saved, SAVED_AT)}" in resumed.stderr
    assert curve(resumed.rows, 1) == curve(saved.rows)
    assert resumed.rows[-1]["validation_loss"] == saved.rows[-1]["validation_loss"]
    assert [row["lr"] for row in resumed.rows] == [row["lr"] for row in saved.rows[SAVED_AT:]]
    assert saved.rows[-1]["loss"] < saved.rows[0]["loss"] - 0.1, "the model must learn"


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in DAILY else pytest.mark.long)
                                  for name in OTHERS])
def test_any_other_layout_goes_on_with_the_same_curve(saved: Finished, tmp_path: Path, name: str) -> None:
    resumed = train(tmp_path, [*OTHERS[name], f"train.resume={checkpoint(saved, SAVED_AT)}"])
    assert_same_curve(resumed.rows, saved.rows)


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adamw", marks=pytest.mark.long)])
def test_there_and_back(saved: Finished, tmp_path: Path, optimizer: str) -> None:
    """One process saves, PP2 x DP2 goes on from its run folder (the newest), as one process would have."""
    options = [f"optimizer={optimizer}"]
    one = train(tmp_path, [*ONE, *COMMON, *options, *SAVING])
    for step in (8, 10):
        checkpoint(one, step).rename(tmp_path / f"{step}")  # as if the run had ended before
    back = train(tmp_path, [*PP2_DP2, *options, "run.name=back", f"train.resume={one.folder}"])
    assert_same_curve(back.rows, one.rows)


def test_damaged_checkpoints_are_passed_over_and_said(saved: Finished, tmp_path: Path) -> None:
    source = tmp_path / "old" / "checkpoints"
    source.mkdir(parents=True)
    for step in (4, 8):
        target = source / f"step-{step:06d}"
        target.mkdir()
        for file in checkpoint(saved, step).iterdir():
            (target / file.name).write_bytes(file.read_bytes())
    shard = next(each for each in read_index(source / "step-000008").shards if each.key.startswith("optimizer/"))
    data = bytearray((source / "step-000008" / shard.file).read_bytes())
    data[shard.begin + 5] ^= 16
    (source / "step-000008" / shard.file).write_bytes(data)
    (source / "step-000009").mkdir()
    resumed = train(tmp_path, [*ONE, *COMMON, f"train.resume={source.parent}"])
    assert "step-000009: it is torn: it has no checkpoint.json" in resumed.stderr
    assert "step-000008: a shard is damaged" in resumed.stderr
    assert "resuming after step 4" in resumed.stderr
    assert_same_curve(resumed.rows, saved.rows)


def test_wrong_paths_and_other_models_are_refused_before_the_start(saved: Finished, tmp_path: Path) -> None:
    for options, message in (
        ([f"train.resume={tmp_path}"], "no checkpoint lies there"),
        ([f"train.resume={saved.folder}", "model.hidden_size=64"], "it is of another model"),
        ([f"train.resume={saved.folder}"], "nothing is left to train; raise train.steps"),
    ):
        refused = run(tmp_path, "train", [*ONE, *COMMON, *options])
        assert (refused.status, refused.folder) == (2, None)
        assert message in refused.stderr
        assert "Traceback" not in refused.stderr


def test_another_optimizer_is_refused_and_other_settings_are_said(saved: Finished, tmp_path: Path) -> None:
    resume = f"train.resume={checkpoint(saved, SAVED_AT)}"
    refused = run(tmp_path, "train", [*ONE, *COMMON, resume, "optimizer=sgd"])
    assert (refused.status, refused.folder) == (2, None)
    assert "it holds the state of the optimizer adamw, and optimizer.name=sgd; set optimizer=adamw" in refused.stderr
    changed = train(tmp_path, [*ONE, *COMMON, resume, "train.seed=7", "train.steps=6", "data.order=epoch"])
    assert "train.seed was 1234 and is 7" in changed.stderr
    assert "train.steps was 10 and is 6" in changed.stderr
    assert "data.order was random and is epoch" in changed.stderr
    assert "written by another run" not in changed.stderr, "train.resume names one on purpose"


REQUEUE = """
import sys
from pathlib import Path
from omegaconf import OmegaConf
from holmes_hpc.cluster import read_cluster
from holmes_hpc.front import logging_to_stderr
from holmes_hpc.launch.here.run import run_here
from holmes_hpc.runs import RunFolder
from holmes_hpc.values import Plan
folder = RunFolder.open(Path(sys.argv[1]))
config = OmegaConf.load(folder.config_path)
plan = Plan.from_json(folder.plan_path.read_text())
with logging_to_stderr("train"):
    sys.exit(run_here(plan, config, read_cluster(config.cluster), folder, sys.argv[2]))
"""


def requeue(folder: Path, mode: str = "local") -> subprocess.CompletedProcess[str]:
    """Start a run again in its folder, as the job of a requeued run does."""
    return subprocess.run([sys.executable, "-c", REQUEUE, str(folder), mode], env=environment(), capture_output=True,
                          text=True, timeout=120, check=False)


def test_a_killed_run_goes_on_in_its_folder(tmp_path: Path) -> None:
    steps = 400
    options = [*ONE, *COMMON, "launch.mode=local", f"train.steps={steps}", "train.checkpoint_every=10",
               "train.global_batch_size=4", "run.pictures=false"]
    process = subprocess.Popen(command("train", options), cwd=tmp_path, env=environment(), text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 90
    while not list(tmp_path.glob("runs/*/*/checkpoints/step-000020")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    folder = newest_run(tmp_path)
    pid = json.loads((folder / "job.json").read_text())["ranks"][0]["pid"]
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seen = max(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*"))
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace(f"steps: {steps}", f"steps: {rows[-1]['step'] + 15}"))
    done = requeue(folder)
    assert done.returncode == 0, done.stderr[-2000:]
    resumed = int(re.search(r"resuming after step (\d+) from", done.stderr)[1])
    # The kill may come when a checkpoint is whole on disk and only lacks its name.
    found = "was whole when its writer ended, and has its name now"
    unnamed = [int(step) for step in re.findall(rf"step-(\d+) {found}", done.stderr)]
    assert resumed == max([seen, *unnamed]) <= rows[-1]["step"]
    assert json.loads((folder / "result.json").read_text())["status"] == "completed"
    after = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    again = {row["step"]: row["loss"] for row in after[len(rows):]}
    assert list(again) == list(range(resumed + 1, rows[-1]["step"] + 16))
    assert not [name for name in os.listdir(folder / "checkpoints") if name.startswith(".")]


def test_a_full_disk_ends_the_command_with_the_reason(tmp_path: Path) -> None:
    shell = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=700k tmpfs /mnt && "$@"; status=$?; '
             "cp /mnt/*/*/result.json .; exit $status", "sh"]
    if subprocess.run([*shell[:4], "mount -t tmpfs tmpfs /mnt"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no small file system can be mounted here")
    options = [*ONE, *COMMON, "launch.mode=local", "train.checkpoint_every=3", "run.folder=/mnt", "run.pictures=false"]
    done = subprocess.run([*shell, *command("train", options)], cwd=tmp_path, env=environment(), capture_output=True,
                          text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr[-2000:]
    assert "the checkpoint of step 3 was not written: rank 0" in done.stderr
    assert "No space left on device" in done.stderr
    assert "train.on_save_error=continue" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "failed"


def test_training_goes_on_where_the_disk_is_full_of_checkpoints(tmp_path: Path) -> None:
    shell = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=1500k tmpfs /mnt && "$@"; status=$?; '
             "cp /mnt/*/*/result.json /mnt/*/*/metrics.jsonl .; exit $status", "sh"]
    if subprocess.run([*shell[:4], "mount -t tmpfs tmpfs /mnt"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no small file system can be mounted here")
    options = [*ONE, *COMMON, "launch.mode=local", "train.checkpoint_every=1", "train.keep_checkpoints=50",
               "train.on_save_error=continue", "train.steps=30", "run.folder=/mnt",
               "run.pictures=false"]
    done = subprocess.run([*shell, *command("train", options)], cwd=tmp_path, env=environment(), capture_output=True,
                          text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "No space left on device" in done.stderr
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "completed"
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 31))


def test_a_checkpoint_can_be_looked_at_without_torch(saved: Finished) -> None:
    program = ("import sys; from pathlib import Path; from holmes_hpc.checkpoint import index, naming; "
               f"found = naming.candidates(Path({str(saved.folder)!r})); i = index.read_index(found[0]); "
               "print(i.step, i.extra['data']['next_step'], i.extra['parts']['optimizer']['steps'], "
               "'torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["10", "11", "10", "False"]
