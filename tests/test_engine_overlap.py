"""Sharding and overlap change when things happen, and nothing else."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from holmes_hpc.config.compose import compose
from holmes_hpc.engine.guard import MOST_SKIPPED_IN_A_ROW, Guard
from holmes_hpc.engine.precision import LossScale
from holmes_hpc.engine.saving.optimizer_state import rectangles
from holmes_hpc.engine.trainer import Trainer
from holmes_hpc.errors import RunFailedError
from holmes_hpc.planner import plan
from holmes_hpc.schedule import build_schedule, plan_digest
from holmes_hpc.values import Operation, Plan, Reduction, Synchronization
from holmes_hpc.values.levels import GroupList, Sums, in_levels
from tests.engine_worlds import TINY, World, train_world
from tests.forked import RankFailedError
from tests.schedule_rules import schedule_problems

UNIFORM = ["+cluster=uniform", "parallel=holmes"]
ONE = [*UNIFORM, "cluster.nodes=1", "cluster.gpus_per_node=1"]
MIXED = ["+cluster=mixed", "cluster.partitions.ib.nodes=1", "cluster.partitions.roce.nodes=1"]
TIED = "model.tied_embeddings=true"
LAYOUTS = {
    "dp2": [*UNIFORM, "cluster.nodes=2", "cluster.gpus_per_node=1", "parallel.pipeline=1", TIED],
    "dp4-two-levels": [*UNIFORM, "cluster.nodes=2", "cluster.gpus_per_node=2", "parallel.pipeline=1"],
    "pp2-dp2-tied": [*MIXED, "parallel=holmes", TIED],
    "three-beside-one": ["+cluster=mixed", "parallel=holmes", "cluster.partitions.ib.nodes=3",
                         "cluster.partitions.ib.gpus_per_node=1", "cluster.partitions.roce.nodes=1",
                         "cluster.partitions.roce.gpus_per_node=1", TIED],
    # Rank 0 holds the first and the last layers, and the last of them in two pipelines; every rank's order differs.
    "stages-that-share-ranks": [
        *MIXED, "parallel=manual", "model.tied_embeddings=false", "parallel.pipelines=["
        "{microbatches: 5, stages: [{ranks: [0], layers: 1}, {ranks: [1], layers: 2}, {ranks: [0], layers: 1}]},"
        "{microbatches: 3, stages: [{ranks: [2], layers: 1}, {ranks: [3], layers: 2}, {ranks: [0], layers: 1}]}]"],
    # The tied table is held by all four ranks, unequally divided between the fabrics.
    "across-fabrics-uneven": [
        "+cluster=mixed", "cluster.partitions.ib.nodes=3", "cluster.partitions.ib.gpus_per_node=1",
        "cluster.partitions.roce.nodes=2", "cluster.partitions.roce.gpus_per_node=1", "parallel=manual", TIED,
        "parallel.pipelines=[{microbatches: 2, stages: [{ranks: [0], layers: 4}]},"
        "{microbatches: 1, stages: [{ranks: [1], layers: 4}]}, {microbatches: 2, stages: [{ranks: [2], layers: 4}]},"
        "{microbatches: 2, stages: [{ranks: [3], layers: 4}]}, {microbatches: 1, stages: [{ranks: [4], layers: 4}]}]"],
}


def series(world: World) -> list[tuple[float, float]]:
    return [(row["loss"], row["grad_norm"]) for row in world.rows]


def whole(made: Plan, reduction: Reduction) -> Reduction:
    """Return a reduction of which every owner gets the whole sum."""
    if not reduction.divides:
        return reduction
    outer = next((level.groups for level in reduction.levels if level.operation is Operation.ALL_REDUCE), ())
    return in_levels(reduction.owns, reduction.owners, Sums(reduction.copies, outer, by_parts=True),
                     GroupList(made.groups), sharded=False)


def with_synchronization(made: Plan, *switches: bool) -> Plan:
    """Return the same plan with other switches: made anew, it might choose another layout, which rounds otherwise."""
    changed = dataclasses.replace(made, synchronization=Synchronization(*switches, made.synchronization.bucket_mib))
    if not changed.synchronization.sharded:
        changed = dataclasses.replace(changed, reductions=tuple(whole(made, each) for each in made.reductions))
    digest = plan_digest(changed)
    return dataclasses.replace(changed, schedule=dataclasses.replace(changed.schedule, digest=digest))


def switched(overlap: bool) -> list[str]:
    value = str(overlap).lower()
    return [f"parallel.overlap_grad_reduce={value}", f"parallel.overlap_param_gather={value}"]


Worlds = Callable[[list[str]], World]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Train worlds, each once, and look at what their ranks would save."""
    known: dict[tuple[str, ...], World] = {}

    def train(options: list[str]) -> World:
        if tuple(options) not in known:
            known[tuple(options)] = train_world(tmp_path_factory.mktemp("world"), options, entries_of)
        return known[tuple(options)]

    return train


