"""Stragglers: who is one, who is not, and where it is shown; memory by rank beside the prediction."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

import analysis
from analysis.throughput import main
from holmes_hpc.metrics import Stragglers
from holmes_hpc.metrics.stragglers import WINDOW_STEPS
from holmes_hpc.values import Plan
from tests.run_folders import make_plan, make_run, metric

STEP_SECONDS = 0.2
EVEN = [0.1, 0.1, 0.1, 0.1, 0.02, 0.02, 0.02, 0.02]
"""Ranks 0 to 3 hold the first stage and 4 to 7 the second, which does much less."""


UNLIKE = replace(make_plan(), ranks=tuple(replace(place, gpu=f"gpu-{place.rank}") for place in make_plan().ranks))
"""No rank has a peer: each has a GPU of its own kind."""


def fed(*steps: list[float], scale: float = 1.0, plan: Plan | None = None) -> tuple[list[list[int] | None], list[str]]:
    """Feed own seconds by step; `scale` makes the steps and all that is in them so much longer."""
    said: list[str] = []
    stragglers = Stragglers(plan or make_plan(), said.append)
    return [stragglers.add(step, [scale * seconds for seconds in own], scale * STEP_SECONDS)
            for step, own in enumerate(steps, start=1)], said


def slow(rank: int, seconds: float) -> list[float]:
    return [seconds if each == rank else own for each, own in enumerate(EVEN)]


def test_a_rank_slower_than_its_peers_is_named_once_and_so_is_its_recovery() -> None:
    found, said = fed(*[slow(2, 0.25)] * (WINDOW_STEPS + 5), *[EVEN] * WINDOW_STEPS)
    assert found[WINDOW_STEPS - 2] is None and found[WINDOW_STEPS - 1] == [2] and found[-1] == []
    assert len(said) == 2
    assert "step 10: rank 2 on node ib-1 is a straggler" in said[0]
    assert "250 ms a step, 2.5 times as long as its peers (ranks 0, 1, 3: 100 ms" in said[0]
    assert said[1].endswith("rank 2 on node ib-1 is no straggler any more")


def test_a_rank_without_peers_is_judged_by_what_it_took_before() -> None:
    found, said = fed(*[EVEN] * 30, *[slow(2, 0.25)] * 20, *[EVEN] * 20, plan=UNLIKE)
    assert not any(found[9:30]) and found[45] == [2] and found[-1] == []
    assert len(said) == 2 and "rank 2 on node ib-1 is a straggler" in said[0]
    assert "250 ms a step, 2.5 times as long as earlier in this run (100 ms; it has no peers)" in said[0]
    assert not any(fed(*[EVEN] * 30, *[slow(2, 0.18)] * 20, plan=UNLIKE)[0]), "1.8 times"


def test_ranks_without_peers_that_slow_down_together_are_none() -> None:
    """A longer validation, a governor, another job: whatever it is, nobody waits for one of them."""
    found, said = fed(*[EVEN] * 30, *[[3 * own for own in EVEN]] * 30, plan=UNLIKE)
    assert not any(found) and not said
    found, said = fed(*[EVEN] * 30, *[[3 * own for own in slow(2, 0.25)]] * 30, plan=UNLIKE)
    assert found[-1] == [2] and len(said) == 1


def test_a_slow_beginning_is_no_measure() -> None:
    first = [[5 * own for own in EVEN]] * 12
    found, said = fed(*first, *[EVEN] * 30, *[slow(2, 0.25)] * 20, plan=UNLIKE)
    assert not any(found[9:42]) and found[-1] == [2] and len(said) == 1


def test_a_stage_with_more_work_and_a_single_pause_are_no_stragglers() -> None:
    pause = slow(0, 5.0)
    found, said = fed(*[EVEN] * 8, pause, pause, *[EVEN] * 12)
    assert not any(found) and not said


def test_a_difference_that_no_step_notices_is_none() -> None:
    assert not any(fed(*[slow(5, 0.035)] * 15)[0]), "1.75 times its peers, but 15 ms of a step of 200"
    assert fed(*[slow(5, 0.05)] * 15)[0][-1] == [5]


def test_milliseconds_are_said_only_once_they_have_added_up() -> None:
    """Rank 2 takes 6 ms longer in steps of 8 ms: 0.5 s are lost after 84 steps."""
    tiny = [slow(2, 0.25)] * 90
    found, said = fed(*tiny[:80], scale=0.04)
    assert found[9] == [2] and not said, "listed at once, said once it matters"
    assert [text.split(":")[0] for text in fed(*tiny, scale=0.04)[1]] == ["step 84"]


def test_a_tiny_model_on_a_busy_machine_says_nothing() -> None:
    """Steps of 8 ms, of which each rank in turn takes 6 ms longer for eight steps."""
    busy = [slow(2 * (step // 8 % 2), 0.25) for step in range(400)]
    found, said = fed(*busy, scale=0.04)
    assert any(found) and not said


def test_one_that_hovers_about_the_limit_is_said_once() -> None:
    hovering = [slow(2, 0.16)] * 10 + [slow(2, seconds) for _ in range(20) for seconds in [0.13] * 7 + [0.16] * 7]
    assert len(fed(*hovering)[1]) == 1, "above 1.25 times its peers it stays one"
    pause = [EVEN] * 3 + [slow(2, 0.25)] + [EVEN] * 3
    short_breaks = ([slow(2, 0.25)] * 13 + pause) * 10
    found, said = fed(*short_breaks)
    assert [] in found[9:] and len(said) == 1, "a recovery is said when it has lasted"


def test_one_that_is_said_later_is_said_with_what_made_it_one() -> None:
    """It stays a straggler with less than 1.5 times, and is said when it has cost half a second."""
    (said,) = fed(*[slow(2, 0.16)] * WINDOW_STEPS, *[slow(2, 0.14)] * 20, scale=0.5)[1]
    assert "70 ms a step, 1.4 times as long as its peers (ranks 0, 1, 3: 50 ms for as many micro-batches)" in said
    assert said.endswith(", and 1.6 times when it became one")
    at_once = fed(*[slow(2, 0.16)] * WINDOW_STEPS)[1][0]
    assert at_once.endswith("for as many micro-batches)")


def test_one_that_comes_and_goes_is_said_ever_more_rarely() -> None:
    flapping = ([slow(2, 0.25)] * 15 + [EVEN] * 15) * 40
    said = fed(*flapping, scale=10.0)[1]
    assert 2 <= len(said) <= 10 and "no straggler any more" in said[-1]
    later = fed(*flapping, *[slow(2, 0.25)] * 60, scale=10.0)[1]
    assert len(later) == len(said) + 1 and "is a straggler" in later[-1], "one that stays is said again"


def test_the_tables_show_stragglers_and_memory_beside_the_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = [metric(step, stragglers=[3] if step > 4 else [] if step == 4 else None) for step in range(1, 9)]
    metrics[-1]["memory_gib_per_rank"] = [0.5 + rank / 8 for rank in range(8)]
    folder = make_run(tmp_path / "runs", metrics=metrics)
    table = analysis.by_rank(folder).set_index("rank")
    assert len(table) == 8
    predicted = make_plan().predicted.memory_gib_per_rank
    assert list(table["predicted_memory_gib"]) == list(predicted)
    assert table.loc[3, "measured_memory_gib"] == 0.875
    assert table.loc[3, "measured_to_predicted"] == pytest.approx(0.875 / predicted[3])
    assert table.loc[3, "straggler_share"] == 0.8, "steps 5 to 8 of the judged 4 to 8"
    assert table.loc[2, "straggler_share"] == 0.0
    assert main([str(folder), "--no-pictures"]) == 0
    text = capsys.readouterr().out
    assert "memory in GiB, stragglers" in text and "80.0 %" in text and "0.875" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_run_that_measured_no_rank_has_no_such_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "runs", metrics=[metric(step) for step in range(1, 9)])
    assert math.isnan(analysis.by_rank(folder)["measured_memory_gib"].iloc[0])
    main([str(folder), "--no-pictures"])
    assert "memory in GiB" not in capsys.readouterr().out
