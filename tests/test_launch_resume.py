"""What `train.resume` names is looked at before a start, and each reason against it is said once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
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
    fill(tmp_path)
    return tmp_path


def fill(folder: Path) -> None:
    shapes = {info.name: info.shape for info in Architecture.from_config(compose(SMALL).model).parameters()}
    for step in (1, 2, 3):
        make_checkpoint(folder / "checkpoints" / f"step-{step:06d}", step,
                        {"parts": {"model": {}, "optimizer": {"name": "adamw"}}}, shapes)


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


def test_a_renamed_checkpoint_is_told_its_name_and_not_to_change_the_model(saved: Path) -> None:
    for step in (1, 2, 3):
        (saved / "checkpoints" / f"step-{step:06d}").rename(saved / "checkpoints" / f"step-{step + 10:06d}")
    text = refusal(saved)
    assert ("its index says step 3, and its folder is called step-000013; if it was only renamed, call it step-000003"
            in text)
    assert "set model and optimizer" not in text


@pytest.mark.parametrize(("spoil", "words"), [
    (lambda path: (path / "rank-0000.safetensors").unlink(),
     "a shard is missing: rank-0000.safetensors is not there; if the checkpoint was copied, copy all of its folder"),
    (lambda path: (path / "checkpoint.json").write_text("{"),
     "it is torn: checkpoint.json is no whole JSON; copy it again"),
    (lambda path: (path / "checkpoint.json").unlink(), "it is torn: it has no checkpoint.json"),
])
def test_the_remedy_fits_what_is_wrong(saved: Path, spoil: Callable[[Path], None], words: str) -> None:
    for step in (1, 2, 3):
        spoil(saved / "checkpoints" / f"step-{step:06d}")
    text = refusal(saved)
    assert words in text and "set model and optimizer" not in text


def test_a_pipe_in_a_files_place_is_refused_at_once_and_the_next_is_taken(saved: Path) -> None:
    for step, name in ((3, "rank-0000.safetensors"), (2, "checkpoint.json")):
        path = saved / "checkpoints" / f"step-{step:06d}" / name
        path.unlink()
        os.mkfifo(path)
    assert resolve_resume(compose([*SMALL, f"train.resume={saved}"])) == str(saved)
    shutil.rmtree(saved / "checkpoints" / "step-000001")
    text = refusal(saved)
    assert "step-000003: it is foreign: rank-0000.safetensors is no regular file" in text
    assert "step-000002: checkpoint.json" in text and "it is no regular file" in text


def exposed_words(saved: Path, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    assert resolve_resume(compose([*SMALL, f"train.resume={saved}"])) == str(saved)
    return " ".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(("changed", "mode"), [
    ("", 0o777), ("", 0o1777), ("checkpoints", 0o707), ("checkpoints/step-000003", 0o770),
    ("checkpoints/step-000003/checkpoint.json", 0o666), ("checkpoints/step-000003/rank-0000.safetensors", 0o602),
    ("..", 0o777),
])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to a group that it is not in")
def test_a_checkpoint_that_others_could_have_changed_is_said(
        tmp_path: Path, changed: str, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    saved = tmp_path / "runs" / "mixed"
    saved.mkdir(parents=True)
    fill(saved)
    assert exposed_words(saved, caplog) == ""
    path = (saved / changed).resolve()
    if mode & 0o020 and not mode & 0o002:
        os.chown(path, -1, 12345)
    path.chmod(mode)
    assert f"{path} may be written by others (mode {mode:o}), who could have changed the checkpoint" in (
        exposed_words(saved, caplog))


@pytest.mark.parametrize("closed", ["", "checkpoints"])
def test_what_lies_in_a_closed_folder_may_have_any_modes(closed: str, tmp_path: Path,
                                                         caplog: pytest.LogCaptureFixture) -> None:
    """As a run with umask 000 or 002 leaves it: every resume of one's own run warned."""
    saved = tmp_path / "runs" / "mixed"
    saved.mkdir(parents=True)
    fill(saved)
    for path in [path for path in (saved / "checkpoints").rglob("*") if not path.is_symlink()]:
        path.chmod(0o777)
    assert "may be written by others" in exposed_words(saved, caplog)
    (saved / closed).chmod(0o700)
    assert exposed_words(saved, caplog) == ""


def test_folders_above_with_the_sticky_bit_are_fine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As /tmp is: nobody but its owner can take a folder away there."""
    saved = tmp_path / "runs" / "mixed"
    saved.mkdir(parents=True)
    fill(saved)
    saved.parent.chmod(0o1777)
    assert exposed_words(saved, caplog) == ""


@pytest.mark.parametrize("word", ["''", "'  '"])
def test_an_empty_path_is_not_the_current_folder(saved: Path, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may hold the checkpoints of another run."""
    monkeypatch.chdir(saved)
    with pytest.raises(ConfigurationError, match="train.resume is empty; set it to auto, never"):
        resolve_resume(compose([*SMALL, f"train.resume={word}"]))


@pytest.mark.parametrize(("written", "meant"), [("Auto", "auto"), ("AUTO", "auto"), ("atuo", "auto"),
                                                ("Never", "never")])
def test_a_mistyped_word_is_offered_as_it_is_written(written: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Did you mean {meant}\\?"):
        resolve_resume(compose([*SMALL, f"train.resume={written}"]))


def test_a_path_is_offered_no_word(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_resume(compose([*SMALL, f"train.resume={tmp_path}/auto"]))
    assert "Did you mean" not in str(caught.value)
