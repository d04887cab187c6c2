"""What `train.resume` names is looked at before a start, and each reason against it is said once."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_hpc.architecture import Architecture
from holmes_hpc.checkpoint.refusals import Refusals
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.here.resume import resolve_resume
from tests.checkpoint_folders import make_checkpoint

SMALL = ["+cluster=laptop", "model.num_layers=1", "model.hidden_size=16", "model.num_heads=2", "train.steps=50"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run folder with checkpoints of steps 1, 2 and 3, made with AdamW."""
    shapes = {info.name: info.shape for info in Architecture.from_config(compose(SMALL).model).parameters()}
    for step in (1, 2, 3):
        make_checkpoint(tmp_path / "checkpoints" / f"step-{step:06d}", step,
                        {"parts": {"model": {}, "optimizer": {"name": "adamw"}}}, shapes)
    return tmp_path


def refusal(saved: Path, *overrides: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        resolve_resume(compose([*SMALL, f"train.resume={saved}", *overrides]))
    assert caught.value.exit_status == 2
    return str(caught.value)


def test_another_optimizer_is_refused_before_the_start_with_its_name_once(saved: Path) -> None:
    text = refusal(saved, "optimizer=sgd")
    assert ("step-000003, step-000002, step-000001: it holds the state of the optimizer adamw, and optimizer.name=sgd; "
            "set optimizer=adamw.") in text
    assert text.count("it holds") == 1
    assert resolve_resume(compose([*SMALL, f"train.resume={saved}", "optimizer=adamw"])) == str(saved)


def test_another_model_is_said_once_and_other_reasons_beside_it(saved: Path) -> None:
    (saved / "checkpoints" / "step-000002" / "rank-0000.safetensors").unlink()
    text = refusal(saved, "model.hidden_size=32")
    assert text.count("it is of another model") == 1
    assert "step-000003, step-000001: it is of another model" in text
    assert "step-000002: a shard is missing: rank-0000.safetensors is not there" in text


def test_a_checkpoint_that_goes_meanwhile_gives_way_to_the_next(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([[saved / "checkpoints" / "step-000000"]] * 2)  # listed, and rotated away before it was read
    monkeypatch.setattr("holmes_hpc.launch.here.resume.candidates",
                        lambda path: next(looks, [saved / "checkpoints" / "step-000003"]))
    assert resolve_resume(compose([*SMALL, f"train.resume={saved}"])) == str(saved)


def test_a_reason_is_not_repeated() -> None:
    refused = Refusals()
    assert not refused
    assert refused.add("b", "torn") == "b: torn"
    assert refused.add("a", "torn") == "a: for the same reason as b"
    assert refused.add("c", "damaged") == "c: damaged"
    assert str(refused) == "b, a: torn. c: damaged"
