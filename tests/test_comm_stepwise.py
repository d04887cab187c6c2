"""The order in which steps of many collectives begin and end, with operations that arrive when the test says so."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field

import pytest
import torch

from holmes_hpc.comm.progress import Progress
from holmes_hpc.comm.scratch import Loan, Scratch
from holmes_hpc.comm.stepwise import Collective, Lane
from holmes_hpc.comm.streams import between
from tests.device_queues import Queues


@dataclass
class FakeWork:
    over: bool = False

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
    streams = None

    def naming(self, group, doing, *, noted=True):
        return contextlib.nullcontext()

    def wait(self, work, group, doing, *, noted=True) -> None:
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


@dataclass
class QueuedWork:
    """An operation on a device: the queue waits for it, and what the host sees of it is not asked for."""

    queues: Queues
    over: bool = False

    def wait(self) -> None:
        self.queues.put(lambda: self.over)


@dataclass
class QueuedStep:
    name: str
    queues: Queues
    log: list[str]
    group: object = None
    doing: str = "testing"

    def begin(self) -> list[QueuedWork]:
        self.work = QueuedWork(self.queues)
        self.queues.does(lambda: self.log.append(f"begin {self.name}"))
        return [self.work]

    def end(self) -> None:
        self.queues.does(lambda: self.log.append(f"end {self.name}"))


class QueuedCommunicator(FakeCommunicator):
    def wait(self, work, group, doing, *, noted=True) -> None:
        assert not noted, "a side queue is not where the rank stands"
        work.wait()


def queued(*lengths: int):
    queues, log = Queues(), []
    steps = [[QueuedStep(f"{i}.{level}", queues, log) for level in range(length)] for i, length in enumerate(lengths)]
    made = [Collective(each, QueuedCommunicator(), then=lambda i=i: log.append(f"done {i}"))
            for i, each in enumerate(steps)]
    return queues, log, steps, made


def test_on_a_device_steps_follow_each_other_without_the_host_and_beside_what_computes() -> None:
    queues, log, steps, (only,) = queued(2)
    lane = Lane(queues)
    queues.does(lambda: log.append("backward"))
    lane.add(only)
    queues.does(lambda: log.append("next backward"))
    lane.finish(only)
    queues.does(lambda: log.append("update"))
    assert log == ["done 0"], "the host has put everything on the queues and waited for nothing"
    queues.run()
    assert log[1:] == ["backward", "next backward", "begin 0.0"], "the sum began behind its backward alone"
    queues.seconds, steps[0][0].work.over = 3.0, True
    queues.run()
    assert log[4:] == ["end 0.0", "begin 0.1"], "nobody polled"
    queues.seconds, steps[0][1].work.over = 5.0, True
    queues.run()
    assert log[6:] == ["end 0.1", "update"], "what uses the sum waited for it on the device"
    assert between(only.began, only.ended) == 5.0


def test_on_a_device_later_steps_keep_the_order_and_hold_up_no_first_step() -> None:
    queues, log, steps, made = queued(2, 2, 1)
    lane = Lane(queues)
    for each in made:
        lane.add(each)
    queues.run()
    assert log == ["begin 0.0", "begin 1.0", "begin 2.0"]
    steps[1][0].work.over = True
    queues.run()
    assert len(log) == 3, "1.1 would overtake 0.1 on its group"
    steps[0][0].work.over = True
    queues.run()
    assert log[3:] == ["end 0.0", "begin 0.1", "end 1.0", "begin 1.1"]
    lane.finish(made[1])
    assert not made[2].done and made[0].done and made[1].done
    lane.finish()
    assert made[2].done


def test_memory_given_back_in_one_queue_is_used_in_another_only_afterwards() -> None:
    queues, log = Queues(), []
    scratch = Scratch(torch.device("cpu"), queues)
    tensor = scratch.take(8, torch.float32)
    over = QueuedWork(queues)
    with queues.side(1):
        over.wait()
        scratch.give(tensor)
    assert scratch.take(8, torch.float32) is tensor
    queues.does(lambda: log.append("used again"))
    queues.run()
    assert log == []
    over.over = True
    queues.run()
    assert log == ["used again"]


@dataclass
class FutureWork(FakeWork):
    future: torch.futures.Future = field(default_factory=torch.futures.Future)

    def get_future(self):
        return self.future


def begun(steps, at: threading.Event) -> list[list[FakeStep]]:
    """Let operations tell by futures, and the first step after them by an event."""
    for each in steps:
        for step in each:
            step.work = FutureWork()
    later = steps[0][1].begin
    steps[0][1].begin = lambda: (at.set(), later())[1]
    return steps


def test_steps_go_on_while_the_rank_is_blocked_in_a_wait() -> None:
    log, steps, (only,) = collectives(2)
    started = threading.Event()
    begun(steps, started)
    progress = Progress()
    lane = Lane(progress=progress)
    lane.add(only)
    with progress.blocked():
        assert not started.wait(0.05), "nothing has arrived"
        steps[0][0].work.future.set_result(None)
        assert started.wait(10), "the rank is blocked, and its neighbours with it"
    steps[0][1].work.future.set_result(None)
    assert not only.done, "outside of waits the thread that trains has the lane for itself"
    lane.poll()
    assert only.done
    progress.end()


def test_an_error_of_a_step_that_went_on_beside_is_raised_in_the_thread_that_trains() -> None:
    _, steps, (only,) = collectives(2)
    met = threading.Event()

    def fail() -> list[FakeWork]:
        met.set()
        raise RuntimeError("the other rank is gone")

    steps[0][0].work = FutureWork()
    steps[0][1].begin = fail
    progress = Progress()
    lane = Lane(progress=progress)
    lane.add(only)
    with pytest.raises(RuntimeError, match="the other rank is gone"), progress.blocked():
        steps[0][0].work.future.set_result(None)
        assert met.wait(10)
    progress.end()


def test_a_lane_in_which_the_rank_itself_waits_is_left_alone() -> None:
    _, steps, (first, second) = collectives(2, 2)
    lane = Lane(progress=Progress())
    lane.add(first)
    lane.add(second)
    assert lane.waits_for_steps()
    seen: list[bool] = []
    end = first.end
    first.end = lambda: (seen.append(lane.waits_for_steps()), end())[1]
    lane.finish()
    assert seen == [False, False]
    assert not lane.waits_for_steps()
