"""The sliding window of `launch.max_jobs`: which waiting job starts as another one ends, and behind whom new go."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from holmes_hpc.submit.lanes import Lanes
from holmes_hpc.submit.window import Change, Queued, lanes_of, read_queue, slide

LISTED = """\
4+0|PENDING|afterany:2(unfulfilled),afterok:99(unfulfilled)
4+1|PENDING|afterany:2(unfulfilled),afterok:99(unfulfilled)
6_[2-3%2]|PENDING|afterany:4
6_0|RUNNING|(null)
2+0|RUNNING|(null)
2+1|RUNNING|(null)
11|PENDING|afterany:6_0(unfulfilled)
1|COMPLETED|(null)
8|RUNNING|(null)
12|PENDING|afterany:6_*(unfulfilled)
"""


def test_the_queue_is_read_as_slurm_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listed").write_text(LISTED)
    (tmp_path / "squeue").write_text(f"#!/bin/sh\ncat {tmp_path}/listed\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert read_queue(["1", "2", "4", "6_0", "6_1", "6_2", "6_3", "11", "12"]) == [
        Queued("2", frozenset({"2"})),
        Queued("4", frozenset({"4"}), 0, frozenset({"2"}), "afterok:99"),
        Queued("6", frozenset({"6_0", "6_2", "6_3"}), 2, frozenset({"4"})),
        Queued("11", frozenset({"11"}), 0, frozenset({"6_0"})),
        Queued("12", frozenset({"12"}), 0, frozenset({"6"})),
    ]


def one(job: int, *waits_for: int, besides: str = "") -> Queued:
    return Queued(str(job), frozenset({str(job)}), 0, frozenset(map(str, waits_for)), besides)


def array(job: int, size: int, throttle: int = 0, *waits_for: int) -> Queued:
    return Queued(str(job), frozenset(f"{job}_{task}" for task in range(size)), throttle,
                  frozenset(map(str, waits_for)))


@pytest.mark.parametrize(("queue", "ended", "changes"), [
    ([one(1), one(2), one(3, 1), one(4, 2)], ["2"], []),
    ([one(1), one(2), one(3, 1), one(4, 3)], ["2"], [Change("3", "afterany:2")]),
    ([one(1), one(2), one(3, 1, besides="afterok:99")], ["2"], [Change("3", "afterany:2,afterok:99")]),
    ([one(1), one(2)], ["2"], []),
    ([one(1), array(2, 1), array(3, 4, 1, 1)], ["2_0"], [Change("3", "afterany:2", 1)]),
    ([one(1), one(2), array(3, 4, 1)], ["2"], []),
    ([array(3, 4, 1), one(2)], ["2"], [Change("3", None, 2)]),
    ([one(1), array(2, 3, 1), one(4, 1)], ["2_0"], []),
    ([array(2, 2), one(4, 2), one(5, 2)], ["2_0"], [Change("4", "afterany:2")]),
    ([array(2, 2), one(4, 2), one(5, 2)], ["2_0", "2_1"], []),
    ([one(1), one(5, 1), one(6, 5)], ["9"], [Change("5", "afterany:2")]),
], ids=["a successor is there", "one behind a longer job moves up", "its other dependencies stay", "nothing waits",
        "of an array as many as fit", "no room beside an array", "an array grows", "an array goes on by itself",
        "a task makes room", "all of an array went", "a job died without a word"])
def test_the_first_that_waits_for_a_longer_job_takes_the_place(queue: list[Queued], ended: list[str],
                                                              changes: list[Change]) -> None:
    assert slide(queue, 2, ended, "2") == changes


def test_changes_are_said_as_scontrol_wants_them() -> None:
    assert Change("7", "").words() == ["scontrol", "update", "JobId=7", "Dependency="]
    assert Change("7", "afterany:3", 2).words() == ["scontrol", "update", "JobId=7", "ArrayTaskThrottle=2",
                                                    "Dependency=afterany:3"]


def test_new_jobs_go_behind_those_that_nobody_waits_for() -> None:
    lanes = lanes_of([one(1), one(3), one(5, 3)], 2)
    assert [lanes.choose(1)[1]] == [("1",)], "not free, although job 3 was let past job 1"
    lanes = lanes_of([array(6, 3, 2), Queued("7", frozenset({"7"}), 0, frozenset({"6_0"}))], 2)
    assert lanes.choose(2)[1] == ("6", "7")
    assert lanes_of([one(1)], 2).choose(1)[1] == ()


def test_a_window_is_full_and_never_more_than_full() -> None:
    for seed in range(200):
        play(seed)


def play(seed: int) -> None:
    """Jobs of drawn lengths, some of which die without a word, some submitted late: how many run at each moment."""
    draw = random.Random(seed)
    size, count = draw.randint(1, 4), draw.randint(1, 14)
    at_once = draw.randint(1, count)
    left = {str(number): draw.randint(1, 9) for number in range(1, count + 1)}
    queue: dict[str, Queued] = {}
    unsubmitted = [str(number) for number in range(1, count + 1)]

    def submit(lanes: Lanes, most: int) -> None:
        for job in unsubmitted[:most]:
            places, after = lanes.choose(1)
            lanes.give(places, job)
            queue[job] = Queued(job, frozenset({job}), 0, frozenset(after))
            unsubmitted.remove(job)

    def runs() -> list[str]:
        return [job for job, queued in queue.items() if not queued.waits_for & queue.keys()]

    submit(lanes_of([], size), at_once)
    for _ in range(300):
        assert len(runs()) <= size, queue
        if not queue and not unsubmitted:
            return
        died = False
        for job in runs():
            left[job] -= 1
        over = [job for job in runs() if left[job] <= 0]
        for job in over:
            if draw.random() < 0.15:
                died = True
            else:
                living = [queued.without(frozenset()) for queued in queue.values()]
                for change in slide(living, size, [each for each in over if left[each] <= 0], job):
                    terms = frozenset(term.removeprefix("afterany:") for term in (change.dependency or "").split(","))
                    queue[change.job] = Queued(change.job, queue[change.job].tasks, 0, terms)
        for job in over:
            del queue[job]
        queue = {job: Queued(job, queued.tasks, 0, queued.waits_for & queue.keys()) for job, queued in queue.items()}
        submit(lanes_of(list(queue.values()), size), draw.randint(0, 2) if queue else 1)
        waiting = len(queue) - len(runs())
        assert died or not over or len(runs()) == size or not waiting, queue
    raise AssertionError(f"never ends: {queue}")
