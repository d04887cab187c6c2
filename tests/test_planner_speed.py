"""What keeps a search short, and what it tells people who wait."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc import plan as plan_command
from holmes_hpc.config.compose import compose
from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.layout.pipelines import build_pipelines
from holmes_hpc.planner.making import find_best
from holmes_hpc.planner.progress import LINE_SECONDS, QUIET_SECONDS, search_progress
from holmes_hpc.planner.search.budget import Allowance, SearchBudget, layout_units
from holmes_hpc.planner.search.candidate import Candidate, make_layout
from holmes_hpc.planner.search.improve import improve
from holmes_hpc.planner.simulation import predict, representatives, symmetry
from holmes_hpc.planner.simulation.bounds import least_seconds
from holmes_hpc.planner.simulation.representatives import standing_for_all
from holmes_hpc.planner.task import task_of
from holmes_hpc.schedule.list_scheduling import order_passes
from holmes_hpc.schedule.one_f_one_b import is_unshared, one_f_one_b_orders
from holmes_hpc.schedule.policies import one_f_one_b_policy
from holmes_hpc.values import Pipeline, Schedule, ScheduleChoice, Stage
from tests.fuzzing import examples
from tests.planner_problems import SMALL


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(stream: TextIO, times: list[float]) -> None:
    clock = iter([0.0, *times])
    with search_progress(stream, lambda: next(clock)) as progress:
        for number in range(len(times)):
            progress(f"planning: {number}")


def test_a_short_search_is_silent_and_a_long_one_says_what_it_is_at() -> None:
    stream = io.StringIO()
    told(stream, [0.1, 0.9 * QUIET_SECONDS])
    assert stream.getvalue() == ""
    told(stream, [0.1, QUIET_SECONDS + 1, QUIET_SECONDS + 2, QUIET_SECONDS + 1 + LINE_SECONDS])
    assert stream.getvalue() == "planning: 1\nplanning: 3\n"


def test_a_terminal_has_one_line_that_goes_away() -> None:
    stream = Terminal()
    told(stream, [QUIET_SECONDS + 1, QUIET_SECONDS + 2])
    lines = stream.getvalue().split("\r\x1b[2K")
    assert lines == ["", "planning: 0", "planning: 1", ""]


def test_the_command_passes_progress_to_the_planner_but_not_for_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                                     capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("holmes_hpc.planner.progress.QUIET_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    small = ["+cluster=ib", "parallel=megatron", "parallel.pipeline=1", "cluster.partitions.ib.nodes=1"]
    plan_command.act(compose(small))
    assert "planning: megatron" in capsys.readouterr().err
    plan_command.act(compose([*small, "output=json"]))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [0, 12, 27])
def test_nothing_simulated_beats_its_bound(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Candidate] = []

    def spy(candidates: list[Candidate], budget: SearchBudget) -> list[Candidate]:
        found = improve(candidates, budget)
        seen.extend([*candidates, *found])
        return found

    monkeypatch.setattr("holmes_hpc.planner.search.search.improve", spy)
    find_best(SMALL[number].task("parallel.search_seconds=0.5"))
    assert len(seen) > 20
    shares = [least_seconds(each.task, each.layout.pipelines, each.layout.micro_batch_size) / each.seconds
              for each in seen]
    assert 0.8 < max(shares) <= 1


@examples(60)
@given(st.lists(st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=6), st.integers(1, 20)), min_size=1,
                max_size=3), st.sets(st.tuples(st.integers(0, 2), st.integers(0, 4))), st.integers(1, 3))
def test_the_closed_form_of_1f1b_is_what_list_scheduling_finds(shapes: list[tuple[list[int], int]],
                                                               slow: set[tuple[int, int]], extra: int) -> None:
    ranks = itertools.count()
    pipelines = [Pipeline(count, tuple(Stage(tuple(itertools.islice(ranks, width)), s, 1)
                                       for s, width in enumerate(widths))) for widths, count in shapes]
    warmups = {(p, s): extra for p, s in slow if p < len(shapes) and s + 1 < len(shapes[p][0])}
    assert is_unshared(pipelines)
    assert one_f_one_b_orders(pipelines, warmups) == order_passes(pipelines, one_f_one_b_policy(pipelines, warmups))


def test_a_budget_limits_what_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    from holmes_hpc.planner.simulation import predict

    def actions(seconds: float) -> int:
        ran: list[int] = []

        def counting(schedule: Schedule, *rest: Any) -> Any:
            ran.append(sum(map(len, schedule.actions.values())))
            return simulate(schedule, *rest)

        monkeypatch.setattr(predict, "simulate", counting)
        find_best(SMALL[1].task(f"parallel.search_seconds={seconds}"))
        return sum(ran)

    simulate = predict.simulate
    assert actions(0.05) < actions(0.25) < actions(1)


def test_a_layout_dearer_than_the_whole_budget_lets_others_go_first() -> None:
    best, _ = find_best(SMALL[0].task("parallel=megatron"))
    units = layout_units(best.task, best.layout)
    allowance = Allowance(2 * units)
    for warmup in (7, 8):
        assert not allowance.is_beyond(best.task, best.layout)
        allowance.spend(best.task, best.layout, ScheduleChoice("1f1b", warmup))
    assert allowance.units == 0
    assert Allowance(0.9 * units).is_beyond(best.task, best.layout)


def test_pipelines_that_share_ranks_in_equal_ways_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["+cluster=mixed", "model=gpt2_small", "train.global_batch_size=32",
                      "cluster.partitions.ib.nodes=1", "cluster.partitions.ib.gpus_per_node=2",
                      "cluster.partitions.roce.nodes=1", "cluster.partitions.roce.gpus_per_node=4"])
    pipelines = build_pipelines((((0,), (1,)), ((2,), (3,), (4,), (5,))), (8, 4), 32)
    assert [pipeline.stages[0].ranks for pipeline in pipelines] == [(0,), (0,), (1,), (1,)]

    def simulated() -> tuple[list[float], float, int]:
        task = task_of(config, "slurm")
        layout = make_layout(task, "holmes", pipelines, 1, GroupRules())
        allowance, choice = Allowance(1e6), ScheduleChoice("1f1b")
        allowance.spend(task, layout, choice)
        spent, found = allowance.whole - allowance.units, predict.predict(task, layout, choice)
        allowance.spend(task, layout, choice)
        assert allowance.whole - allowance.units == spent  # what is known costs nothing
        return [found.step_seconds, found.idle_fraction, *found.memory_gib_per_rank], spent, len(
            standing_for_all(task, layout, turns=False))

    folded, few, pipelines_left = simulated()
    assert pipelines_left == 2
    monkeypatch.setattr(symmetry, "alike", lambda pipelines, slot_of, turns: 2 * (list(range(len(pipelines))),))
    monkeypatch.setattr(representatives, "alike", symmetry.alike)
    whole, more, pipelines_left = simulated()
    assert pipelines_left == 4 and more > few
    assert folded == pytest.approx(whole, rel=1e-6)
