"""The tables, against numbers worked out by hand."""

import dataclasses
import math

import pandas as pd
import pytest

import analysis
from analysis import words
from analysis.tables import grouped
from holmes_hpc.values import Pipeline, Stage
from tests.run_folders import make_plan, make_run, metric

DONE = {"status": "completed", "steps": 7, "final_loss": 2.0, "error": None, "emulated": True}


def plan_json(pipelines):
    plan = dataclasses.replace(make_plan(), pipelines=pipelines)
    return dataclasses.asdict(plan)


def pipeline(*stages, first_layers=(0, 2, 4, 6)):
    return Pipeline(
        4, tuple(Stage(ranks, first, 2) for ranks, first in zip(stages, first_layers, strict=False))
    )


@pytest.mark.parametrize(
    ("pipelines", "expected"),
    [
        ([pipeline((0,), (4,)), pipeline((1,), (5,)), pipeline((2,), (6,)), pipeline((3,), (7,))], "PP2xDP4"),
        ([pipeline((0, 1), (4, 5)), pipeline((2, 3), (6, 7))], "TP2xPP2xDP2"),
        ([pipeline((rank,)) for rank in range(8)], "PP1xDP8"),
        # Two chunks a rank: four stages, but two places in the pipeline.
        ([pipeline((0,), (1,), (0,), (1,))], "PP2xDP1"),
        # Three replicas of the first stage feed one of the second.
        ([pipeline((0,), (3,)), pipeline((1,), (3,)), pipeline((2,), (3,))], "PP2xDP3+1"),
        (
            [pipeline((0, 1), (2,)), pipeline((3, 4), (5,)), pipeline((6,), (7,), (8,))],
            "2*PP2[TP2+1] + PP3[TP1+1+1]",
        ),
        ([], ""),
    ],
)
def test_layout_in_words(pipelines, expected):
    assert words.layout(plan_json(tuple(pipelines))) == expected


def test_layers_and_schedule_in_words():
    plan = plan_json((Pipeline(4, (Stage((0,), 0, 3), Stage((1,), 3, 1))), Pipeline(2, (Stage((2,), 0, 4),))))
    assert words.layers(plan) == "3+1 | 4"
    assert words.schedule(plan) == "1f1b +1"
    assert words.schedule({"schedule": {"name": "gpipe", "warmup_extra": 0}}) == "gpipe"


def test_medians_leave_out_three_warm_up_steps(tmp_path):
    seconds = [9.0, 9.0, 9.0, 0.1, 0.2, 0.4, 0.8]
    run = make_run(
        tmp_path, metrics=[metric(i + 1, s, loss=3.0 - 0.1 * i) for i, s in enumerate(seconds)], result=DONE
    )
    row = analysis.runs(run).iloc[0]
    assert (row["warmup_steps"], row["measured_steps"], row["steps"]) == (3, 4, 7)
    assert row["step_seconds"] == pytest.approx(0.3)
    # 40960, 20480, 10240, 5120: the two in the middle have the mean 15360.
    assert row["tokens_per_second"] == pytest.approx(15360)
    assert row["tokens_per_second_low"] == pytest.approx(5120 + 0.3 * 5120)
    assert row["tokens_per_second_high"] == pytest.approx(20480 + 0.7 * 20480)
    assert row["measured_to_predicted"] == pytest.approx(0.3 / 0.08)
    assert row["final_loss"] == pytest.approx(2.4)
    assert (row["status"], row["strategy"], row["layout"], row["layers"]) == (
        "completed",
        "holmes",
        "PP2xDP4",
        "2+2",
    )
    assert (row["bytes_ethernet"], row["bytes_fabric"]) == (2_000_000, 12_000_000)
    assert (row["cluster"], row["model"], row["workload"]) == ("mixed", "gpt_tiny", "gpt_tiny 4x128")


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (2, 1), (3, 1), (5, 2), (6, 3), (100, 3)])
def test_short_runs_leave_out_half_of_their_steps(tmp_path, steps, warmup):
    run = make_run(tmp_path, metrics=[metric(step) for step in range(1, steps + 1)])
    assert analysis.runs(run).loc[0, "warmup_steps"] == warmup
    assert list(analysis.load(run)["warmup"]) == [True] * warmup + [False] * (steps - warmup)


def test_a_running_run_and_one_without_steps_have_rows(tmp_path):
    make_run(tmp_path, "1-running", metrics=[metric(1), metric(2)], torn=True)
    make_run(tmp_path, "2-started")
    make_run(tmp_path, "3-failed", result={**DONE, "status": "failed", "error": "rank 3 on roce-1 died"})
    table = analysis.runs(tmp_path)
    assert list(table["status"]) == ["running", "running", "failed"]
    assert list(table["steps"]) == [2, 0, 0]
    assert table["tokens_per_second"].isna().tolist() == [False, True, True]
    assert list(table["machine"]) == ["emulated", "unknown", "emulated"]
    assert table.loc[2, "error"] == "rank 3 on roce-1 died"
    steps = analysis.load(tmp_path)
    assert list(steps["run"].unique()) == ["mixed/1-running"] and len(steps) == 2


def test_tables_of_runs_without_records_are_empty_but_have_their_columns(tmp_path):
    run = make_run(tmp_path)
    assert len(analysis.load(run)) == 0 and {"run", "step", "loss", "emulated"} <= set(
        analysis.load(run).columns
    )
    assert len(analysis.ranks(run)) == 0 and {"rank", "start", "end"} <= set(analysis.ranks(run).columns)


