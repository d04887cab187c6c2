"""`holmes evaluate` and `holmes sample`: a model whole in one process, from the checkpoint of any layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from holmes_hpc import evaluate, export, sample
from holmes_hpc.architecture import Architecture
from holmes_hpc.config.compose import compose
from holmes_hpc.engine.sampling import _drawn, continue_tokens
from holmes_hpc.engine.whole_model import find_origin_of_model, load_model, settings_of
from holmes_hpc.model import build_stage
from tests.chat_models import model_folder
from tests.engine_worlds import TINY, train_world

LAYOUT = ["+cluster=mixed", "cluster.partitions.ib.nodes=1", "cluster.partitions.ib.gpus_per_node=1",
          "cluster.partitions.roce.nodes=1", "cluster.partitions.roce.gpus_per_node=1", "parallel=holmes",
          "train.checkpoint_every=2", "model.sequence_length=32", "train.validation_samples=6"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = train_world(tmp_path_factory.mktemp("run"), LAYOUT)
    OmegaConf.save(compose([*TINY, *LAYOUT]), made.folder.config_path)
    return made


def run(command, capsys, *words) -> str:
    assert command.main([str(word) for word in words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_evaluate_has_the_validation_loss_of_the_run(world, capsys):
    found = json.loads(run(evaluate, capsys, world.folder.path, "--json"))
    assert found["model"].endswith("step-000004")
    [source] = found["sources"]
    assert source["loss"] == pytest.approx(world.rows[-1]["validation_loss"], rel=1e-6)
    assert source["tokens"] == 6 * 32
    earlier = json.loads(run(evaluate, capsys, world.folder.path, "train.validation_samples=6", "--json", "--step", 2))
    assert earlier["sources"][0]["loss"] > source["loss"]


def test_evaluate_takes_other_data_source_by_source(world, tmp_path, capsys):
    text = tmp_path / "a.txt"
    text.write_text("Some text. " * 400)
    found = run(evaluate, capsys, world.folder.path, "data=mixture", f"data.cache={tmp_path / 'cache'}",
                f"data.sources=[{{name: python_docs}}, {{name: text, path: {text}}}]", "train.validation_samples=2")
    lines = found.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("data.sources.0.name=python_docs: loss ")
    assert lines[2].startswith(f"data.sources.1.path={text}: loss ")


def test_evaluate_reads_all_tokens_once(world, tmp_path, capsys):
    """Against the mean over windows of its own, with a last one that is shorter; a page is shorter than a sample."""
    text = tmp_path / "a.txt"
    text.write_bytes(bytes(range(32, 112)))
    words = [world.folder.path, "data=text", f"data.path={text}", f"data.cache={tmp_path / 'cache'}", "--json"]
    origin = find_origin_of_model(str(world.folder.path), tmp_path)
    _, architecture = settings_of(origin, [])
    model, losses = load_model(origin, architecture), []
    line = torch.tensor([list(text.read_bytes())])
    for begin in range(0, 79, 32):
        inputs, targets = line[:, begin:min(begin + 32, 79)], line[:, begin + 1:begin + 33]
        losses += torch.nn.functional.cross_entropy(model(inputs)[0, :, :256], targets[0], reduction="none").tolist()
    for options in (["--all"], []):
        [source] = json.loads(run(evaluate, capsys, *words, *options))["sources"]
        assert (source["tokens"], source["samples"]) == (79, 3) == (len(losses), 3)
        assert source["loss"] == pytest.approx(sum(losses) / 79, rel=1e-5)
    [source] = json.loads(run(evaluate, capsys, words[0], "--all", *words[1:], "data.packing=single"))["sources"]
    assert source["tokens"] == 32
    text.write_bytes(b"x")
    assert evaluate.main([str(word) for word in words]) == 2
    assert "no document of two tokens or more" in capsys.readouterr().err


def test_sample_is_the_same_for_a_seed(world, capsys):
    def words(*options):
        return run(sample, capsys, world.folder.path, "def ", "--tokens", 20, *options)

    assert words("--seed", 1).startswith("def ")
    assert words("--seed", 1) == words("--seed", 1) != words("--seed", 2)
    assert words("--temperature", 0) == words("--temperature", 0, "--seed", 9)
    assert words("--top-p", "1e-9") == words("--temperature", 0)


def test_an_exported_model_of_bytes_needs_no_tokenizer(world, tmp_path, capsys):
    target = tmp_path / "out"
    assert export.main([str(world.folder.path), "--to", str(target)]) == 0, capsys.readouterr().err
    capsys.readouterr()
    words = ["def ", "--tokens", 8, "--temperature", 0]
    assert run(sample, capsys, target, *words) == run(sample, capsys, world.folder.path, *words)


@pytest.mark.parametrize("options", [["model=gpt_tiny"], ["model=llama_tiny"]])
def test_the_cache_changes_nothing(options):
    architecture = Architecture.from_config(compose(["+cluster=laptop", *options, "model.sequence_length=40"]).model)
    model = build_stage(architecture, 0, architecture.num_layers, first=True, last=True, seed=3).double()
    prompt = [1, 2, 3, 250, 9]
    found, line = list(continue_tokens(model, prompt, 30, temperature=0.0)), list(prompt)
    for token in found:
        with torch.no_grad():
            assert int(model(torch.tensor([line]))[0, -1].argmax()) == token
        line.append(token)
    assert len(found) == 30
    assert list(continue_tokens(model, prompt, 30, temperature=0.0, ends=[found[4]])) == found[:found.index(found[4])]


def test_top_p_draws_among_the_likeliest_alone():
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    for top_p, expected in ((0.3, {1}), (0.5, {1, 3}), (0.75, {1, 3, 2}), (1.0, {0, 1, 2, 3})):
        generator = torch.Generator().manual_seed(0)
        assert {_drawn(logits, 1.0, top_p, generator) for _ in range(200)} == expected


@pytest.mark.parametrize(("temperature", "top_p"), [(1e-300, 1.0), (5e-324, 0.5), (1e-7, 1.0), (1.0, 1e-300),
                                                    (1.0, 5e-324), (100.0, 1e-30)])
def test_hardly_any_temperature_or_share_takes_the_likeliest(temperature, top_p):
    generator = torch.Generator().manual_seed(0)
    for scale in (1.0, 1e4):
        logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log() * scale
        assert {_drawn(logits, temperature, top_p, generator) for _ in range(20)} == {1}


@pytest.mark.parametrize(("command", "words", "fact"), [
    (evaluate, ["nowhere"], "no run has this folder"),
    (evaluate, ["RUN", "--step", "3"], "has no step-000003; its checkpoints: step-000004, step-000002"),
    (evaluate, ["RUN", "data=text", "data.path=/nowhere"], "is no folder"),
    (evaluate, ["RUN", "data.nothing=1"], "no such key"),
    (sample, ["RUN", "a", "--tokens", "100"], "Set --tokens to at most 31"),
    (sample, ["RUN", ""], "TEXT is empty"),
    (sample, ["RUN", "a", "--top-p", "0"], "--top-p 0.0: expected a number above 0"),
    (sample, ["RUN", "a", "--temperature", "nan"], "--temperature nan"),
    (sample, ["RUN", "a", "--tokenizer", "MODEL"], "is not the model's"),
])
def test_wrong_words_are_refused_in_one_message(world, tmp_path, capsys, command, words, fact):
    places = {"RUN": str(world.folder.path), "MODEL": str(model_folder(tmp_path / "model"))}
    assert command.main([places.get(word, word) for word in words] + ["--folder", str(tmp_path)]) == 2
    assert fact in capsys.readouterr().err


def test_a_damaged_checkpoint_is_named(world, tmp_path, capsys):
    import shutil

    copy = tmp_path / "runs" / "world" / "copy"
    shutil.copytree(world.folder.path, copy)
    newest = sorted(Path(copy, "checkpoints").iterdir())[-1]
    largest = max(newest.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    for place in range(len(content) // 3, len(content), 50):
        content[place] ^= 255
    largest.write_bytes(content)
    assert evaluate.main([str(copy)]) == 2
    assert "cannot be used" in capsys.readouterr().err
