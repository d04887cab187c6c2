"""Where the learning rate will not go as its settings read, that is said before a start."""

from __future__ import annotations

import logging

import pytest

from holmes_hpc.config.compose import compose, compose_sweep
from holmes_hpc.engine.optimizer import learning_rate
from holmes_hpc.launch.course import course_warnings, say_alike, say_course

SMALL = ["+cluster=laptop", "train.steps=20", "optimizer.lr=0.01"]


def test_a_warm_up_longer_than_the_run_is_said_with_the_rate_it_ends_at() -> None:
    config = compose([*SMALL, "optimizer.warmup_steps=80"])
    [words] = course_warnings(config)
    assert f"ends at {learning_rate(20, config.optimizer, 20):.4g} and never is optimizer.lr=0.01" in words
    assert "optimizer.warmup_steps=80" in words and "train.steps=20" in words


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd", "constant"])
def test_one_that_just_fits_is_not(schedule: str) -> None:
    config = compose([*SMALL, "optimizer.warmup_steps=20", f"optimizer.schedule={schedule}"])
    assert learning_rate(20, config.optimizer, 20) == 0.01
    assert not list(course_warnings(config))


def test_a_cool_down_longer_than_what_is_left_is_said_with_its_steps() -> None:
    wsd = [*SMALL, "optimizer.schedule=wsd", "optimizer.warmup_steps=8"]
    [words] = course_warnings(compose([*wsd, "optimizer.cooldown_steps=15"]))
    assert "optimizer.cooldown_steps=15 becomes 12, from step 8 to 20" in words
    assert not list(course_warnings(compose([*wsd, "optimizer.cooldown_steps=12"])))
    assert not list(course_warnings(compose([*wsd, "optimizer.cooldown_steps=15", "optimizer.decay_steps=40"])))


def test_a_sweep_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    runs = [compose([*SMALL, "optimizer.warmup_steps=80", f"train.seed={seed}"]) for seed in (1, 2, 3)]
    with caplog.at_level(logging.WARNING, "holmes_hpc"):
        say_course(runs)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("values", "said"), [("1,01,2,1", "2 of the sweep's 4 runs"), ("1,2", "")])
def test_runs_of_a_sweep_that_are_the_same_are_said(values: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holmes_hpc"):
        say_alike(compose_sweep([*SMALL, f"train.seed={values}"]))
    assert said in caplog.text and bool(caplog.records) == bool(said)
    assert not said or caplog.text.strip().endswith("run 2 as run 1, run 4 as run 1")
