"""`holmes export`: what comes in goes out bit for bit, and what was trained here is loaded by `transformers`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.export_speed import zeros_checkpoint
from holmes_hpc import cli
from holmes_hpc.architecture import Architecture
from holmes_hpc.checkpoint.entries import Entry
from holmes_hpc.checkpoint.index import read_index
from holmes_hpc.checkpoint.model import model_description
from holmes_hpc.config.compose import compose
from holmes_hpc.families.folder import ModelFolder
from holmes_hpc.launch.pretrained import keep_texts
from holmes_hpc.model import PretrainedWeights, build_stage
from holmes_hpc.runs import RunFolder
from tests.checkpoints_for_tests import Attempt, commit, write_part
from tests.engine_worlds import train_world
from tests.published_models import MODELS, change, save_model, tokens
from tests.test_equality import HOLMES, SEQUENCE, TENSOR_2, mixed


def run_of(model: Path, place: Path, degree: int = 2) -> Path:
    """A run folder whose checkpoint holds a published model as `degree` tensor ranks would save it."""
    config = compose(["+cluster=mixed", f"model.from_pretrained={model}", "model.sequence_length=32"])
    architecture = Architecture.from_config(config.model)
    with PretrainedWeights(model, architecture) as weights:
        stage = build_stage(architecture, 0, architecture.num_layers, first=True, last=True, seed=0, weights=weights)
    folder = RunFolder.create(place, "run", {"config.yaml": "{}"})
    keep_texts(config, folder)
    save(folder, architecture, {name: each.detach() for name, each in stage.named_parameters()}, degree)
    return folder.path


def save(folder: RunFolder, architecture: Architecture, values: dict[str, torch.Tensor], degree: int,
         step: int = 5) -> Path:
    attempt = Attempt(folder.checkpoints, step, 1, "t")
    entries = []
    for info in architecture.parameters():
        dim = info.split_dim
        for index in range(degree if dim is not None else 1):
            offsets, sizes = [0] * len(info.shape), list(info.shape)
            if dim is not None:
                cuts = [info.shape[dim] * cut // degree for cut in (index, index + 1)]
                offsets[dim], sizes[dim] = cuts[0], cuts[1] - cuts[0]
            part = values[info.name][tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]
            entries.append(Entry(f"model/{info.name}", info.shape, tuple(offsets), tuple(sizes), part.contiguous()))
    write_part(attempt, 0, entries)
    return commit(attempt, {"model": model_description(architecture)}, {})


def export(run: Path, to: Path, *arguments: str) -> int:
    return cli.run(["export", str(run), "--to", str(to), *arguments])


@pytest.mark.parametrize("name", MODELS)
def test_import_then_export_gives_back_every_bit(name: str, tmp_path: Path) -> None:
    import transformers

    model = save_model(name, tmp_path / "model")
    run = run_of(tmp_path / "model", tmp_path / "runs")
    before = os.umask(0)
    try:
        assert export(run, tmp_path / "out") == 0
    finally:
        os.umask(before)
    assert [path for path in (tmp_path / "out").iterdir() if path.stat().st_mode & 0o002] == []
    expected, found = load_file(tmp_path / "model/model.safetensors"), load_file(tmp_path / "out/model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) and found[key].dtype == expected[key].dtype for key in expected)
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True,
                                                                       dtype=torch.float32)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        assert torch.equal(loaded.eval()(tokens()).logits, model(tokens()).logits)
    assert ModelFolder(tmp_path / "out").settings(32) | {"name": ""} == ModelFolder(tmp_path / "model").settings(32) | {
        "name": ""}


def test_types_shards_and_texts(tmp_path: Path) -> None:
    import transformers

    model = save_model("phi3", tmp_path / "model").bfloat16()
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    (tmp_path / "model" / "notes.txt").write_text("mine")
    run = run_of(tmp_path / "model", tmp_path / "runs", degree=1)
    shutil.rmtree(tmp_path / "model")
    assert export(run, tmp_path / "out", "--max-shard-gib", "0.00002") == 0
    out = tmp_path / "out"
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert sorted(set(index["weight_map"].values())) == files
    assert {path.name for path in out.iterdir()} == {*files, "config.json", "tokenizer.json", "generation_config.json",
                                                     "model.safetensors.index.json"}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert all(torch.equal(loaded[key], each) for key, each in model.state_dict().items())
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    assert export(run, tmp_path / "wide", "--dtype", "float32") == 0
    wide = load_file(tmp_path / "wide" / "model.safetensors")
    assert all(torch.equal(each, model.state_dict()[key].float()) for key, each in wide.items())
    assert ModelFolder(out).tensors().keys() == wide.keys()


def test_what_was_trained_over_unlike_networks_is_loaded(tmp_path: Path) -> None:
    import transformers

    save_model("qwen3", tmp_path / "model")
    layout = [*mixed((1, 2), (1, 2)), HOLMES, TENSOR_2, SEQUENCE, "parallel.layer_split=[2,1]",
              "train.checkpoint_every=2", "train.steps=4", "model.sequence_length=16", "optimizer.lr=0.01"]
    world = train_world(tmp_path, [f"model.from_pretrained={tmp_path / 'model'}", *layout])
    assert export(world.folder.path, tmp_path / "old", "--step", "2") == 0
    assert export(world.folder.path / "checkpoints", tmp_path / "new") == 0
    old, new = (transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name).eval() for name in ("old", "new"))
    config = compose(["+cluster=mixed", f"model.from_pretrained={tmp_path / 'new'}", "model.sequence_length=48"])
    model = Architecture.from_config(config.model)
    with PretrainedWeights(tmp_path / "new", model) as weights, torch.no_grad():
        stage = build_stage(model, 0, 3, first=True, last=True, seed=0, weights=weights)
        assert float((stage(tokens()) - new(tokens()).logits).abs().max()) < 1e-4
        assert float((old(tokens()).logits - new(tokens()).logits).abs().max()) > 1e-2, "it was trained in between"


@pytest.mark.parametrize(("overrides", "model_type"), [
    (["model=gpt_tiny"], "gpt2"), (["model=llama_tiny"], "llama"),
    (["model=llama_tiny", "model.head_size=40"], "llama"),
    (["model=llama_tiny", "model.query_key_norm=head"], "qwen3"),
    (["model=llama_tiny", "model.attention_bias=qkv"], "qwen2"),
    (["model=llama_tiny", "model.query_key_norm=all", "model.norm_order=after"], "olmo2"),
    (["model=gpt_tiny", "model.position_embedding=rotary", "model.rotary_fraction=0.5"], "gpt_neox"),
    (["model=llama_tiny", "model.normalization=rmsnorm_1p", "model.norm_order=both", "model.activation=geglu_tanh",
      "model.embedding_scale=8", "model.hidden_size=64"], "gemma2"),
])
def test_models_of_our_own_get_the_first_family_that_has_all_they_have(
        overrides: list[str], model_type: str, tmp_path: Path) -> None:
    import transformers

    model = Architecture.from_config(compose(["+cluster=mixed", "model.num_layers=2", *overrides]).model)
    stage = build_stage(model, 0, 2, first=True, last=True, seed=3)
    folder = RunFolder.create(tmp_path, "run", {"config.yaml": "{}"})
    save(folder, model, {name: each.detach() for name, each in stage.named_parameters()}, 2)
    assert export(folder.path, tmp_path / "out") == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == model_type
    with torch.no_grad():
        expected = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()(tokens()).logits
        assert float((stage(tokens()) - expected).abs().max()) < 1e-4


def spoiled(run: Path, name: str, value: Any) -> None:
    path = run / "checkpoints" / "step-000005"
    shutil.rmtree(path)
    config = compose(["+cluster=mixed", "model=llama_tiny", "model.num_layers=2"])
    model = Architecture.from_config(config.model)
    values = {info.name: torch.zeros(info.shape) for info in model.parameters()}
    values[name].fill_(value)
    save(RunFolder(run), model, values, 1)


def test_an_older_checkpoint_in_place_of_a_damaged_one_is_said(tmp_path: Path,
                                                               capsys: pytest.CaptureFixture[str]) -> None:
    config = compose(["+cluster=mixed", "model.num_layers=1", "model.hidden_size=16"])
    model = Architecture.from_config(config.model)
    folder = RunFolder.create(tmp_path / "runs", "mixed", {"config.yaml": "{}"})
    save(folder, model, {info.name: torch.zeros(info.shape) for info in model.parameters()}, 1)
    assert export(folder.path, tmp_path / "out") == 0
    assert "WARNING" not in capsys.readouterr().err
    (folder.checkpoints / "step-000009").mkdir()
    (folder.checkpoints / "step-000009" / "checkpoint.json").mkdir()
    assert export(folder.path, tmp_path / "again") == 0
    error = capsys.readouterr().err
    assert "WARNING: step-000005 is exported, since what is newer cannot be used: step-000009: " in error
    assert "checkpoint.json: it is no regular file" in error


def test_what_cannot_be_exported_says_why_and_leaves_nothing(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model("llama2", tmp_path / "model")
    run = run_of(tmp_path / "model", tmp_path / "runs")
    before = sorted(tmp_path.iterdir())

    def refused(status: int, *arguments: str, says: str) -> None:
        assert export(run, tmp_path / "out", *arguments) == status
        error = capsys.readouterr().err
        assert says in error
        assert "Traceback" not in error
        assert sorted(tmp_path.iterdir()) == before

    refused(2, "--step", "7", says="has no checkpoint of it; it has step-000005")
    for number in ("0", "-1", "nan", "inf", "1e-300"):
        refused(2, "--max-shard-gib", number, says=f"--max-shard-gib {number}: expected a number from 1e-06 up to")
    refused(2, "--dtype", "int8", says="invalid choice")
    assert export(run, tmp_path / "model") == 2
    assert "is there already" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert export(run, tmp_path / "file" / "place") == 2
    assert "it cannot be written: Not a directory" in capsys.readouterr().err
    (tmp_path / "file").unlink()
    assert export(run, tmp_path / "new" / "place", "--step", "7") == 2
    assert not (tmp_path / "new").exists()
    assert export(tmp_path / "nothing", tmp_path / "out") == 2
    assert export(run, Path("/")) == 2
    assert "--to /: it is there already" in capsys.readouterr().err
    shard = next(run.rglob("part-*.safetensors")) if list(run.rglob("part-*.safetensors")) else next(
        (run / "checkpoints").rglob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    capsys.readouterr()
    refused(1, says="does not have its checksum")
    spoiled(run, "layers.1.attention.query.weight", float("nan"))
    refused(1, says="layers.1.attention.query.weight has values that are not finite")
    spoiled(run, "layers.1.attention.query.weight", 1e6)
    refused(1, "--dtype", "float16", says="beyond what float16 holds")
    config = compose(["+cluster=mixed", "model=llama_tiny", "model.num_layers=2", "model.query_key_norm=head",
                      "model.norm_order=after"])
    model = Architecture.from_config(config.model)
    shutil.rmtree(run / "checkpoints" / "step-000005")
    save(RunFolder(run), model, {info.name: torch.zeros(info.shape) for info in model.parameters()}, 1)
    refused(2, says="no family of Hugging Face has a model like this")
    change(tmp_path / "model", vocab_size=258)


@pytest.mark.long
def test_memory_holds_pieces_and_not_the_model(tmp_path: Path) -> None:
    """A checkpoint of 0.7 GiB, of holes: its export takes far less than that beside what torch takes."""
    config = compose(["+cluster=mixed", "model=llama_tiny", "model.hidden_size=1024", "model.ffn_hidden_size=8192",
                      "model.num_layers=2", "model.vocab_size=65536", "model.num_heads=16"])
    model = Architecture.from_config(config.model)
    folder = RunFolder.create(tmp_path, "run", {"config.yaml": "{}"})
    zeros_checkpoint(folder.checkpoints / "step-000001", model)
    assert read_index(folder.checkpoints / "step-000001").step == 1
    program = ("import resource, sys; from holmes_hpc import cli; import holmes_hpc.checkpoint.exporting; "
               "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; status = cli.run(sys.argv[1:]); "
               "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, file=sys.stderr); sys.exit(status)")
    done = subprocess.run([sys.executable, "-c", program, "export", str(folder.path), "--to", str(tmp_path / "out"),
                           "--dtype", "bfloat16", "--max-shard-gib", "0.2"], capture_output=True, text=True, check=True)
    grown_kib = int(done.stderr.split()[-1])
    assert model.parameter_count() * 4 > 0.65 * 2**30
    assert grown_kib < 320 * 2**10
    assert sum(path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors")) > 0.32 * 2**30
