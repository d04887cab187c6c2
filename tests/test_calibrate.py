"""`holmes calibrate`: factors from finished runs, and plans that use them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from holmes_hpc import calibrate
from holmes_hpc.cluster.calibrated import CalibratedGpu, read_calibrated, to_json
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.planner import plan
from holmes_hpc.planner.calibration import read_run, simulated, step_with
from holmes_hpc.values import Plan

TRUTH = {"a100-80g": 1.3, "v100": 0.8}
ACTIONS = {"F": 3, "B": 3}
WAIT_SECONDS = 5.0


def make_config(*overrides: str) -> Any:
    return compose(["+cluster=mixed_gpus", "model=gpt_tiny", "train.precision=float16", "parallel=holmes",
                    "parallel.schedule=1f1b", *overrides])


def make_run(folder: Path, config: Any, factors: dict[str, float], steps: tuple[int, ...] = (1, 4, 8)) -> Path:
    """Leave a run whose ranks took `factors` times the modelled seconds, and waited inside some forwards."""
    made = plan(config, mode="slurm")
    (folder / "ranks").mkdir(parents=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
    (folder / "plan.json").write_text(made.to_json())
    (folder / "result.json").write_text(json.dumps({"status": "completed", "emulated": False}))
    _, modelled, step_seconds = simulated(config, made, emulated=False, calibrated=())
    rows: dict[int, list[dict[str, Any]]] = {}
    for (rank, kind, stage), seconds in modelled.items():
        for step in steps:
            # The first step is cold.
            taken = seconds * factors[made.ranks[rank].gpu] * (100 if step == 1 else 1)
            for microbatch in range(ACTIONS.get(kind, 0)):
                row = {"step": step, "kind": kind, "stage": stage, "microbatch": microbatch, "start": 10.0 * microbatch}
                wait = WAIT_SECONDS if kind == "F" and microbatch == 0 else 0.0
                rows.setdefault(rank, []).append({**row, "end": row["start"] + taken + wait})
                if wait:
                    rows[rank].append({**row, "kind": "G", "end": row["start"] + wait})
    for rank, lines in rows.items():
        (folder / "ranks" / f"rank-{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    (folder / "metrics.jsonl").write_text("".join(
        json.dumps({"step": step, "step_seconds": 1.1 * step_seconds}) + "\n" for step in steps))
    return folder


def test_the_factors_of_a_run_are_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "runs" / "mixed" / "one", make_config(), TRUTH)
    output = tmp_path / "calibrated.json"
    assert calibrate.main([str(run), "--output", str(output)]) == 0
    found = {each.gpu: each for each in read_calibrated(str(output))}
    assert {name: each.slowdown for name, each in found.items()} == pytest.approx(TRUTH, rel=1e-6)
    assert found["v100"].lowest == pytest.approx(0.8) and found["v100"].highest == pytest.approx(0.8)
    assert found["v100"].precision == "float16" and found["v100"].actions > 0
    said = capsys.readouterr().out
    assert "1.300" in said and "0.800" in said and "by\n" in said and "itself" in said
    assert f"cluster.calibrated={output}" in said


def test_plans_use_the_factors(tmp_path: Path) -> None:
    config = make_config("model.num_layers=8", "model.hidden_size=1024", "model.num_heads=16",
                         "model.sequence_length=1024")
    output = tmp_path / "calibrated.json"
    output.write_text(json.dumps(to_json([CalibratedGpu(name, "float16", 3.0, 3.0, 3.0, 9) for name in TRUTH])))
    before = plan(config, mode="slurm")
    config.cluster.calibrated = str(output)
    after = plan(config, mode="slurm")
    assert 1.2 * before.predicted.step_seconds < after.predicted.step_seconds < 3 * before.predicted.step_seconds
    config.train.precision = "float32"  # nothing was measured in it
    unlike = plan(config, mode="slurm").predicted.step_seconds
    config.cluster.calibrated = None
    assert unlike == plan(config, mode="slurm").predicted.step_seconds


def test_a_run_is_predicted_by_the_factors_of_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config()
    runs = [make_run(tmp_path / "runs" / "mixed" / name, config, dict.fromkeys(TRUTH, factor))
            for name, factor in (("one", 2.0), ("two", 4.0))]
    assert calibrate.main([*map(str, runs), "--output", str(tmp_path / "made" / "calibrated.json")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("mixed/")]
    read = [read_run(run) for run in runs]
    both = [dataclasses.replace(CalibratedGpu(name, "float16", 1.0, 1, 1, 1), slowdown=4.0) for name in TRUTH]
    assert f"{step_with(read[0], both):.4g} s  the other runs" in lines[0]
    assert f"{read[1].modelled_step_seconds:.4g} s" in lines[1]
    assert step_with(read[0], ()) == read[0].modelled_step_seconds


def test_a_calibrated_run_is_compared_with_the_model_itself(tmp_path: Path) -> None:
    first = make_run(tmp_path / "runs" / "mixed" / "one", make_config(), TRUTH)
    output = tmp_path / "calibrated.json"
    assert calibrate.main([str(first), "--output", str(output)]) == 0
    again = make_run(tmp_path / "runs" / "mixed" / "two", make_config(f"cluster.calibrated={output}"), TRUTH)
    assert calibrate.main([str(again), "--output", str(output)]) == 0
    assert {each.gpu: each.slowdown for each in read_calibrated(str(output))} == pytest.approx(TRUTH, rel=1e-6)


def no_timeline(run: Path) -> None:
    for path in (run / "ranks").iterdir():
        path.unlink()


def timed(run: Path) -> None:
    config = OmegaConf.load(run / "config.yaml")
    config.cluster.emulate.compute = "timed"
    (run / "config.yaml").write_text(OmegaConf.to_yaml(config))
    (run / "result.json").write_text(json.dumps({"status": "completed", "emulated": True}))


def older(run: Path) -> None:
    config = OmegaConf.load(run / "config.yaml")
    del config.cluster.measured
    (run / "config.yaml").write_text(OmegaConf.to_yaml(config))


@pytest.mark.parametrize(("spoil", "message"), [
    (no_timeline, "train.timeline_every"), (timed, "timed by the cost model"), (older, "of this version"),
    (lambda run: (run / "plan.json").write_text("{}"), "of this version"),
    (lambda run: (run / "config.yaml").unlink(), "of this version"),
], ids=["no timeline", "timed compute", "an older configuration", "a broken plan", "no configuration"])
def test_runs_that_tell_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Any,
                                            message: str) -> None:
    run = make_run(tmp_path / "runs" / "mixed" / "one", make_config(), TRUTH)
    spoil(run)
    output = tmp_path / "calibrated.json"
    assert calibrate.main([str(run), "--output", str(output)]) == 2
    said = capsys.readouterr().err
    assert message in said and str(run) in said and "Traceback" not in said
    assert not output.exists()


def test_runs_of_two_clusters_need_a_name_for_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(tmp_path / "runs" / name / "one", make_config(f"cluster.name={name}"), TRUTH)
            for name in ("here", "there")]
    assert calibrate.main([*map(str, runs)]) == 2
    assert "--output" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2, "gpus": []}',
                                  '{"format": 1, "gpus": [{"gpu": "a1000", "precision": "float16", "slowdown": 1.0, '
                                  '"lowest": 1, "highest": 1, "actions": 1}]}',
                                  '{"format": 1, "gpus": [{"gpu": "v100", "precision": "float16", "slowdown": 0, '
                                  '"lowest": 1, "highest": 1, "actions": 1}]}'])
def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="holmes calibrate"):
        read_calibrated(str(path))


def test_the_written_plan_is_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "mixed" / "one", make_config(), TRUTH)
    read = read_run(run)
    assert read.plan == Plan.from_json((run / "plan.json").read_text())
    assert read.measured_step_seconds == pytest.approx(1.1 * read.modelled_step_seconds)