def alone_like(layout: list[str]) -> list[str]:
    return [*ONE, *(option for option in layout if option.startswith("model."))]


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name == "stages-that-share-ranks" else pytest.mark.long)
    for name in LAYOUTS])
def test_overlap_changes_no_bit_and_sharding_only_rounding(name: str, tmp_path: Path, trained: Worlds) -> None:
    layout = LAYOUTS[name]
    alone, on = trained(alone_like(layout)), trained(layout)
    assert on.plan.synchronization == Synchronization(True, True, True, 0.004)
    off, plain, plain_overlapped = (
        train_world(tmp_path, layout, made=with_synchronization(on.plan, *switches))
        for switches in ((True, False, False), (False, False, False), (False, True, False)))
    assert series(on) == series(off)
    assert on.rows[-1]["validation_loss"] == off.rows[-1]["validation_loss"], "validation sees gathered parameters"
    assert series(plain) == series(plain_overlapped)
    for world in (on, plain):
        for found, expected in zip(series(world), series(alone), strict=True):
            assert found == pytest.approx(expected, rel=1e-5)
    assert alone.rows[0]["grad_norm"] > 0.5, "clipping must act"


def test_momentum_is_sharded_too(tmp_path: Path) -> None:
    options = ["optimizer=sgd", "optimizer.weight_decay=0.01"]
    found = train_world(tmp_path, [*LAYOUTS["dp4-two-levels"], *options])
    for mine, expected in zip(series(found), series(train_world(tmp_path, [*ONE, *options])), strict=True):
        assert mine == pytest.approx(expected, rel=1e-5)


def test_the_baseline_does_not_overlap_unless_asked() -> None:
    made = plan(compose([*TINY, *MIXED, "parallel=megatron", "parallel.pipeline=2"]), mode="local")
    assert made.synchronization == Synchronization(True, False, False, 0.004)
    asked = plan(compose([*TINY, *MIXED, "parallel=megatron", "parallel.pipeline=2", *switched(True)]), mode="local")
    assert asked.synchronization == Synchronization(True, True, True, 0.004)
    assert Plan.from_json(asked.to_json()) == asked


def test_gathers_follow_the_optimizer_in_the_order_of_use() -> None:
    made = plan(compose([*TINY, *LAYOUTS["pp2-dp2-tied"]]), mode="local")
    schedule = build_schedule(made)
    assert schedule_problems(made.pipelines, made.reductions, schedule) == []
    for rank, actions in schedule.actions.items():
        names = [str(action) for action in actions]
        reduced = [name[1:].partition(".")[0] for name in names if name[0] == "R" and name[1].isdigit()]
        gathered = [name[1:] for name in names if name[0] == "G"]
        assert gathered == [i for i in reversed(reduced) if made.reductions[int(i)].divides], rank
        assert names[-1 - len(gathered)] == "O"


def test_sums_are_under_way_while_the_backward_goes_on(tmp_path: Path) -> None:
    world = train_world(tmp_path, [*LAYOUTS["dp2"], "model.hidden_size=64", "parallel.bucket_mib=0.06"])
    rows = [row for row in world.timeline(0) if row["step"] == 3]
    backward = max((row for row in rows if row["kind"] == "B"), key=lambda row: row["end"])
    begun = [row["start"] for row in rows if row["kind"] == "R~"]
    assert len(begun) > 3
    assert sum(start < backward["end"] for start in begun) >= len(begun) - 1
    assert all(start > backward["start"] for start in begun), "the last micro-batch's only"
    gathers = [row["start"] for row in rows if row["kind"] == "G~"]
    assert gathers and max(gathers) < 0, "begun in the step before"


def entries_of(trainer: Trainer) -> list[tuple]:
    return [(each.key, each.offsets, each.sizes, each.written, each.tensor.flatten().tolist())
            for each in trainer.state_entries()]


