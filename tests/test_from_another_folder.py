"""What a run keeps means the same from every folder, and a model's own tokenizer is never left out unsaid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from holmes_hpc import cli
from holmes_hpc.architecture import Architecture
from holmes_hpc.config.compose import compose
from holmes_hpc.config.kept import read_kept
from holmes_hpc.config.places import text_to_keep
from holmes_hpc.data.before import check_data_files
from holmes_hpc.engine.exported_texts import texts_of
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.pretrained import keep_texts
from holmes_hpc.runs import RunFolder
from tests.chat_models import model_folder, tokenizer
from tests.published_models import save_model
from tests.test_export import save

SMALL = ["+cluster=mixed", "model.num_layers=1", "model.hidden_size=16", "model.sequence_length=16",
         "model.vocab_size=264"]


def trained(place: Path, *overrides: str, small: Sequence[str] = SMALL) -> Path:
    """A run folder as a training that was called from the current folder leaves it, with weights of zeros."""
    config = compose([*small, *overrides])
    folder = RunFolder.create(place, "run", {"config.yaml": text_to_keep(config)})
    keep_texts(config, folder)
    model = Architecture.from_config(config.model)
    save(folder, model, {info.name: torch.zeros(info.shape) for info in model.parameters()}, 1)
    return folder.path


@pytest.fixture(name="home")
def make_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with text and a tokenizer, and one elsewhere, where files of the same names hold other things."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
        (folder / "a.txt").write_text("some words of text " * 100)
    tokenizer().save(str(home / "tok.json"))
    (elsewhere / "tok.json").write_text("{}")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    return home


def test_paths_of_the_data_are_kept_absolute(home: Path, tmp_path: Path) -> None:
    config = compose([*SMALL, "data=mixture", "data.tokenizer=~/tok.json", "data.sources=[{name: text, path: a.txt, "
                      "chat_template: c.jinja}, {name: tokens, path: ../b.tokens}]"])
    (tmp_path / "config.yaml").write_text(text_to_keep(config))
    kept = read_kept(tmp_path / "config.yaml").data
    assert kept.tokenizer == f"{home}/tok.json"
    assert [source.path for source in kept.sources] == [f"{home}/a.txt", f"{home}/../b.tokens"]
    assert kept.sources[0].chat_template == f"{home}/c.jinja" and kept.sources[1].tokenizer is None
    raw = OmegaConf.to_container(OmegaConf.load(tmp_path / "config.yaml"))
    assert isinstance(raw, dict) and raw["data"]["cache"] == "${run.folder}/token_cache"
    assert config.data.sources[0].path == "a.txt"


def test_export_evaluate_and_sample_take_the_runs_own_files(home: Path, monkeypatch: pytest.MonkeyPatch,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(home / "runs", "data=text", "data.path=a.txt", "data.tokenizer=tok.json",
                  "data.end_of_document=<|im_end|>")
    monkeypatch.chdir(home.parent / "elsewhere")
    assert cli.run(["evaluate", str(run), "train.validation_samples=1"]) == 0, capsys.readouterr().err
    assert f"data.path={home}/a.txt: loss" in capsys.readouterr().out
    assert cli.run(["sample", str(run), "a", "--tokens", "2"]) == 0, capsys.readouterr().err
    assert cli.run(["export", str(run), "--to", "out"]) == 0
    assert "no tokenizer" not in capsys.readouterr().out
    assert Path("out/tokenizer.json").read_bytes() == (home / "tok.json").read_bytes()
    configuration = json.loads(Path("out/config.json").read_text())
    assert (configuration["eos_token_id"], configuration["bos_token_id"]) == (258, None)
    (home / "tok.json").unlink()
    assert cli.run(["export", str(run), "--to", "again"]) == 0
    assert f"no tokenizer, since data.tokenizer={home}/tok.json of the run is not there" in capsys.readouterr().out
    assert cli.run(["sample", str(run), "a"]) == 2
    error = capsys.readouterr().err
    assert f"data.tokenizer={home}/tok.json cannot be read" in error and "--tokenizer=" not in error


def test_special_tokens_that_nobody_named_are_null(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import transformers

    run = trained(home / "runs", "model.vocab_size=256")
    assert cli.run(["export", str(run), "--to", "out"]) == 0
    assert "no tokenizer, since the run has none" in capsys.readouterr().out
    loaded = transformers.AutoConfig.from_pretrained("out")
    assert loaded.eos_token_id is None and loaded.bos_token_id is None


def test_a_folder_gives_all_its_files_and_numbers(home: Path) -> None:
    model_folder(home / "chat", around=True)
    run = trained(home / "runs", "data=text", "data.path=a.txt", "data.tokenizer=chat",
                  "data.end_of_document=<|im_end|>")
    found = texts_of(run, run / "pretrained")
    assert sorted(found.files) == ["tokenizer.json", "tokenizer_config.json"] and not found.missing
    assert found.numbers == {"bos_token_id": 256, "eos_token_id": 258, "pad_token_id": None}


def test_bytes_in_place_of_the_models_own_tokens_are_refused(home: Path) -> None:
    def look(*overrides: str) -> None:
        config: Any = compose([*SMALL, *overrides])
        check_data_files(config.data, Architecture.from_config(config.model))

    look()
    with pytest.raises(ConfigurationError, match=r"python_docs is read as bytes.*data.tokenizer=tok.json.*data=text"):
        look("data=python_docs", "data.tokenizer=tok.json")
    with pytest.raises(ConfigurationError, match=r"data.sources.0.name=python_docs is read as bytes"):
        look("data=mixture", "data.sources=[{name: python_docs, tokenizer: tok.json}, {name: text, path: a.txt}]")
    save_model("llama2", home / "model")
    published = ["+cluster=mixed", "model.from_pretrained=model"]
    config: Any = compose(published)
    check_data_files(config.data, Architecture.from_config(config.model))
    tokenizer().save(str(home / "model" / "tokenizer.json"))
    with pytest.raises(ConfigurationError, match=r"by default that of model.from_pretrained.*data.tokenizer=null"):
        check_data_files(config.data, Architecture.from_config(config.model))
    config = compose([*published, "data.tokenizer=null"])
    check_data_files(config.data, Architecture.from_config(config.model))


def test_a_model_of_bytes_reads_text_as_bytes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(home / "runs", "model.vocab_size=256")
    assert cli.run(["export", str(run), "--to", "out"]) == 0
    assert compose(["+cluster=mixed", "model.from_pretrained=out", "data=text", "data.path=a.txt"]).data.tokenizer \
        is None
    assert cli.run(["evaluate", "out", "data=text", "data.path=a.txt", "train.validation_samples=1"]) == 0, \
        capsys.readouterr().err
    wide = trained(home / "runs")
    assert cli.run(["export", str(wide), "--to", "wide"]) == 0
    assert cli.run(["sample", "wide", "a"]) == 2
    assert "the folder has no tokenizer.json" in capsys.readouterr().err
    for folder, status in (("out", 0), ("wide", 2)):  # runs that began from them
        began = trained(home / "began", f"model.from_pretrained={folder}", small=("+cluster=mixed",))
        assert cli.run(["evaluate", str(began), "data=text", "data.path=a.txt", "train.validation_samples=1",
                        f"data.cache={home / folder / 'cache'}"]) == status
    assert "the folder has no tokenizer.json" in capsys.readouterr().err


@pytest.mark.parametrize("idle", ["optimizer.lr=5", "train.steps=3", "parallel=megatron", "model.num_layers=2",
                                  "cluster.nodes=2"])
def test_evaluate_refuses_settings_that_play_no_part(home: Path, idle: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(home / "runs")
    assert cli.run(["evaluate", str(run), idle]) == 2
    assert "plays no part, since nothing is trained" in capsys.readouterr().err


def test_a_damaged_newest_checkpoint_gives_way_to_an_older_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(home / "runs")
    model = Architecture.from_config(compose(SMALL).model)
    save(RunFolder(run), model, {info.name: torch.zeros(info.shape) for info in model.parameters()}, 1, step=9)
    newest = run / "checkpoints" / "step-000009"
    shard = next(newest.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    assert cli.run(["export", str(run), "--to", "out"]) == 0
    error = capsys.readouterr().err
    assert "WARNING: step-000005 is exported" in error and "step-000009: " in error and "checksum" in error
    assert cli.run(["export", str(run), "--to", "none", "--step", "9"]) == 1
    error = capsys.readouterr().err
    assert str(run) in error and "Name another by --step N" in error and not (home / "none").exists()
    assert cli.run(["evaluate", str(run)]) == 2
    error = capsys.readouterr().err
    assert str(newest) in error and "by --step N" in error


@pytest.mark.parametrize(("words", "says"), [
    (["--tokenizer", "tok.json", "bad.txt"], "leave it out with --pattern"),
    (["none"], "FILE=none is no folder"),
    (["empty", "--pattern", "*.md"], "none that matches --pattern=*.md"),
    (["--chat", "--tokenizer", "tok.json", "rows.jsonl"], "Set --tokenizer to the folder of a model that chats"),
])
def test_tokenize_names_its_own_words(home: Path, words: list[str], says: str,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    (home / "bad.txt").write_bytes(b"\xff\xfe")
    (home / "rows.jsonl").write_text("{}\n")
    (home / "empty").mkdir()
    (home / "empty" / "b.txt").write_text("b")
    assert cli.run(["tokenize", "out.tokens", *words, "--processes", "1"]) == 2
    error = capsys.readouterr().err
    assert says in error and "data." not in error and "arguments" not in error


def test_a_preset_beside_a_published_model_is_named(home: Path) -> None:
    save_model("gpt2", home / "model")
    with pytest.raises(ConfigurationError, match=r"\(of model=llama_tiny\).*Leave model=llama_tiny out"):
        compose(["+cluster=mixed", "model=llama_tiny", "model.from_pretrained=model"])
    with pytest.raises(ConfigurationError, match=r"Leave model.num_layers out"):
        compose(["+cluster=mixed", "model.num_layers=7", "model.from_pretrained=model"])
