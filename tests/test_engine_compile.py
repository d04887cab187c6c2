"""Layers by torch's compiler: the same training, one compilation for all layers, and what it cannot is refused."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from holmes_hpc.config.compose import compose
from holmes_hpc.engine import Trainer
from holmes_hpc.engine.compiling import compile_layers
from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.planner import plan
from holmes_hpc.planner.task import PlanSettings
from holmes_hpc.values import Pipeline, Stage
from holmes_hpc.values.capabilities import unable_to_compile, unsupported
from tests.engine_worlds import World, train_world
from tests.strict.worlds import difference
from tests.test_engine_tensor import LLAMA, architecture, hand_plan
from tests.test_equality import COMMON, LAYOUTS, ONE

PIPELINE = [*COMMON, *LAYOUTS["pp2"], "parallel.schedule=1f1b", "train.steps=3", "train.checkpoint_every=2"]
CLOSE = 1e-5


def seen(trainer: Trainer) -> tuple[int, list[Any]]:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"], [entry.key for entry in trainer.state_entries()]


def both(folder: Path, overrides: list[str]) -> tuple[World, World]:
    worlds = []
    for compiled in ("true", "false"):
        (folder / compiled).mkdir()
        worlds.append(train_world(folder / compiled, [*overrides, f"train.compile={compiled}"], seen))
    return worlds[0], worlds[1]


@pytest.mark.parametrize("recompute", ["none", pytest.param("full", marks=pytest.mark.long)])
def test_compiled_layers_train_as_others_and_save_what_they_save(recompute: str, tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the code generator, which takes a minute; the long tests have it."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    compiled, other = both(tmp_path, [*PIPELINE, f"parallel.recompute={recompute}", "optimizer.clip_grad_norm=0.5"])
    assert difference(compiled, other) <= CLOSE
    for rank, rank_of_other in zip(compiled.seen, other.seen, strict=True):
        assert rank[0] == 1, "two layers, one compilation"
        assert rank_of_other[0] == 0
        assert rank[1] == rank_of_other[1]
    assert (compiled.folder.checkpoints / "step-000002").is_dir()


@pytest.mark.long
def test_generated_code_trains_as_the_modules_do(tmp_path: Path) -> None:
    compiled, other = both(tmp_path, [*ONE, *COMMON, "train.steps=3"])
    assert difference(compiled, other) <= CLOSE
    assert compiled.seen[0][0] == 1


@pytest.mark.parametrize(("overrides", "said"), [
    (["parallel.schedule=zero_bubble"], r"zero_bubble takes the gradients .* parallel.schedule=1f1b, or train.compile"),
    (["parallel.tensor=2"], r"tensor-parallel ranks exchange .* parallel.tensor=1, or train.compile=false"),
    (["parallel.recompute=selective"], r"selective recomputation .* parallel.recompute=none or full, or train.compile"),
])
def test_what_cannot_be_compiled_is_refused(overrides: list[str], said: str) -> None:
    able = ["parallel.schedule=1f1b", "parallel.tensor=1", "parallel.recompute=none", "parallel.pipeline=2"]
    changed = {each.partition("=")[0] for each in overrides}
    able = [each for each in able if each.partition("=")[0] not in changed]
    config = compose(["+cluster=mixed", *able, *overrides, "train.compile=true"])
    problems = unsupported(config, plan(config))
    assert len(problems) == 1
    assert re.search(said, problems[0]), problems
    config.train.compile = False
    assert unsupported(config, plan(config)) == []


@pytest.mark.parametrize("model", ["gpt_tiny", "gpt_7_5b"])
def test_the_planner_chooses_only_what_compiles(model: str) -> None:
    """Else it would take zero_bubble, and for the large model tensor parallelism."""
    overrides = ["+cluster=mixed_gpus", f"model={model}"]
    free, compiled = (compose([*overrides, f"train.compile={value}"]) for value in ("false", "true"))
    assert unable_to_compile(plan(free, "slurm"))
    assert unsupported(compiled, plan(compiled, "slurm")) == []
    assert PlanSettings.from_config(free).recomputations == ("none", "selective", "full")
    assert PlanSettings.from_config(compiled).recomputations == ("none", "full")


def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **named: Any) -> Any:
        def call(*given: Any) -> Any:
            raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found")
        return call

    monkeypatch.setattr(torch, "compile", fails)
    shape = architecture(LLAMA)
    made = hand_plan(shape, (Pipeline(1, (Stage((0,), 0, shape.num_layers),)),))
    model = LocalModel(made, 0, shape, 1)
    with pytest.raises(ConfigurationError, match=r"train.compile=true: torch's compiler failed on rank 0: .*No working "
                                                 r"C\+\+ compiler found; set train.compile=false"):
        compile_layers(model, made, 0, shape.sequence_length, torch.float32, torch.device("cpu"))
