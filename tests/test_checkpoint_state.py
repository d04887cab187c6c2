"""The state of all ranks of a plan as entries: written once, spread, and loadable into any other plan."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from holmes_hpc.architecture import Architecture
from holmes_hpc.checkpoint.entries import Entry
from holmes_hpc.checkpoint.index import read_index
from holmes_hpc.checkpoint.model import MODEL_PREFIX
from holmes_hpc.checkpoint.reading import fill
from holmes_hpc.checkpoint.writing import Attempt, commit, write_part
from holmes_hpc.comm.scratch import Scratch
from holmes_hpc.comm.sharding import Route
from holmes_hpc.config.schema import Optimizer
from holmes_hpc.engine.flat import FlatReduction
from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.engine.optimizer import ShardOptimizer
from holmes_hpc.engine.saving.optimizer_state import state_entries
from holmes_hpc.engine.saving.saved_state import ModelState, ParameterPieces, RandomState, ShardedState
from holmes_hpc.errors import CheckpointError
from holmes_hpc.values import Pipeline, Plan, Stage
from tests.test_engine_tensor import LLAMA, SIZES, UNLIKE, architecture, hand_plan

PLANS = {
    "one": (Pipeline(1, (Stage((0,), 0, 3),)),),
    "dp3": tuple(Pipeline(1, (Stage((rank,), 0, 3),)) for rank in range(3)),
    "pp3": (Pipeline(1, (Stage((0,), 0, 1), Stage((1,), 1, 1), Stage((2,), 2, 1))),),
    "tp2-pp2": (Pipeline(1, (Stage((0, 1), 0, 2), Stage((2, 3), 2, 1))),),
    "tp3": (Pipeline(1, (Stage((0, 1, 2), 0, 3),)),),
    "unlike-degrees": UNLIKE,
    "one-rank-in-two-pipelines": (Pipeline(2, (Stage((0,), 0, 2), Stage((1,), 2, 1))),
                                  Pipeline(1, (Stage((0,), 0, 1), Stage((2,), 1, 2)))),
}
MODELS = {"gpt": {**SIZES, "tied_embeddings": True}, "llama": {**LLAMA, "num_heads": 6, "num_kv_heads": 6}}


class Alone:
    """Stands for a communicator where nothing is exchanged."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.rank = plan, rank


@dataclass
class Rank:
    """One rank's model and optimizer; after `steps` both are exact functions of the global weights alone."""

    parts: dict[str, ModelState | ShardedState]
    optimizer: ShardOptimizer

    def entries(self) -> list[Entry]:
        return [entry for part in self.parts.values() for entry in part.state_entries()]


def rank_of(plan: Plan, rank: int, model: Architecture, name: str, seed: int, steps: int,
            momentum: float = 0.9) -> Rank:
    local = LocalModel(plan, rank, model, seed)
    scratch = Scratch(torch.device("cpu"))
    flats = [FlatReduction(number, reduction, local, Route(reduction, Alone(plan, rank), scratch), 0.002,
                           torch.float32)
             for number, reduction in enumerate(plan.reductions) if rank in reduction.owners]
    optimizer = ShardOptimizer(flats, Optimizer(name=name, momentum=momentum))
    for _ in range(steps):
        optimizer.steps += 1
        for run in optimizer.runs:
            run.values.mul_(0.75).add_(0.01)
            for number, moment in enumerate(run.moments.values()):
                moment.copy_(run.values * (number + 2))
    for flat in flats:
        for segment in flat.segments:
            flat.copy_out(segment, local.parameters)
    state = ShardedState(name, lambda: state_entries(optimizer, local),
                         lambda: {"optimizer.steps": float(optimizer.steps)},
                         lambda numbers: setattr(optimizer, "steps", int(numbers["optimizer.steps"])), lambda: None)
    return Rank({"optimizer": state, "model": ModelState(local, ParameterPieces(plan, rank, local))}, optimizer)


def save(folder: Path, plan: Plan, model: Architecture, name: str) -> Path:
    attempt = Attempt(folder, 2, plan.world_size, "t")
    for number in range(plan.world_size):
        rank = rank_of(plan, number, model, name, seed=5, steps=2)
        write_part(attempt, number, [entry for entry in rank.entries() if entry.written])
    return commit(attempt, {"parts": {key: part.state() for key, part in rank.parts.items()}}, {})


OPTIMIZERS = {"gpt": "adamw", "llama": "sgd"}


@functools.cache
def plan_of(name: str, kind: str) -> Plan:
    return hand_plan(architecture(MODELS[kind]), PLANS[name])


@functools.cache
def wanted_rank(name: str, kind: str, number: int) -> Rank:
    return rank_of(plan_of(name, kind), number, architecture(MODELS[kind]), OPTIMIZERS[kind], seed=5, steps=2)


@pytest.mark.parametrize(("name", "kind"), [
    pytest.param(name, kind, marks=pytest.mark.long if number % 2 else ())
    for number, (name, kind) in enumerate(itertools.product(PLANS, MODELS))])