def filled(world: World, architecture) -> dict[str, torch.Tensor]:
    shapes = {info.name: info.shape for info in architecture.parameters()}
    whole: dict[str, torch.Tensor] = {}
    for entries in world.seen:
        for key, offsets, sizes, written, values in entries:
            tensor = whole.setdefault(key, torch.full(shapes[key.rpartition("/")[2]], math.nan))
            part = tensor[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]
            value = torch.tensor(values).view(sizes)
            if written:
                assert part.isnan().all(), f"{key}: saved twice"
                part.copy_(value)
    return whole


@pytest.mark.parametrize("name", ["dp2", "pp2-dp2-tied", "across-fabrics-uneven", "stages-that-share-ranks"])
def test_state_entries_cover_every_parameter_once(name: str, trained: Worlds) -> None:
    from holmes_hpc.architecture import Architecture

    layout = LAYOUTS[name]
    architecture = Architecture.from_config(compose([*TINY, *layout]).model)
    found = filled(trained(layout), architecture)
    expected = filled(trained(alone_like(layout)), architecture)
    assert set(found) == {f"optimizer/{kind}/{info.name}" for info in architecture.parameters()
                          for kind in ("exp_avg", "exp_avg_sq")}
    for key, tensor in found.items():
        assert torch.allclose(tensor, expected[key], rtol=1e-3, atol=1e-7), key


def test_rectangles_of_a_flat_range() -> None:
    assert rectangles((7,), 2, 5) == [((2,), (3,), 2)]
    assert rectangles((4, 5), 0, 20) == [((0, 0), (4, 5), 0)]
    assert rectangles((4, 5), 3, 17) == [((0, 3), (1, 2), 3), ((1, 0), (2, 5), 5), ((3, 0), (1, 2), 15)]
    assert rectangles((4, 5), 6, 8) == [((1, 1), (1, 2), 6)]
    assert rectangles((4, 5), 8, 8) == []
    with pytest.raises(ValueError, match="one or two dims"):
        rectangles((2, 2, 2), 0, 8)


# Relative tolerances of loss and norm: of a layout against one process in the same precision, and against float32. They
# are three to five times the largest difference of the experiment in docs/correctness.md.
TOLERANCES = {"bfloat16": ((2e-4, 2e-3), (1.5e-3, 1.2e-2)), "float16": ((3e-5, 3e-4), (1.5e-4, 2e-3))}


@pytest.mark.long
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_low_precision_follows_float32(precision: str, tmp_path: Path, trained: Worlds) -> None:
    options = ["train.steps=8", "optimizer.warmup_steps=5", "model.hidden_size=32", "model.sequence_length=32"]
    low = [*options, f"train.precision={precision}"]
    expected, alone = trained([*ONE, TIED, *options]), trained([*ONE, TIED, *low])
    found = trained([*LAYOUTS["pp2-dp2-tied"], *low])
    off = train_world(tmp_path, [*LAYOUTS["pp2-dp2-tied"], *low],
                      made=with_synchronization(found.plan, True, False, False))
    assert series(found) == series(off)
    for theirs, (loss, norm) in zip((alone, expected), TOLERANCES[precision], strict=True):
        for mine, other in zip(found.rows, theirs.rows, strict=True):
            assert mine["loss"] == pytest.approx(other["loss"], rel=loss)
            assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=norm)
    assert series(alone) != series(expected)
    assert {entry[0].rpartition("/")[0] for entries in found.seen for entry in entries} == {
        "optimizer/exp_avg", "optimizer/exp_avg_sq", "model"}


def scale_of(trainer: Trainer) -> tuple[float, int]:
    numbers = trainer.state_numbers()
    return numbers["loss_scale.value"], int(numbers["skipped_steps"])


def test_float16_overflow_is_left_out_on_all_ranks_and_counted(tmp_path: Path) -> None:
    steps, window, scale = 16, 4, 2.0**22
    world = train_world(tmp_path, [*LAYOUTS["pp2-dp2-tied"], "train.precision=float16", f"train.steps={steps}",
                                   f"train.loss_scale={scale}", f"train.loss_scale_window={window}"], scale_of)
    skipped = [row["skipped_steps"] for row in world.rows]
    assert 1 <= skipped[-1] < steps - window
    assert all(math.isfinite(row["loss"]) for row in world.rows)
    assert world.seen == [world.seen[0]] * 4
    assert world.seen[0] == (world.rows[-1]["loss_scale"], skipped[-1])
    good = grown = 0
    for row, before in zip(world.rows, [0, *skipped], strict=False):
        good = 0 if row["skipped_steps"] > before else good + 1
        scale = scale / 2 if good == 0 else scale
        if good == window:
            good, grown, scale = 0, grown + 1, 2 * scale
        assert (row["skipped_steps"], row["loss_scale"]) == (before + (row["skipped_steps"] > before), scale)
    assert grown, "which steps overflow is the data's matter, but with so many some must follow each other without"


