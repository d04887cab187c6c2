"""Layers that were timed on a GPU kind: the file, the prices that rest on it, and the timing itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import read_cluster
from holmes_hpc.cluster.gpus import gpu
from holmes_hpc.cluster.profiled import layer_words, profile_gpu, to_json
from holmes_hpc.cluster.timed_units import EMBEDDING, HEAD, LAYER, OPTIMIZER, ProfiledUnit
from holmes_hpc.config.compose import compose
from holmes_hpc.engine import profiling
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.planner import plan
from holmes_hpc.planner.cost.layer import layer_seconds
from holmes_hpc.planner.cost.micro_batch import MicroBatch
from holmes_hpc.planner.cost.profiled import timed_seconds

SETTINGS = ["+cluster=mixed", "parallel=holmes", "train.precision=bfloat16"]
MODEL = Architecture.from_config(compose(SETTINGS).model)
WORDS = layer_words(MODEL)


def unit(name: str = LAYER, tensor: int = 1, samples: int = 1, forward: float = 1e-3, backward: float = 3e-3
         ) -> ProfiledUnit:
    return ProfiledUnit("a100-80g", "bfloat16", WORDS, name, tensor, samples, forward, backward)


UNITS = (unit(), unit(samples=4, forward=2.5e-3, backward=6e-3), unit(tensor=2, forward=0.8e-3, backward=2e-3),
         unit(HEAD, forward=2e-3, backward=4e-3), unit(EMBEDDING, forward=1e-4, backward=2e-4),
         unit(OPTIMIZER, forward=1e-12, backward=0.0))


def batch(samples: int = 1, tensor: int = 1, **changes) -> MicroBatch:
    made = MicroBatch(MODEL, profile_gpu(gpu("a100-80g"), UNITS), samples, tensor)
    return dataclasses.replace(made, **changes)


def timed(*args: int, **changes) -> tuple[float, float]:
    found = timed_seconds(batch(*args, **changes), LAYER, layer_seconds)
    assert found is not None
    return found.forward, found.backward_input + found.backward_weight


@pytest.mark.parametrize(("samples", "seconds"), [(1, (1e-3, 3e-3)), (4, (2.5e-3, 6e-3)), (2, (1.5e-3, 4e-3)),
                                                  (8, (4.5e-3, 10e-3))])
def test_micro_batches_lie_on_the_line_through_the_timed_ones(samples: int, seconds: tuple[float, float]) -> None:
    assert timed(samples) == pytest.approx(seconds)


def test_what_was_not_timed_is_modelled_and_stretched_as_the_nearest_is() -> None:
    forward, backward = timed(1, 2)
    assert (forward, backward) == pytest.approx((0.8e-3, 2e-3))
    plain = [layer_seconds(batch(tensor=tensor)) for tensor in (2, 4)]
    assert timed(1, 4)[0] == pytest.approx(0.8e-3 * plain[1].forward / plain[0].forward)
    whole = timed_seconds(batch(recompute="full"), LAYER, layer_seconds)
    assert whole is not None and whole.again == pytest.approx(1e-3)


def test_another_model_or_precision_was_not_timed() -> None:
    other = dataclasses.replace(MODEL, hidden_size=256, head_size=64)
    assert timed_seconds(batch(architecture=other), LAYER, layer_seconds) is None
    assert timed_seconds(batch(precision="float16"), LAYER, layer_seconds) is None
    assert timed_seconds(batch(architecture=dataclasses.replace(MODEL, num_layers=99)), LAYER, layer_seconds)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(to_json(UNITS, links=[])))
    return path


def test_plans_use_the_layers_of_the_file_and_say_so(file: Path, tmp_path: Path) -> None:
    found = plan(compose([*SETTINGS, f"cluster.profiled={file}"]), "slurm").predicted
    assert (found.error_basis, found.error_percent) == ("profiled", 8)
    slow = tmp_path / "slow.json"
    slow.write_text(json.dumps(to_json([dataclasses.replace(
        each, forward_seconds=2 * each.forward_seconds, backward_seconds=2 * each.backward_seconds)
        for each in UNITS])))
    slower = plan(compose([*SETTINGS, f"cluster.profiled={slow}"]), "slurm").predicted
    assert 1.6 < slower.step_seconds / found.step_seconds < 2.05
    other = [*SETTINGS, "model.hidden_size=256"]
    assert (plan(compose([*other, f"cluster.profiled={file}"]), "slurm").predicted.step_seconds
            == plan(compose(other), "slurm").predicted.step_seconds)


@pytest.mark.parametrize(("key", "value"), [("gpu", "a1000"), ("tensor", 0), ("forward_seconds", -1), ("unit", "norm"),
                                            ("model", None), ("backward_seconds", "x")])
def test_a_wrong_record_is_named(file: Path, key: str, value: object) -> None:
    data = json.loads(file.read_text())
    data["layers"][1][key] = value
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigurationError, match=rf"cluster.profiled=.*layers\[1\]\.{key}"):
        read_cluster(compose([*SETTINGS, f"cluster.profiled={file}"]).cluster)


@pytest.mark.parametrize("changes", [(), ("model.activation=swiglu", "model.position_embedding=rotary",
                                          "model.tied_embeddings=false", "model.vocab_size=257")])
def test_every_unit_is_timed_at_two_sizes_and_all_degrees(changes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
                                                          ) -> None:
    monkeypatch.setattr(profiling, "_UNIT_SECONDS", 0.0)
    model = Architecture.from_config(compose([*SETTINGS, "model.sequence_length=32", *changes]).model)
    found = profiling.profile(model, "cpu", torch.device("cpu"), "float32", (1, 2))
    cases = {(each.unit, each.tensor, each.samples) for each in found}
    assert cases == {(name, tensor, samples) for name in (LAYER, HEAD, EMBEDDING) for tensor in (1, 2, 4)
                     for samples in (1, 2)} | {(OPTIMIZER, 1, 1)}
    assert all(each.forward_seconds > 0 and each.model == layer_words(model) for each in found)
    assert all(each.backward_seconds > 0 for each in found if each.unit != OPTIMIZER)


@pytest.mark.parametrize(("size", "sizes"), [(1, (1, 2)), (2, (1, 2)), (3, (1, 2)), (8, (1, 8)), (100, (1, 16))])
def test_the_sizes_that_are_timed(size: int, sizes: tuple[int, int]) -> None:
    assert profiling.two_sizes(size) == sizes


def test_a_plan_notes_a_profile_of_another_model(file: Path) -> None:
    def notes(*settings: str) -> list[str]:
        made = plan(compose([*SETTINGS, f"cluster.profiled={file}", *settings]), "slurm")
        return [note for note in made.notes if note.startswith("cluster.profiled")]

    assert notes("model.hidden_size=256") == [
        "cluster.profiled: not used, since it has a100-80g in bfloat16, and not the layers of this model in bfloat16 "
        "on a100-80g"]
    assert not notes("model.num_layers=8")
