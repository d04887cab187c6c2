"""Long steps are predicted from two shorter ones, also where pipelines take unlike numbers of micro-batches."""

from __future__ import annotations

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan
from holmes_hpc.planner.simulation.long_steps import actions_of, shortened
from holmes_hpc.planner.simulation.predict import observe
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.values import Pipeline, ScheduleChoice, Stage

MIXED = "+cluster=mixed"
UNLIKE = ("parallel=manual", "train.global_batch_size=3000", "parallel.micro_batch_size=1")
ROWS = {
    "one more": [MIXED, "parallel=holmes", "train.global_batch_size=3003", "parallel.micro_batch_size=1"],
    "warm-up": [MIXED, "parallel=holmes", "train.global_batch_size=3003", "parallel.micro_batch_size=1",
                "parallel.pipeline=2", "parallel.warmup_extra=2"],
    "chunks": [MIXED, "parallel=holmes", "train.global_batch_size=3010", "parallel.micro_batch_size=1",
               "parallel.pipeline=2", "parallel.chunks=2"],
    "unlike depths": ["+cluster=laptop", "cluster.partitions.laptop.gpus_per_node=3", *UNLIKE,
                      "parallel.pipelines=[{microbatches: 1900, stages: [{ranks: [0], layers: 3}, {ranks: [1], layers: "
                      "1}]}, {microbatches: 1100, stages: [{ranks: [2], layers: 4}]}]"],
    "emulated": [MIXED, "parallel=holmes", "train.global_batch_size=1003", "parallel.micro_batch_size=1",
                 "launch.mode=emulated"],
}


@pytest.mark.parametrize("name", ROWS)
def test_a_shortened_step_is_as_long_as_the_whole_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holmes_hpc.cluster.machine.host_cores", lambda: 2)
    config = compose(ROWS[name])
    chosen = plan(config)
    assert len({pipeline.microbatches for pipeline in chosen.pipelines}) > 1
    task, layout = restore(config, chosen)
    timeline, peaks = observe(task, layout, chosen.schedule)
    monkeypatch.setattr("holmes_hpc.planner.simulation.long_steps.MOST_ACTIONS", 6_000)
    monkeypatch.setattr("holmes_hpc.planner.simulation.long_steps._ACTIONS_BETWEEN", 1_000)
    assert shortened(layout.pipelines, chosen.schedule) is not None
    short, again = observe(task, layout, chosen.schedule)
    assert short.step_seconds == pytest.approx(timeline.step_seconds, rel=0.005)
    assert short.busy_seconds == pytest.approx(timeline.busy_seconds, rel=0.005)
    assert again == peaks


def test_a_huge_batch_is_not_simulated_whole() -> None:
    pipelines = tuple(Pipeline(250_001 - p, (Stage((2 * p,), 0, 2), Stage((2 * p + 1,), 2, 2))) for p in range(4))
    for choice in (ScheduleChoice("1f1b"), ScheduleChoice("zero_bubble", warmup_extra=3)):
        found = shortened(pipelines, choice)
        assert found is not None
        for counts in (found.first, found.second):
            assert sum(counts[pipeline.microbatches] for pipeline in pipelines) * 12 < 80_000
        assert [found.periods_of(count) for count in found.first] == pytest.approx([found.periods] * 4, rel=1e-3)


def test_ordinary_steps_of_unlike_pipelines_are_simulated_whole() -> None:
    pipelines = tuple(Pipeline(200 + p, tuple(Stage((8 * p + s,), s, 1) for s in range(8))) for p in range(12))
    assert actions_of(pipelines) > 100_000
    assert shortened(pipelines, ScheduleChoice("1f1b")) is None


def test_a_pipeline_of_few_micro_batches_beside_many_is_not_rounded() -> None:
    pipelines = (Pipeline(30_000, (Stage((0,), 0, 4),)), Pipeline(20, (Stage((1,), 0, 4),)))
    assert shortened(pipelines, ScheduleChoice("1f1b")) is None