def test_load_repeats_the_run_and_joins_unequal_columns(tmp_path):
    make_run(tmp_path, "a", metrics=[metric(1), metric(2, validation_loss=2.5)])
    make_run(tmp_path, "b", plan=make_plan("megatron"), metrics=[{**metric(1), "tide": 7}])
    steps = analysis.load(tmp_path)
    assert list(steps["strategy"]) == ["holmes", "holmes", "megatron"]
    assert list(steps["layout"]) == ["PP2xDP4"] * 3
    assert steps["tide"].tolist()[2] == 7 and math.isnan(steps["tide"].tolist()[0])
    assert steps["validation_loss"].dtype == float and steps["validation_loss"].notna().tolist() == [
        False,
        True,
        False,
    ]
    assert not steps.columns.duplicated().any()


def test_validation_loss_is_the_last_evaluated_and_a_diverged_loss_stays_visible(tmp_path):
    run = make_run(
        tmp_path,
        metrics=[
            metric(1, validation_loss=3.0),
            metric(2, validation_loss=2.75),
            metric(3, loss=float("nan")),
        ],
    )
    row = analysis.runs(run).iloc[0]
    assert row["validation_loss"] == 2.75
    assert math.isnan(row["final_loss"])


@pytest.mark.parametrize(
    ("emulated", "predicted", "compute", "machine", "has_ratio"),
    [
        (True, "emulated", "real", "emulated", True),
        (True, "described", "real", "emulated", False),
        (True, "described", "timed", "wind tunnel", True),
        (False, "described", "real", "real", True),
        (False, "emulated", "real", "local", True),
    ],
)
def test_a_prediction_is_only_compared_with_its_own_machine(
    tmp_path, emulated, predicted, compute, machine, has_ratio
):
    run = make_run(
        tmp_path,
        compute=compute,
        plan=make_plan(machine=predicted),
        metrics=[metric(1, emulated=emulated), metric(2, emulated=emulated)],
    )
    row = analysis.runs(run).iloc[0]
    assert row["machine"] == machine and bool(row["emulated"]) is emulated
    assert pd.notna(row["measured_to_predicted"]) is has_ratio
    assert row["predicted_step_seconds"] == 0.08


def test_emulated_and_real_runs_are_never_averaged_together(tmp_path):
    for name, seconds in (("1", 0.1), ("2", 0.2), ("3", 0.4)):
        make_run(tmp_path, name, metrics=[metric(step, seconds) for step in range(1, 9)])
    make_run(
        tmp_path,
        "4",
        plan=make_plan(machine="described"),
        metrics=[metric(s, 0.001, False) for s in range(1, 9)],
    )
    make_run(tmp_path, "5", order="alternate", metrics=[metric(s, 0.8) for s in range(1, 9)])
    make_run(tmp_path, "6")
    table = grouped(analysis.runs(tmp_path), "strategy")
    found = {
        (row["machine"], row["order"]): (row["runs"], row["tokens_per_second"])
        for row in table.to_dict("records")
    }
    assert found == {
        ("emulated", "grouped"): (3, pytest.approx(20480)),
        ("real", "grouped"): (1, pytest.approx(4_096_000)),
        ("emulated", "alternate"): (1, pytest.approx(5120)),
    }
    first = table.iloc[0]
    assert first["tokens_per_second_low"] == pytest.approx(10240)
    assert first["tokens_per_second_high"] == pytest.approx(40960)


def test_ranks_has_one_row_an_action(tmp_path):
    run = make_run(tmp_path, timeline_steps=[50, 100], metrics=[metric(1)])
    actions = analysis.ranks(run)
    first = actions[(actions["rank"] == 0) & (actions["step"] == 50)]
    assert [kind for kind in first["kind"] if kind in "FB"] == list("FFFBFBBB")
    assert first["action"].iloc[0] == "F0.0.0" and first["start"].iloc[0] == 0.0
    # 6 ms, 3 % more for (0 * 7 + 0 * 3 + 50) % 5 = 0: exactly 6 ms.
    assert first["end"].iloc[0] == pytest.approx(0.006)
    assert set(actions["rank"]) == set(range(8)) and set(actions["step"]) == {50, 100}
    assert set(actions.loc[actions["rank"] == 6, "node"]) == {"roce-1"}
    assert set(actions["emulated"]) == {True}


def test_links_has_one_row_a_group(tmp_path):
    table = analysis.links(
        make_run(tmp_path / "a"), make_run(tmp_path / "b", "x", plan=make_plan("megatron"))
    )
    assert len(table) == 14
    data = table[(table["kind"] == "data") & (table["strategy"] == "holmes")]
    assert data["ranks"].tolist() == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert data["nodes"].tolist() == [("ib-0", "ib-1"), ("roce-0", "roce-1")]
    assert data["network"].tolist() == ["ib", "roce"]
    assert set(table.loc[table["strategy"] == "megatron", "network"]) == {"ethernet"}


def test_a_run_that_only_measured_links_is_no_training():
    assert words.status({"launch": {"probe_only": True}}, {"status": "completed"}) == "completed, probe"
    assert words.status({"launch": {"probe_only": False}}, {"status": "completed"}) == "completed"
    assert words.status({}, {}) == "running"