def test_every_layout_loads_every_other(tmp_path: Path, name: str, kind: str) -> None:
    model, optimizer = architecture(MODELS[kind]), OPTIMIZERS[kind]
    path = save(tmp_path, plan_of(name, kind), model, optimizer)
    index = read_index(path)
    for other in PLANS:
        plan = plan_of(other, kind)
        for number in range(plan.world_size):
            found = rank_of(plan, number, model, optimizer, seed=6, steps=0)
            wanted = wanted_rank(other, kind, number)
            for key, part in found.parts.items():
                part.load_state(index.extra["parts"][key])
            fill(path, index, found.entries())
            for part in found.parts.values():
                part.loaded()
            assert len(found.entries()) == len(wanted.entries()) > 0
            for mine, theirs in zip(found.entries(), wanted.entries(), strict=True):
                assert (mine.key, mine.offsets) == (theirs.key, theirs.offsets)
                assert torch.equal(mine.tensor, theirs.tensor), f"{mine.key} at {mine.offsets}: {name} to {other}"
            assert found.parts["optimizer"].state() == wanted.parts["optimizer"].state()


@pytest.mark.parametrize("name", PLANS)
def test_everything_is_written_once_and_the_load_is_spread(tmp_path: Path, name: str) -> None:
    model = architecture(MODELS["gpt"])
    plan = hand_plan(model, PLANS[name])
    counts = {f"{prefix}{info.name}": torch.zeros(info.shape)
              for prefix in ("model/", "optimizer/exp_avg/", "optimizer/exp_avg_sq/") for info in model.parameters()}
    written = []
    for number in range(plan.world_size):
        entries = [entry for entry in rank_of(plan, number, model, "adamw", 5, 1).entries() if entry.written]
        written.append(sum(entry.tensor.numel() for entry in entries))
        for entry in entries:
            counts[entry.key][tuple(slice(o, o + s) for o, s in zip(entry.offsets, entry.sizes, strict=True))] += 1
    for key, count in counts.items():
        assert bool((count == 1).all()), key
    if name == "dp3":
        assert max(written) < 1.2 * sum(written) / 3


def test_an_optimizer_does_not_take_anothers_state() -> None:
    model = architecture(MODELS["gpt"])
    plan = hand_plan(model, PLANS["one"])
    adamw, sgd = (rank_of(plan, 0, model, name, 5, 1).parts["optimizer"] for name in ("adamw", "sgd"))
    with pytest.raises(CheckpointError, match=r"the optimizer sgd, and optimizer\.name=adamw"):
        adamw.load_state(sgd.state())


def test_sgd_without_momentum_has_no_state(tmp_path: Path) -> None:
    model = architecture(MODELS["gpt"])
    plan = hand_plan(model, PLANS["one"])
    state = rank_of(plan, 0, model, "sgd", 5, 1, momentum=0.0).parts["optimizer"]
    state.load_state(state.state())
    assert state.state_entries() == []


def test_random_states_are_taken_up_by_as_many_ranks_only() -> None:
    torch.manual_seed(3)
    saved = RandomState(1, 2)
    entries, state = saved.state_entries(), saved.state()
    expected = torch.rand(4)
    other = RandomState(1, 3)
    other.load_state(state)
    assert other.state_entries() == []
    other.loaded()
    again = RandomState(1, 2)
    again.load_state(state)
    again.state_entries()[0].tensor.copy_(entries[0].tensor)
    again.loaded()
    assert torch.equal(torch.rand(4), expected)
    assert entries[0].key == "random/cpu/1"


def test_a_sharded_optimizer_saves_its_masters_as_the_parameters(tmp_path: Path) -> None:
    model = architecture(MODELS["gpt"])
    plan = hand_plan(model, PLANS["one"])
    shapes = {info.name: info.shape for info in model.parameters()}
    name, shape = "layers.0.feed_forward.up.weight", shapes["layers.0.feed_forward.up.weight"]
    waited, taken = [], []
    master = torch.randn(3, shape[1])

    def state_of(entries: list[Entry], scale: float) -> ShardedState:
        return ShardedState("adamw", lambda: entries, lambda: {"loss_scale.value": scale}, taken.append,
                            lambda: waited.append(True))

    saved = state_of([Entry(prefix + name, shape, (2, 0), (3, shape[1]), master * factor)
                      for prefix, factor in ((MODEL_PREFIX, 1.0), ("optimizer/exp_avg/", 2.0))], 8.0)
    attempt = Attempt(tmp_path, 1, 1, "t")
    write_part(attempt, 0, saved.state_entries())
    path = commit(attempt, {"parts": {"optimizer": saved.state()}}, {})
    assert waited, "parameters are whole before they are copied"
    index = read_index(path)
    local = LocalModel(plan, 0, model, 5)
    model_state = ModelState(local, ParameterPieces(plan, 0, local), written=False)
    assert not any(entry.written for entry in model_state.state_entries())
    rows = Entry(MODEL_PREFIX + name, shape, (3, 0), (2, shape[1]), torch.zeros(2, shape[1], dtype=torch.bfloat16))
    found = state_of([Entry(MODEL_PREFIX + name, shape, (2, 0), (3, shape[1]), torch.zeros(3, shape[1])),
                      Entry(f"optimizer/exp_avg/{name}", shape, (4, 0), (1, shape[1]), torch.zeros(1, shape[1]))],
                     1.0)
    found.load_state(index.extra["parts"]["optimizer"])
    entries = found.state_entries()
    fill(path, index, [*entries, rows])
    found.loaded()
    assert torch.equal(entries[0].tensor, master)
    assert torch.equal(entries[1].tensor, 2 * master[2:])
    assert torch.equal(rows.tensor, master[1:].bfloat16())
    assert taken == [{"loss_scale.value": 8.0}]
