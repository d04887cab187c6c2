"""The order in which steps of many collectives begin and end, with operations that arrive when the test says so."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import pytest
import torch

from holmes_hpc.comm.stepwise import Collective, Lane, Loan, Scratch


class FakeWork:
    def __init__(self) -> None:
        self.over = False

    def is_completed(self) -> bool:
        return self.over

    def get_future(self):
        raise RuntimeError("not implemented")


@dataclass
class FakeStep:
    name: str
    log: list[str]
    group: object = None
    doing: str = "testing"
    work: FakeWork = field(default_factory=FakeWork)

    def begin(self) -> list[FakeWork]:
        self.log.append(f"begin {self.name}")
        return [self.work]

    def end(self) -> None:
        self.log.append(f"end {self.name}")


class FakeCommunicator:
    def naming(self, group, doing):
        return contextlib.nullcontext()

    def wait(self, work, group, doing) -> None:
        work.over = True


def collectives(*lengths: int):
    log: list[str] = []
    steps = [[FakeStep(f"{i}.{level}", log) for level in range(length)] for i, length in enumerate(lengths)]
    made = [Collective(each, FakeCommunicator(), then=lambda i=i: log.append(f"done {i}"))
            for i, each in enumerate(steps)]
    return log, steps, made


def test_a_later_step_begins_only_after_the_same_step_of_those_before() -> None:
    log, steps, (first, second) = collectives(2, 2)
    lane = Lane()
    lane.add(first)
    lane.add(second)
    steps[1][0].work.over = True
    lane.poll()
    assert log == ["begin 0.0", "begin 1.0"], "1.1 would overtake 0.1 on its group"
    steps[0][0].work.over = True
    lane.poll()
    assert log[2:] == ["end 0.0", "begin 0.1", "end 1.0", "begin 1.1"]


def test_last_steps_may_end_in_any_order_and_finishing_one_finishes_those_before() -> None:
    log, steps, (first, second, third) = collectives(1, 1, 1)
    lane = Lane()
    for each in (first, second, third):
        lane.add(each)
    steps[1][0].work.over = True
    lane.poll()
    assert second.done and not first.done
    lane.finish(second)
    assert first.done and not third.done
    lane.finish()
    assert third.done
    assert [line for line in log if line.startswith("done")] == ["done 1", "done 0", "done 2"]


def test_finishing_goes_level_by_level_so_that_all_are_under_way_at_once() -> None:
    log, _, made = collectives(2, 1, 2)
    lane = Lane()
    for each in made:
        lane.add(each)
    lane.finish(made[2])
    assert [line for line in log if line.startswith("begin")] == [
        "begin 0.0", "begin 1.0", "begin 2.0", "begin 0.1", "begin 2.1"]


def test_a_late_lane_begins_later_steps_only_when_it_finishes() -> None:
    log, steps, (only,) = collectives(2)
    lane = Lane(early=False)
    lane.add(only)
    steps[0][0].work.over = True
    lane.poll()
    assert log == ["begin 0.0"]
    lane.finish(only)
    assert only.done


def test_a_collective_without_steps_holds_nothing_up() -> None:
    _, _, (empty, other) = collectives(0, 1)
    lane = Lane()
    lane.add(other)
    lane.add(empty)
    lane.finish(empty)
    assert other.done, "those before are done too"


def test_a_step_keeps_its_place_where_a_rank_has_no_part_in_those_before() -> None:
    log: list[str] = []
    alone, inside, across = (FakeStep(name, log) for name in ("alone", "inside", "across"))
    first = Collective([inside, across], FakeCommunicator())
    second = Collective([None, alone], FakeCommunicator())
    lane = Lane()
    lane.add(first)
    lane.add(second)
    lane.poll()
    assert log == ["begin inside"], "on the other members `alone` follows `across`"
    inside.work.over = True
    lane.poll()
    assert log == ["begin inside", "end inside", "begin across", "begin alone"]
    late = Lane(early=False)
    third = Collective([None, FakeStep("third", log)], FakeCommunicator())
    late.add(third)
    late.poll()
    assert log[-1] == "begin alone"
    late.finish()
    assert third.done and log[-1] == "end third"
    nothing = Collective([None, None], FakeCommunicator())
    assert nothing.length == 0


def test_scratch_is_used_again() -> None:
    scratch = Scratch(torch.device("cpu"))
    loan = Loan(scratch, 8, torch.float32)
    address = loan.tensor.data_ptr()
    loan.give_back()
    loan.give_back()
    taken = scratch.take(8, torch.float32)
    assert taken.data_ptr() == address
    assert scratch.take(8, torch.float32).data_ptr() != address
    assert scratch.take(8, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("early", [True, False])
def test_everything_ends_whatever_the_order_of_arrival(early: bool) -> None:
    _, steps, made = collectives(3, 1, 2, 3)
    lane = Lane(early=early)
    for each in made:
        lane.add(each)
    for group in reversed(steps):
        for step in group:
            step.work.over = True
            lane.poll()
    lane.finish()
    assert all(each.done for each in made)
