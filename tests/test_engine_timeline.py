"""Times of a step where the host runs ahead of its device: they are the device's, by a stand-in for its queues."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holmes_hpc.comm.activity import OUTSIDE, Activity
from holmes_hpc.engine.timeline import Timeline
from holmes_hpc.values import Action, ActionKind
from tests.device_queues import Queues

FORWARD = Action(ActionKind.FORWARD, 0, 0, 0)
RECEIVE = Action(ActionKind.RECEIVE_GRADIENT, 0, 0, 0, peer=1)
REDUCE, GATHER = (Action(kind, reduction=0) for kind in (ActionKind.REDUCE, ActionKind.GATHER))


class Device(Queues):
    """Queues whose compute takes time: what is put on them by `takes` ends so much later than what was before."""

    def takes(self, seconds: float) -> None:
        self.does(lambda: setattr(self, "seconds", self.seconds + seconds))


def step(device: Device, timeline: Timeline, *parts: tuple[Action, float]) -> None:
    for action, seconds in parts:
        with timeline.record(action):
            device.takes(seconds)


def test_actions_take_what_the_device_takes_and_not_what_their_issue_does() -> None:
    device = Device()
    timeline = Timeline(streams=device)
    timeline.start()
    step(device, timeline, (FORWARD, 2.0), (RECEIVE, 3.0), (REDUCE, 0.5))
    timeline.update()
    step(device, timeline, (Action(ActionKind.OPTIMIZER), 1.0), (GATHER, 0.25))
    timeline.end()
    device.run()
    assert timeline.receive_wait_seconds() == 3.0
    assert timeline.reduce_seconds() == 0.75
    assert [(str(action), begin, end) for action, begin, end in timeline.records[:3]] == [
        (str(FORWARD), 0.0, 2.0), (str(RECEIVE), 2.0, 5.0), (str(REDUCE), 5.0, 5.5)]
    timeline.start()
    device.takes(7.0)
    timeline.in_flight(ActionKind.GATHER, 0, 1, began := device.point(), began)
    device.run()
    assert timeline.late_gather_seconds() == 0.25, "gathers after the update are waited for by the next step"
    assert (timeline.flights[0].start, timeline.flights[0].end) == (7.0, 7.0)


def test_what_began_before_the_step_has_a_negative_start() -> None:
    device = Device()
    timeline = Timeline(streams=device)
    timeline.start()
    device.takes(1.0)
    began = device.point()
    device.takes(2.0)
    timeline.start()
    device.takes(0.5)
    timeline.in_flight(ActionKind.GATHER, 0, 0, began, device.point())
    device.run()
    assert (timeline.flights[0].start, timeline.flights[0].end) == (-2.0, 0.5)


def test_who_asks_for_a_time_that_the_device_has_not_passed_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    timeline = Timeline(streams=device)
    timeline.start()
    step(device, timeline, (FORWARD, 2.0))
    monkeypatch.setattr("tests.device_queues.QueuePoint.synchronize", lambda point: device.run())
    assert timeline.rows()[0]["end"] == 2.0


@pytest.fixture
def following() -> tuple[Device, Activity]:
    device, activity = Device(), Activity()
    activity.follow(device)
    return device, activity


def issue(device: Device, activity: Activity, arrives: Callable[[], bool]) -> None:
    """Issue a forward, a receive that ends once `arrives` says so, and all that follows in the step."""
    activity.begin("F0.0.0", 4)
    device.takes(2.0)
    activity.begin("r0.0.0")
    with activity.waiting(3, "waiting for message 8 from rank 1", on_host=False):
        device.put(arrives)
    activity.begin("B0.0.0")
    device.takes(1.0)
    activity.begin("R0")
    with activity.waiting(5, "summing gradients", on_host=False):
        device.takes(0.5)


def test_a_rank_stands_where_its_device_does(following: tuple[Device, Activity]) -> None:
    device, activity = following
    arrived: list[bool] = []
    issue(device, activity, lambda: bool(arrived))
    assert activity.now.action == "R0" and activity.now.group == OUTSIDE, "the host has issued all"
    device.run()
    doing, number = activity.standing()
    assert (doing.step, doing.action, doing.group) == (4, "r0.0.0", 3)
    assert doing.operation == "waiting for message 8 from rank 1"
    assert activity.standing() == (doing, number), "no progress"
    arrived.append(True)
    device.run()
    doing, later = activity.standing()
    assert (doing.action, doing.group) == ("R0", OUTSIDE) and later > number
    activity.begin("loading data", 5)
    device.run()
    assert activity.standing()[0].action == "loading data", "the device has done all: the host is what counts"


def test_a_kernel_that_never_ends_is_outside_of_groups(following: tuple[Device, Activity]) -> None:
    device, activity = following
    activity.begin("F0.0.0", 4)
    device.put(lambda: False)
    with activity.waiting(5, "summing gradients", on_host=False):
        device.takes(0.5)
    device.run()
    assert activity.standing()[0].action == "F0.0.0" and activity.standing()[0].group == OUTSIDE


def test_own_seconds_leave_out_what_the_device_waited(following: tuple[Device, Activity],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    device, activity = following
    host = [100.0]
    monkeypatch.setattr("holmes_hpc.comm.activity.time.perf_counter", lambda: host[0])
    activity.own_seconds()
    device.does(lambda: setattr(device, "seconds", device.seconds + 4.0))
    issue(device, activity, lambda: (setattr(device, "seconds", device.seconds + 6.0), True)[1])
    host[0] += 13.5  # the host issued at once and has waited for the device since
    device.run()
    with activity.waiting(0, "combining numbers"):
        host[0] += 2.0
    assert activity.own_seconds() == 7.0, "4 and 2 and 1 of compute; 6 for the message, 0.5 of the sum, 2 of the host"
    issue(device, activity, lambda: False)
    host[0] += 1.0
    assert activity.own_seconds() == 1.0, "waits that the device has not passed belong to the next call"
