"""Training that starts from a published model: as one process does under every layout, and resumed alone."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from holmes_hpc import cli
from holmes_hpc.architecture import Architecture
from holmes_hpc.checkpoint.index import read_index
from holmes_hpc.checkpoint.model import resolved
from holmes_hpc.engine.whole_model import Origin, load_model
from tests.engine_worlds import train_world
from tests.published_models import MODELS, save_model, tokens
from tests.test_equality import (
    HOLMES,
    MEGATRON,
    ONE,
    SEQUENCE,
    TENSOR_2,
    UNLIKE_DEGREES,
    References,
    assert_as_one_process,
    mixed,
    uniform,
)

STEPS, SHORT_STEPS = 20, 8
COMMON = ["train.global_batch_size=12", "train.validate_every=0", "train.validation_samples=4",
          "train.timeline_every=0", "parallel.micro_batch_size=3", "optimizer.clip_grad_norm=0.5",
          "parallel.bucket_mib=0.05", "optimizer.warmup_steps=2", "model.sequence_length=32"]
LAYOUTS = {
    "tensor": [*uniform(1, 2), MEGATRON, TENSOR_2],
    "tensor-sequence-pipeline": [*mixed((1, 2), (1, 2)), HOLMES, TENSOR_2, SEQUENCE, "parallel.layer_split=[1,2]"],
    "pipeline": [*mixed((2, 1), (1, 1)), HOLMES, "parallel.pipeline=3"],
    "uneven": [*mixed((1, 2), (1, 2)), HOLMES, "parallel.layer_split=[2,1]", "parallel.micro_batch_size=2"],
    "unlike-pipelines": [*mixed((1, 4), (1, 4)), "parallel=manual", UNLIKE_DEGREES],
    "data": [*uniform(1, 2), HOLMES, "parallel.pipeline=1", "optimizer.sharded=true"],
}
WHOLE_LAYERS = ("pipeline", "uneven", "data")
"""Layouts that cut no layer, and so see nothing of what a family has in one: each family trains under one of them."""
DAILY = {("gpt2", "tensor"), ("gemma2", "pipeline"), ("phi3", "unlike-pipelines"), ("neox", "tensor-sequence-pipeline")}
"""Of every layout and family one, for few steps; the long tests train all for many. All features train under other
layouts in `tests/test_equality.py`."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


@pytest.fixture(scope="module")
def references() -> References:
    return {}


def folder_of(name: str, folders: dict[str, Path], factory: pytest.TempPathFactory) -> Path:
    if name not in folders:
        folders[name] = factory.mktemp("published") / name
        save_model(name, folders[name])
    return folders[name]


def cases() -> Iterator[Any]:
    for name, whole in zip(MODELS, itertools.cycle(WHOLE_LAYERS)):
        for layout in LAYOUTS:
            daily = (name, layout) in DAILY
            if layout in WHOLE_LAYERS and layout != whole and not daily:
                continue
            if daily:
                yield pytest.param(name, layout, SHORT_STEPS, id=f"{name}-{layout}-short")
            yield pytest.param(name, layout, STEPS, id=f"{name}-{layout}", marks=pytest.mark.long)


@pytest.mark.parametrize(("name", "layout", "steps"), list(cases()))
def test_a_published_model_trains_as_in_one_process(
        name: str, layout: str, steps: int, tmp_path: Path, folders: dict[str, Path], references: References,
        tmp_path_factory: pytest.TempPathFactory) -> None:
    options = [*COMMON, f"model.from_pretrained={folder_of(name, folders, tmp_path_factory)}", f"train.steps={steps}",
               f"optimizer.decay_steps={STEPS}"]
    if (name, str(steps)) not in references:
        references[name, str(steps)] = train_world(tmp_path, [*options, *ONE]).rows
    found = train_world(tmp_path, [*options, *LAYOUTS[layout]]).rows
    assert_as_one_process(found, references[name, str(steps)], steps)


@pytest.mark.long
@pytest.mark.parametrize(("name", "layout"), list(zip(MODELS, itertools.cycle(LAYOUTS))))
def test_what_was_trained_is_loaded_by_transformers_with_equal_logits(
        name: str, layout: str, tmp_path: Path, folders: dict[str, Path],
        tmp_path_factory: pytest.TempPathFactory) -> None:
    """Against our own model from the checkpoint itself; `tests/test_export.py` has one family each day."""
    import transformers

    folder = folder_of(name, folders, tmp_path_factory)
    world = train_world(tmp_path, [*COMMON, f"model.from_pretrained={folder}", *LAYOUTS[layout], "train.steps=3",
                                   "train.checkpoint_every=3", "optimizer.lr=0.01"])
    assert cli.run(["export", str(world.folder.path), "--to", str(tmp_path / "out")]) == 0
    checkpoint = world.folder.checkpoints / "step-000003"
    index = read_index(checkpoint)
    ours = load_model(Origin(world.folder.path, checkpoint, index), Architecture(**resolved(index.extra["model"])))
    inputs = tokens()[:, :32]
    with torch.no_grad():
        before, after = (transformers.AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32).eval()(
            inputs).logits for each in (folder, tmp_path / "out"))
        assert float((ours(inputs) - after).abs().max()) <= 1e-4
    assert float((before - after).abs().max()) > 1e-2, "it was trained in between"


def test_the_first_loss_is_that_of_transformers_and_a_resume_needs_no_folder(tmp_path: Path) -> None:
    model = save_model("smollm2", tmp_path / "model")
    options = [*COMMON, *ONE, f"model.from_pretrained={tmp_path / 'model'}", "train.checkpoint_every=2"]
    seen = train_world(tmp_path, [*options, "train.steps=2", "optimizer.decay_steps=9"], look=lambda trainer: [
        (each.tokens.tolist(), each.targets.tolist()) for each in trainer._batches.load(1, {0}).values()])
    batches = [(torch.tensor(inputs), torch.tensor(targets)) for inputs, targets in seen.seen[0]]
    losses = [functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
              for inputs, targets in batches]
    assert seen.rows[0]["loss"] == pytest.approx(float(torch.stack(losses).mean().detach()), rel=1e-6)
    shutil.copyfile(tmp_path / "model" / "config.json", tmp_path / "config.json")
    for path in (tmp_path / "model").glob("*.safetensors"):
        path.unlink()
    resumed = train_world(tmp_path, [*options, "train.steps=4", "optimizer.decay_steps=9",
                                     f"train.resume={seen.folder.path}"])
    assert [row["step"] for row in resumed.rows] == [3, 4]
