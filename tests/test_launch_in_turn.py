"""A sweep on this machine: a line for each run, and a table with run, state, step, tokens/s and loss."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.launch import in_turn
from holmes_hpc.planner.telling.describe import in_a_line
from holmes_hpc.runs import RunFolder, write_result
from tests.run_folders import make_plan, metric

CONFIGS = [SimpleNamespace(train=SimpleNamespace(steps=4), number=number) for number in range(4)]
WORDS = [f"train.seed={number}" for number in range(4)]


@pytest.fixture(name="statuses")
def fake_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Replace what runs a configuration by one that leaves a folder as a run does, and ends as the test says."""
    statuses: dict[int, int] = {}

    def run(config, *, brief):
        assert brief
        if statuses[config.number] == 2:
            raise PlanRefusedError("too few layers")
        folder = RunFolder.create(tmp_path, "mixed")
        for step in (1, 2):
            folder.append_metrics({**metric(step, 0.1 * (config.number + 1)), "loss": 3.25})
        ended = "completed" if statuses[config.number] == 0 else "failed"
        write_result(folder, status=ended, emulated=True, error=None)
        return statuses[config.number], folder

    monkeypatch.setattr(in_turn, "run", run)
    return statuses


def test_every_run_has_a_row_and_a_refused_one_does_not_end_the_sweep(statuses, tmp_path, capsys) -> None:
    statuses.update({0: 0, 1: 2, 2: 1, 3: 0})
    outcomes = in_turn.run_in_turn(CONFIGS, WORDS)
    assert [status for status, _ in outcomes] == [0, 2, 1, 0]
    assert [speed for _, speed in outcomes] == [pytest.approx(40960), None, None, pytest.approx(10240)]
    rows = [line.split() for line in capsys.readouterr().err.strip().splitlines()]
    ids = {f"mixed/{path.name}" for path in (tmp_path / "mixed").iterdir()}
    assert rows[0] == list(in_turn.COLUMNS)
    assert rows.pop() == ["emulated:", "all", "runs"]
    assert {row[0] for row in rows[1:]} == {*ids, "-"} and len(ids) == 3
    assert [row[1:] for row in rows[1:]] == [
        ["completed", "2/4", "40,960", "3.250", "train.seed=0"],
        ["refused", "train.seed=1"],
        ["failed", "2/4", "13,653", "3.250", "train.seed=2"],
        ["completed", "2/4", "10,240", "3.250", "train.seed=3"],
    ]


def test_an_interrupt_ends_the_sweep_after_the_table_which_names_what_was_not_started(statuses, capsys) -> None:
    statuses.update({0: 0, 1: 130})
    with pytest.raises(SystemExit) as end:
        in_turn.run_in_turn(CONFIGS, WORDS)
    assert end.value.code == 130
    rows = [line.split() for line in capsys.readouterr().err.strip().splitlines()]
    assert rows.pop() == ["emulated:", "all", "runs"]
    assert len(rows) == 5 and [row[1] for row in rows[1:3]] == ["completed", "failed"]
    assert rows[3:] == [["-", "not", "started", words] for words in WORDS[2:]]


def test_a_plan_in_a_line() -> None:
    assert in_a_line(make_plan()) == "holmes: 8 ranks, 4 pipelines of 2 stages, 1f1b, predicted 80 ms a step"
