"""The lines that follow a run, whatever its numbers are."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from holmes_hpc.launch.follow.progress import LiveReporter, Pace, PlainReporter, describe
from tests.runs_for_tests import train

ROW = {"step": 1, "loss": 2.0, "tokens_per_second": 4096.0, "step_seconds": 0.1, "mfu": 0.25, "skipped_steps": 0}


@pytest.mark.parametrize(("changed", "words"), [
    ({}, "loss 2.000  4,096 tokens/s  100 ms/step  MFU 25%"),
    ({"loss": None, "skipped_steps": 3}, "loss nan  4,096 tokens/s  100 ms/step  MFU 25%  3 steps left out"),
    ({"skipped_steps": 1}, "loss 2.000  4,096 tokens/s  100 ms/step  MFU 25%  1 step left out"),
    ({"loss": math.nan}, "loss nan  4,096 tokens/s  100 ms/step  MFU 25%"),
])
def test_a_step_in_words(changed: dict[str, Any], words: str) -> None:
    assert describe({**ROW, **changed}) == words


def test_a_validation_that_is_not_finite_is_said_too() -> None:
    stream = io.StringIO()
    PlainReporter(1, stream).step({**ROW, "validation_loss": math.nan})
    assert "validation loss nan" in stream.getvalue()


def test_the_time_left_counts_the_steps_of_this_start() -> None:
    now = iter([0.0, 30.0, 30.0, 34.0, 34.0, 40.0, 40.0, 7240.0, 7240.0]).__next__
    pace = Pace(3610, clock=now)
    assert pace.words(11) == "30 s"  # it went on after step 10, and connected before
    assert pace.words(13) == "34 s, 1 h 59 min left"
    assert pace.words(16) == "40 s, 1 h 59 min left"
    assert pace.words(3610) == "2 h 0 min"


def test_the_time_left_is_in_the_lines_and_the_bar() -> None:
    stream = io.StringIO()
    reporter = PlainReporter(3, stream)
    for step in (1, 2, 3):
        reporter.step({**ROW, "step": step, "validation_loss": 1.0})
    first, second, third = stream.getvalue().splitlines()
    assert "left" not in first and " 0 s, 0 s left  validation" in second and "left" not in third
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    with Progress(TextColumn("{task.description}"), console=console, auto_refresh=False) as progress:
        live = LiveReporter(9, progress)
        for step in (1, 2):
            live.step({**ROW, "step": step})
        assert progress.tasks[0].description.endswith("s left")


@pytest.mark.emulated
def test_a_run_that_leaves_steps_out_is_followed_to_its_end(tmp_path: Path) -> None:
    finished = train(tmp_path, [
        "+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1", "train.steps=8", "train.global_batch_size=4",
        "parallel.micro_batch_size=2", "model.num_layers=1", "model.hidden_size=32", "model.num_heads=2",
        "model.sequence_length=32", "optimizer=sgd", "optimizer.lr=1000", "optimizer.min_lr=0",
        "optimizer.clip_grad_norm=null", "optimizer.warmup_steps=0", "train.on_nonfinite=skip"])
    assert finished.status == 0, finished.stderr
    assert finished.result["status"] == "completed"
    assert finished.rows[-1]["loss"] is None and finished.rows[-1]["skipped_steps"] > 0
    assert "steps left out" in finished.stderr
    said = [line for line in finished.stderr.splitlines() if line.endswith("; left out")]
    assert len(said) == finished.rows[-1]["skipped_steps"], "each step is said, whatever step lines are shown"
