"""`holmes_hpc.compose`, `plan` and `train` as a script or notebook calls them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holmes_hpc
from holmes_hpc import api
from holmes_hpc.config.compose import compose
from holmes_hpc.config.given import overrides_of
from holmes_hpc.errors import (
    ConfigurationError,
    HolmesError,
    LaunchImpossibleError,
    NetworkError,
    PlanRefusedError,
    RunFailedError,
)
from holmes_hpc.values import Plan
from tests.runs_for_tests import ROOT, environment

MIXED = {"cluster": "mixed", "model": {"hidden_size": 64, "num_heads": 4}, "train.steps": 3}
LAPTOP = {"cluster": "laptop", "launch": {"mode": "local"}, "cluster.partitions.laptop.gpus_per_node": 1,
          "train": {"steps": 2, "global_batch_size": 4, "validation_samples": 4},
          "model": {"hidden_size": 32, "num_heads": 2, "num_layers": 2, "sequence_length": 32},
          "run.pictures": False}


def test_a_mapping_means_what_its_overrides_mean() -> None:
    overrides = ["+cluster=mixed", "model.hidden_size=64", "model.num_heads=4", "train.steps=3"]
    expected = compose(overrides)
    assert holmes_hpc.compose(overrides) == expected
    assert holmes_hpc.compose(MIXED) == expected
    assert holmes_hpc.compose(" ".join(overrides)) == expected
    assert holmes_hpc.compose(expected) == expected and holmes_hpc.compose(expected) is not expected


@pytest.mark.parametrize(("key", "value"), [
    ("run.name", "5e10"), ("run.name", "true"), ("run.folder", Path("/tmp/a b=c")),
    ("run.folder", 'quote " and back\\'), ("optimizer.weight_decay", 1e-5), ("parallel.pipeline", None),
    ("parallel.tensor", 2), ("parallel.overlap_grad_reduce", False), ("parallel.layer_split", [3, 1]),
    ("cluster.partitions.ib.hca", "mlx5_0,mlx5_1"), ("launch.setup", ["module load a/1, b", "export X='1'"])])
def test_values_arrive_as_they_are(key: str, value: object) -> None:
    config = holmes_hpc.compose({"cluster": "mixed", key: value})
    for part in key.split("."):
        config = config[part]
    assert config == (str(value) if isinstance(value, Path) else value)


@pytest.mark.parametrize(("settings", "says"), [
    ({"cluster": "mixed", "train": {"stepz": 1}}, "train.steps"), ({"cluster": "mixd"}, "mixed"), (5, "int"),
    ({"cluster": "mixed", "train.steps": object()}, "train.steps"), ({}, "no cluster"),
    ({"cluster": "mixed", 5: 1}, "names of settings"), ([5], "list")])
def test_wrong_settings_are_named(settings: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        holmes_hpc.compose(settings)


def test_a_changed_configuration_is_checked_again() -> None:
    config = holmes_hpc.compose(MIXED)
    config.train.steps = -1
    with pytest.raises(ConfigurationError, match="train.steps"):
        holmes_hpc.plan(config)


def test_lists_of_mappings_are_written_for_hydra() -> None:
    stages = [{"microbatches": 2, "stages": [{"ranks": [0], "layers": 4}]}]
    assert overrides_of({"parallel.pipelines": stages}) == [
        "++parallel.pipelines=[{microbatches:2,stages:[{ranks:[0],layers:4}]}]"]


def test_a_plan_inside_a_running_event_loop_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> Plan:
        return holmes_hpc.plan(MIXED)

    made = asyncio.run(main())
    assert made.world_size == 8 and Plan.from_json(made.to_json()) == made
    with pytest.raises(PlanRefusedError):
        holmes_hpc.plan({**MIXED, "parallel": "holmes", "parallel.pipeline": 1})
    assert capfd.readouterr() == ("", "")


def test_names_are_functions_whatever_was_imported_before() -> None:
    """Importing the package is cheap; the modules of `python -m` have the names of the functions."""
    program = (
        "import sys, holmes_hpc; assert 'torch' not in sys.modules and 'hydra' not in sys.modules\n"
        "import inspect, holmes_hpc.train, holmes_hpc.plan\n"
        "from holmes_hpc import plan, train, compose\n"
        "assert callable(plan) and callable(train) and callable(compose)\n"
        "assert list(inspect.signature(holmes_hpc.train).parameters) == ['settings', 'show']\n"
        "assert holmes_hpc.plan('+cluster=mixed parallel=megatron').world_size == 8\n"
        "assert {'compose', 'plan', 'train'} <= set(dir(holmes_hpc)) and not hasattr(holmes_hpc, 'absent')\n"
        "assert 'torch' not in sys.modules")
    done = subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", program], env=environment(), text=True,
                          capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_notebook_in_a_running_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                              capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "docs" / "examples" / "first_run.ipynb").read_text())
    names: dict[str, Any] = {}

    async def main() -> None:
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)

    asyncio.run(main())
    assert capfd.readouterr() == ("", "")
    result = names["result"]
    assert (result.status, result.steps, result.emulated) == ("completed", 4, False)
    assert result.folder.parent.parent == tmp_path / "runs" and result.plan == Plan.from_json(
        (result.folder / "plan.json").read_text())
    assert [row["step"] for row in result.metrics] == [1, 2, 3, 4] == list(names["steps"].step)
    assert result.final_loss == result.metrics[-1]["loss"]
    assert list(names["table"].cluster) == ["laptop"]
    assert len(names["groups"]) == len(result.plan.groups)


def test_a_thread_may_train_and_sees_what_is_wrong_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def main() -> None:
        await asyncio.to_thread(holmes_hpc.train, {**LAPTOP, "run.folder": tmp_path / "file"})

    with pytest.raises(ConfigurationError, match="file"):
        asyncio.run(main())


def test_our_analysis_is_certain(tmp_path: Path) -> None:
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "__init__.py").write_text("")
    for before, end in (("", "from holmes_hpc import analysis; assert callable(analysis.load)"),
                        ("import analysis", "import holmes_hpc\ntry:\n    holmes_hpc.analysis\nexcept ImportError as "
                                            "error:\n    assert 'imported already' in str(error)\nelse:\n    1 / 0")):
        done = subprocess.run([sys.executable, "-c", f"{before}\n{end}"], env=environment() | {"PYTHONPATH": str(ROOT)},
                              text=True, capture_output=True, check=False, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("answer", "kind", "says"), [
    ({"error": "LaunchImpossibleError", "message": "not here"}, LaunchImpossibleError, "not here"),
    ({"error": "NetworkError", "message": "a link"}, NetworkError, "a link"),
    ({"status": 1, "folder": "FOLDER"}, RunFailedError, "rank 3 was killed"),
    (None, RunFailedError, "last words")])
def test_what_the_process_of_a_run_answers_becomes_an_error(
        answer: dict[str, Any] | None, kind: type[HolmesError], says: str, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"status": "failed", "error": "rank 3 was killed"}))
    if answer and "folder" in answer:
        answer = {**answer, "folder": str(tmp_path)}
    monkeypatch.setattr(api, "_PROGRAM", "import sys; print('last words'); answer = "
                                         f"{json.dumps(json.dumps(answer)) if answer else None}; "
                                         "answer and open(sys.argv[3], 'w').write(answer)")
    with pytest.raises(kind, match=says) as raised:
        holmes_hpc.train(LAPTOP)
    assert getattr(raised.value, "folder", None) == (tmp_path if answer and "folder" in answer else None)
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_a_run_that_fails_is_an_error_with_its_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunFailedError) as raised:
        holmes_hpc.train({**LAPTOP, "run.folder": tmp_path, "optimizer": "sgd", "optimizer.lr": 1000,
                          "optimizer.min_lr": 0, "optimizer.clip_grad_norm": None, "optimizer.warmup_steps": 0,
                          "train.steps": 30}, show=True)
    assert raised.value.folder is not None
    assert json.loads((raised.value.folder / "result.json").read_text())["error"] in str(raised.value)
    assert "run folder" in capfd.readouterr().out


def test_a_dry_run_is_sent_to_plan() -> None:
    with pytest.raises(ConfigurationError, match="holmes_hpc.plan"):
        holmes_hpc.train({**LAPTOP, "launch.dry_run": True})


def test_an_interruption_ends_the_run(tmp_path: Path) -> None:
    """As Ctrl-C in a terminal or a notebook's stop: a KeyboardInterrupt in the main thread of the script."""
    program = ("import sys, json, holmes_hpc\n"
               "try:\n    holmes_hpc.train(json.loads(sys.argv[1]), show=True)\n"
               "except KeyboardInterrupt:\n    print('interrupted')")
    settings = {**LAPTOP, "run.folder": str(tmp_path), "train.steps": 100_000}
    script = subprocess.Popen([sys.executable, "-u", "-c", program, json.dumps(settings)], env=environment(),
                              stdout=subprocess.PIPE, text=True, cwd=ROOT)
    late = threading.Timer(120, script.kill)
    late.start()
    try:
        assert script.stdout is not None
        next(line for line in script.stdout if "step 1" in line)
        script.send_signal(2)
        assert "interrupted\n" in script.stdout.read()
        assert script.wait() == 0
    finally:
        late.cancel()
        script.kill()
    (result,) = tmp_path.glob("*/*/result.json")
    assert "interrupted by SIGINT" in json.loads(result.read_text())["error"]