def poison(trainer: Trainer) -> None:
    """Make one gradient of one rank infinite in the second step."""
    if trainer._job.rank != 1:
        return
    real, calls = trainer._gradients.start, []

    def start(timeline) -> None:
        calls.append(1)
        real(timeline)
        if len(calls) == 2:
            trainer._gradients.flats[0].gradients[3] = math.inf

    trainer._gradients.start = start


def test_gradients_that_are_not_finite_end_the_run_or_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(RankFailedError, match="step 2: the gradients are not finite .* rank 1 on node [^ ]* .its CPU. "
                                              "alone had gradients .* hardware is likely"):
        train_world(tmp_path, LAYOUTS["dp2"], before=poison)
    world = train_world(tmp_path, [*LAYOUTS["dp2"], "train.on_nonfinite=skip"], before=poison)
    assert [row["skipped_steps"] for row in world.rows] == [0, 1, 1, 1]
    assert world.rows[2]["loss"] < world.rows[0]["loss"]
    assert not math.isfinite(world.rows[1]["grad_norm"] or math.inf)


def test_loss_scale_backs_off_and_grows() -> None:
    scale = LossScale("float16", 4.0, window=2)
    assert scale.overflow() and scale.value == 2.0
    scale.good_step()
    scale.good_step()
    assert scale.value == 4.0
    assert scale.overflow() and scale.overflow() and scale.value == 1.0
    assert not scale.overflow(), "gradients that overflow without a scale are not float16's fault"
    other = LossScale("float16", 64.0, window=2)
    other.load(scale.state())
    assert other.state() == scale.state()
    plain = LossScale("bfloat16", 64.0, window=1)
    plain.good_step()
    assert plain.value == 1.0 and not plain.overflow()


def test_a_run_that_leaves_every_step_out_ends(caplog: pytest.LogCaptureFixture) -> None:
    train = compose([*TINY, *ONE, "train.on_nonfinite=skip"])
    guard = Guard(train.train, train.optimizer, rank=0)
    with caplog.at_level(logging.WARNING):
        for step in range(MOST_SKIPPED_IN_A_ROW):
            assert not guard.allows(step, math.nan, math.nan)
    assert "left out" in caplog.text
    with pytest.raises(RunFailedError, match="steps in a row") as ended:
        guard.allows(99, math.nan, 1.0)
    assert "at most 50 are left out" in str(ended.value) and "optimizer.lr" in str(ended.value)
    assert "on_nonfinite" not in str(ended.value), "it is set already"


def test_each_step_left_out_is_said_by_rank_0_and_skip_is_advised_where_it_is_not_set() -> None:
    settings = compose([*TINY, *ONE, "train.on_nonfinite=skip"])
    said: list[str] = []
    guards = [Guard(settings.train, settings.optimizer, rank, said.append) for rank in (0, 1)]
    for step, loss in enumerate([math.nan, 1.0, math.inf], start=1):
        assert len({guard.allows(step, loss, 1.0) for guard in guards}) == 1
    assert said == ["step 1: the loss is nan; left out", "step 3: the loss is inf; left out"]
    stops = compose([*TINY, *ONE])
    with pytest.raises(RunFailedError, match="train.on_nonfinite=skip"):
        Guard(stops.train, stops.optimizer, rank=0).allows(1, math.nan, 1.0)


def test_a_forward_never_uses_parameters_that_are_not_gathered(tmp_path: Path) -> None:
    def blind(trainer: Trainer) -> None:
        """Take the waits away, so that gathers end only in the backward."""
        for pipeline, stage in trainer._job.plan.stages_of(trainer._job.rank):
            for module in trainer._model.stage(pipeline, stage).modules():
                module._forward_pre_hooks.clear()
        trainer._gatherer._lane.poll = lambda: None

    with pytest.raises(RankFailedError, match="before they were gathered"):
        train_world(tmp_path, LAYOUTS["dp2"], before=blind)


def test_a_schedule_without_gathers_is_another_schedule() -> None:
    made = plan(compose([*TINY, *LAYOUTS["dp2"]]), mode="local")
    plainly = with_synchronization(made, False, False, False)
    assert plan_digest(made) == made.schedule.digest != plan_digest(plainly)
