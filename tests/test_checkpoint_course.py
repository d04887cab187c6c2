"""The learning rate over a resume: a longer run does not move the schedule unless that is asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.engine.optimizer import learning_rate
from holmes_hpc.engine.saving.course import course_words, schedule_end
from tests.engine_worlds import World, train_world

ONE = ["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1"]
SETTINGS = {"optimizer.lr": 1.6e-3, "optimizer.min_lr": 2e-4, "optimizer.warmup_steps": 10,
            "optimizer.decay_steps": None, "train.steps": 1000}


def words(step: int, *overrides: str, **extra: Any) -> list[str]:
    config = compose([*ONE, "optimizer.lr=1.6e-3", *overrides])
    return list(course_words(step, {"settings": SETTINGS} | extra, config.optimizer, config.train))


def end(*overrides: str, **extra: Any) -> int:
    config = compose([*ONE, *overrides])
    return schedule_end(config.optimizer, config.train, {"settings": SETTINGS} | extra)


@pytest.mark.parametrize(("overrides", "extra", "expected"), [
    (["train.steps=5000"], {}, 1000), (["train.steps=500"], {}, 1000), (["train.steps=1000"], {}, 1000),
    (["train.steps=5000"], {"schedule_end": 700}, 700), (["train.steps=5000", "optimizer.decay_steps=3000"], {}, 3000),
    (["train.steps=5000", "train.resume_schedule=new"], {"schedule_end": 700}, 5000),
    (["train.steps=5000"], {"settings": {}}, 5000), (["train.steps=5000"], {"settings": {"train.steps": "many"}}, 5000),
    (["train.steps=5000"], {"settings": SETTINGS | {"optimizer.decay_steps": 800}}, 800),
])
def test_the_schedule_keeps_its_length_unless_asked(overrides: list[str], extra: dict[str, Any], expected: int) -> None:
    assert end(*overrides, **extra) == expected


def test_nothing_is_said_where_nothing_changes() -> None:
    assert words(500, "train.steps=1000") == []


def test_nothing_is_said_of_steps_that_will_not_be() -> None:
    assert words(500, "train.steps=500", "optimizer.lr=1e-3") == []
    assert words(500, "train.steps=400", "train.resume_schedule=new") == []


def test_a_longer_run_says_what_the_schedule_does_and_would_do() -> None:
    [kept] = words(500, "train.steps=2000")
    assert "keeps the 1000 steps" in kept
    assert "steps 1000 to 2000 train with optimizer.min_lr=0.0002" in kept
    stretched, now = map(float, re.findall(r"([\d.e-]+) instead of ([\d.e-]+)", kept)[0])
    config = compose([*ONE, "optimizer.lr=1.6e-3"])
    assert now == pytest.approx(learning_rate(501, config.optimizer, 1000), rel=1e-3)
    assert stretched == pytest.approx(learning_rate(501, config.optimizer, 2000), rel=1e-3)
    assert stretched > 1.4 * now
    [shorter] = words(500, "train.steps=800")
    assert "left at step 800" in shorter


@pytest.mark.parametrize("overrides", [
    ["train.steps=2000", "train.resume_schedule=new"], ["train.steps=2000", "optimizer.decay_steps=2000"],
    ["train.steps=1000", "optimizer.lr=2e-3"], ["train.steps=1000", "optimizer.warmup_steps=900"],
    ["train.steps=1000", "optimizer.min_lr=3e-4"],
])
def test_a_jump_is_named(overrides: list[str]) -> None:
    [jump] = words(500, *overrides)
    was, now = map(float, re.findall(r"step 501 would have had ([\d.e-]+) and has ([\d.e-]+)", jump)[0])
    assert was == pytest.approx(9.089e-4, rel=1e-3)
    assert now != pytest.approx(was, rel=1e-3)


def rates(world: World) -> list[float]:
    return [row["lr"] for row in world.rows]


def test_runs_that_go_on_keep_the_course_also_the_third(tmp_path: Path) -> None:
    saving = [*ONE, "train.checkpoint_every=2", "optimizer.warmup_steps=2", "train.keep_checkpoints=9"]
    whole = train_world(tmp_path, [*saving, "train.steps=8"])
    early = whole.folder.checkpoints / "step-000004"
    longer = train_world(tmp_path, [*saving, "train.steps=12", f"train.resume={early}"])
    assert rates(longer)[:4] == rates(whole)[4:]
    assert rates(longer)[4:] == [2e-4] * 4
    second = longer.folder.checkpoints / "step-000006"
    again = train_world(tmp_path, [*saving, "train.steps=20", f"train.resume={second}"])
    assert rates(again)[:2] == rates(whole)[6:]
    new = train_world(tmp_path, [*saving, "train.steps=12", f"train.resume={early}", "train.resume_schedule=new"])
    assert rates(new)[0] > rates(longer)[0]


@pytest.mark.parametrize("step", [0, 3, 8, 9])
def test_within_the_warm_up_a_step_is_named_at_which_the_schedules_differ(step: int) -> None:
    """The warm-up is the same for both, so the next step would say nothing."""
    [kept] = words(step, "train.steps=2000", "optimizer.warmup_steps=10")
    later, stretched, now = re.findall(r"and step (\d+) ([\d.e-]+) instead of ([\d.e-]+)", kept)[0]
    config = compose([*ONE, "optimizer.lr=1.6e-3", "optimizer.warmup_steps=10"])
    assert int(later) > 10 and stretched != now
    assert float(now) == pytest.approx(learning_rate(int(later), config.optimizer, 1000), rel=1e-3)
    assert float(stretched) == pytest.approx(learning_rate(int(later), config.optimizer, 2000), rel=1e-3)


def test_a_schedule_that_ended_within_the_warm_up_has_no_steps_with_the_least_rate_in_it() -> None:
    [kept] = words(3, "train.steps=40", "optimizer.warmup_steps=30", settings=SETTINGS | {
        "train.steps": 20, "optimizer.warmup_steps": 30})
    assert "so steps 31 to 40 train with optimizer.min_lr=0.0002" in kept
    assert re.search(r"and step \d\d ([\d.e-]+) instead of 0\.0002", kept)
    [kept] = words(3, "train.steps=28", "optimizer.warmup_steps=30", settings=SETTINGS | {
        "train.steps": 20, "optimizer.warmup_steps": 30})
    assert "which end within optimizer.warmup_steps" in kept and "instead" not in kept


def test_a_jump_too_small_for_four_digits_is_printed_with_those_that_differ() -> None:
    [jump] = words(500, "train.steps=1000", "optimizer.lr=1.60001e-3")
    was, now = re.findall(r"step 501 would have had ([\d.e-]+) and has ([\d.e-]+)", jump)[0]
    assert was != now and float(now) > float(was)


@pytest.mark.parametrize("extra", [
    {"settings": 3}, {"settings": [1]}, {"settings": None}, {"settings": SETTINGS | {"optimizer.lr": "high"}},
    {"settings": SETTINGS | {"optimizer.warmup_steps": [1]}}, {"settings": SETTINGS | {"optimizer.min_lr": None}},
    {"schedule_end": "soon", "settings": {}}, {"schedule_end": 10**30},
])
def test_settings_of_a_checkpoint_that_are_none_say_nothing(extra: dict[str, Any]) -> None:
    assert words(500, "train.steps=1000", **extra) == []
