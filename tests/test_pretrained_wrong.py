"""Folders that are no whole published model: one message that says what and how to mend it, and nothing written."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file

from holmes_hpc import cli
from holmes_hpc.config.compose import compose
from holmes_hpc.data import TokenFileWriter
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.families import ModelFolder
from holmes_hpc.launch.pretrained import check_pretrained
from tests.published_models import change, save_model

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "model"
    save_model("smollm2", folder)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "model"))


def look(folder: Path) -> None:
    check_pretrained(compose(["+cluster=laptop", f"model.from_pretrained={folder}"]))


def weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    found = load_file(folder / WEIGHTS)
    edit(found)
    save_file(found, folder / WEIGHTS, {"format": "pt"})


def sharded(folder: Path) -> None:
    """Store the weights in two files and an index."""
    found = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    places = {name: f"model-{1 + (index % 2)}.safetensors" for index, name in enumerate(found)}
    for file in set(places.values()):
        save_file({name: found[name] for name in found if places[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def edit_index(folder: Path, edit: Callable[[dict[str, str]], Any]) -> None:
    sharded(folder)
    found = json.loads((folder / INDEX).read_text())
    edit(found["weight_map"])
    (folder / INDEX).write_text(json.dumps(found))


def edit_bytes(path: Path, edit: Callable[[bytearray], Any]) -> None:
    data = bytearray(path.read_bytes())
    found = edit(data)
    path.write_bytes(data if found is None else found)


def say_length(data: bytearray, length: int) -> None:
    data[:8] = length.to_bytes(8, "little")


def link(folder: Path) -> None:
    outside = folder.parent / "elsewhere.safetensors"
    (folder / WEIGHTS).rename(outside)
    (folder / WEIGHTS).symlink_to(outside)


def tokenizer(folder: Path, largest: int) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({
        "model": {"vocab": {"a": 0, "b": largest - 1}}, "added_tokens": [{"id": largest, "content": "<x>"}]}))


TABLE = "model.embed_tokens.weight"
NORM = "model.layers.1.input_layernorm.weight"
WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (shutil.rmtree, "there is no such folder"),
    "a file": (lambda f: (shutil.rmtree(f), f.write_text("")), "it is no folder"),
    "empty": (lambda f: (shutil.rmtree(f), f.mkdir()), "it has no config.json"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "it has no model.safetensors and no model.safetensors.index.json"),
    "pickled weights": (lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"), "pytorch_model.bin.*save_pretrained"),
    "another format": (lambda f: (f / WEIGHTS).rename(f / "model.gguf"), "model.gguf.*not read"),
    "no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json: it is no whole JSON"),
    "no object": (lambda f: (f / "config.json").write_text("[]"), "config.json holds no object"),
    "no type": (lambda f: change(f, model_type=None), "model_type=None: this family is not known"),
    "unknown family": (lambda f: change(f, model_type="mamba"), "model_type=mamba.*known are llama"),
    "no layers": (lambda f: change(f, num_hidden_layers=None), "it has no num_hidden_layers"),
    "too many layers": (lambda f: change(f, num_hidden_layers=4), r"lacks the tensors model.layers.3.* and 6 more"),
    "too few layers": (lambda f: change(f, num_hidden_layers=2), r"has tensors that .* has not: model.layers.2"),
    "another shape": (lambda f: change(f, intermediate_size=64), r"other shapes: model.layers.0.mlp.gate_proj.weight "
                      r"is \[48, 32\], and config.json makes it \[64, 32\]"),
    "a tensor too many": (lambda f: weights(f, lambda w: w.update(extra=torch.ones(2))), "has not: extra"),
    "a tensor too few": (lambda f: weights(f, lambda w: w.pop(NORM)), f"lacks the tensors {NORM}"),
    "quantised": (lambda f: weights(f, lambda w: w.update({NORM: w[NORM].to(torch.int8)})), "of type I8"),
    "no number": (lambda f: weights(f, lambda w: w[NORM].fill_(float("nan"))), f"{NORM} .*not finite"),
    "infinite": (lambda f: weights(f, lambda w: w[TABLE][200].fill_(float("inf"))), f"{TABLE} .*not finite"),
    "no number in 64 bits": (lambda f: weights(f, lambda w: w.update(
        {NORM: torch.full_like(w[NORM], float("nan"), dtype=torch.float64)})), f"{NORM} .*not finite as float32"),
    "beyond 32 bits": (lambda f: weights(f, lambda w: w.update(
        {NORM: torch.full_like(w[NORM], 1e39, dtype=torch.float64)})), f"{NORM} .*not finite as float32"),
    "infinite in 16 bits": (lambda f: weights(f, lambda w: w.update(
        {NORM: torch.full_like(w[NORM], -float("inf"), dtype=torch.bfloat16)})), f"{NORM} .*not finite"),
    "another head": (lambda f: weights(f, lambda w: w.update({"lm_head.weight": w[TABLE] + 1})), "values differ"),
    "truncated": (lambda f: edit_bytes(f / WEIGHTS, lambda d: d[:-9]), "no whole safetensors file"),
    "trailing": (lambda f: edit_bytes(f / WEIGHTS, lambda d: d + b"x" * 8), "no whole safetensors file"),
    "empty file": (lambda f: (f / WEIGHTS).write_bytes(b""), "no whole safetensors file"),
    "header too long": (lambda f: edit_bytes(f / WEIGHTS, lambda d: say_length(d, 2**40)), "no whole safetensors"),
    "header too short": (lambda f: edit_bytes(f / WEIGHTS, lambda d: say_length(d, 20)), "no whole safetensors"),
    "weights are a folder": (lambda f: ((f / WEIGHTS).unlink(), (f / WEIGHTS).mkdir()), "no regular file"),
    "weights are a pipe": (lambda f: ((f / WEIGHTS).unlink(), os.mkfifo(f / WEIGHTS)), "no regular file"),
    "a link out": (link, "is a link to .*elsewhere.safetensors, out of the folder"),
    "a link to nothing": (lambda f: ((f / WEIGHTS).unlink(), (f / WEIGHTS).symlink_to("gone")), "cannot be read"),
    "a link to itself": (lambda f: ((f / WEIGHTS).unlink(), (f / WEIGHTS).symlink_to(WEIGHTS)), "cannot be read"),
    "a pointer of Git LFS": (lambda f: (f / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\n"),
                             "pointer of Git LFS.*git lfs pull"),
    "a missing shard": (lambda f: (sharded(f), (f / "model-2.safetensors").unlink()), "names model-2.*missing"),
    "a shard elsewhere": (lambda f: edit_index(f, lambda m: m.update({NORM: "../x.safetensors"})),
                          "in the folder itself"),
    "a shard without a name": (lambda f: edit_index(f, lambda m: m.update({NORM: ""})), "in the folder itself"),
    "a shard with an odd name": (lambda f: edit_index(f, lambda m: m.update({NORM: "a\0\x1b[2J\ud800"})),
                                 r"names a\\x00\\x1b\[2J\\ud800, which is missing"),
    "a model in a wrapper": (lambda f: weights(f, lambda w: [w.update({f"module.{name}": w.pop(name)})
                                                             for name in list(w)]),
                             "It has module.model.embed_tokens.weight: save the model itself"),
    "an index that lies": (lambda f: edit_index(f, lambda m: m.update(
        {NORM: "model-1.safetensors" if m[NORM].endswith("2.safetensors") else "model-2.safetensors"})),
                           "and it is not"),
    "an index of nothing": (lambda f: (f / INDEX).write_text("{}"), "has no weight_map"),
    "an index that is torn": (lambda f: (f / INDEX).write_text('{"weight_map": {'), "no whole JSON"),
    "a tokenizer too large": (lambda f: tokenizer(f, 258), "has the token 258, .* 258 rows"),
    "a torn tokenizer": (lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer.json.*no whole JSON"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_folder_is_refused_with_the_fact_and_the_remedy(kind: str, folder: Path) -> None:
    spoil, message = WRONG[kind]
    spoil(folder)
    with pytest.raises(ConfigurationError, match=f"^model.from_pretrained={folder}: .*{message}") as caught:
        look(folder)
    assert "\n" not in str(caught.value)


def test_one_file_goes_before_an_index_as_transformers_has_it(folder: Path) -> None:
    one = (folder / WEIGHTS).read_bytes()
    sharded(folder)
    (folder / WEIGHTS).write_bytes(one)
    assert list(ModelFolder(folder).weight_files()) == [WEIGHTS]
    look(folder)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind in (
    "unknown family", "a missing shard", "no number") else pytest.mark.long) for kind in WRONG])
def test_the_command_says_it_once_and_writes_nothing(kind: str, folder: Path, tmp_path: Path,
                                                     capfd: pytest.CaptureFixture[str]) -> None:
    WRONG[kind][0](folder)
    with TokenFileWriter(tmp_path / "some.tokens", 258) as writer:  # whatever tokenizer the folder has
        writer.write(numpy.arange(100_000) % 200)
    status = cli.run(["train", "+cluster=laptop", f"model.from_pretrained={folder}", f"run.folder={tmp_path / 'runs'}",
                      "data=tokens", f"data.path={tmp_path / 'some.tokens'}"])
    error = capfd.readouterr().err
    assert status == 2
    assert error.count("model.from_pretrained=") == 1
    assert "Traceback" not in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("kind", ["empty", "too few layers", "a tensor too many", "quantised", "infinite",
                                  "another head", "a link to itself"])
def test_evaluate_refuses_it_too(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    WRONG[kind][0](folder)
    words = ["data=python_docs", "model.sequence_length=16", "train.validation_samples=1"]
    assert cli.run(["evaluate", str(folder), *words]) == 2
    error = capsys.readouterr().err
    assert str(folder) in error
    assert error.count("\n") == 1


def test_a_folder_that_may_not_be_read_is_refused(sound: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        folder = Path(shutil.copytree(sound, Path(place, "model")))
        look(folder)
        config = compose(["+cluster=laptop", f"model.from_pretrained={folder}"])
        looks = {WEIGHTS: lambda: check_pretrained(config), "config.json": ModelFolder(folder).configuration}
        for hidden, look_again in looks.items():
            (folder / hidden).chmod(0)
            user = os.geteuid()
            os.seteuid(65534 if user == 0 else user)
            try:
                with pytest.raises(ConfigurationError, match=f"{hidden} cannot be read: Permission denied"):
                    look_again()
            finally:
                os.seteuid(user)


def test_sound_folders_of_other_forms_are_taken(folder: Path, tmp_path: Path) -> None:
    look(folder)
    tokenizer(folder, 257)
    weights(folder, lambda w: w.update({"lm_head.weight": w[TABLE].clone(),
                                        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    look(folder)
    sharded(folder)
    look(folder)
    cache = tmp_path / "models--a--b"
    (cache / "blobs").mkdir(parents=True)
    (cache / "snapshots").mkdir()
    snapshot = Path(shutil.move(folder, cache / "snapshots" / "0f"))
    for number, path in enumerate(sorted(snapshot.iterdir())):
        blob = Path(shutil.move(path, cache / "blobs" / str(number)))
        path.symlink_to(Path("../../blobs") / blob.name)
    look(snapshot)
