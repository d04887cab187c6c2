"""The simulator: published efficiencies over a slow hop, links that are shared, overlap, turns."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.planner.cost.network import Traffic
from holmes_hpc.planner.simulation.collectives import Bucket
from holmes_hpc.planner.simulation.events import Prices, Timeline, simulate
from holmes_hpc.planner.simulation.links import Links
from holmes_hpc.schedule.building import make_schedule
from holmes_hpc.values import Action, ActionKind, Group, Pipeline, Reduction, Schedule, ScheduleChoice, Stage
from tests.fuzzing import examples

SECONDS = {ActionKind.FORWARD: 1, ActionKind.BACKWARD: 2, ActionKind.BACKWARD_INPUT: 1, ActionKind.BACKWARD_WEIGHT: 1}


def efficiency(depth: int, microbatches: int, delay: float, name: str, extra: int = 0) -> float:
    """Return ideal compute over the step, for F = 1 and B = 2 and one slow hop in the middle of the ranks.

    Half of the delay is the time on the wire and half latency, as in the published table.
    """
    chunks = 2 if name == "interleaved" else 1
    cut = depth // 2 - 1
    stages = tuple(Stage((s % depth,), s, 1) for s in range(depth * chunks))
    pipeline = Pipeline(microbatches, stages)
    slow = {frozenset((cut, cut + 1))} | ({frozenset((depth - 1, 0))} if chunks > 1 else set())
    edges = {frozenset((s % depth, (s + 1) % depth)) for s in range(len(stages) - 1)}
    groups = tuple(Group("pipeline", tuple(sorted(edge)), "ethernet" if edge in slow else "ib") for edge in edges)
    hop = round(1000 * delay)
    choice = ScheduleChoice(
        name, extra, chunks, stage_times=(((1000, 2000, 1000),) * depth,),
        hop_times=(tuple((hop, hop // 2) if s == cut else (0, 0) for s in range(depth - 1)),))
    schedule = make_schedule((pipeline,), groups, (), choice)
    messages = {}
    for edge in edges:
        for a, b in (tuple(edge), tuple(edge)[::-1]):
            part = delay / 2 if edge in slow else 0.0
            messages[a, b] = Traffic(part, part, {("link", f"{a}>{b}"): part} if part else {})
    compute = {(kind, 0, s): seconds / chunks for s in range(len(stages)) for kind, seconds in SECONDS.items()}
    prices = Prices(compute, messages, (), dict.fromkeys(range(depth), 0.0))
    return 3 * microbatches / simulate(schedule, (), prices).step_seconds


PUBLISHED = {
    (4, 32, 0.0): (0.914, 0.914, 0.914, 0.955, 0.941, 0.941),
    (4, 32, 0.1): (0.887, 0.913, 0.913, 0.950, 0.939, 0.939),
    (4, 32, 0.25): (0.850, 0.910, 0.910, 0.941, 0.937, 0.937),
    (4, 32, 0.5): (0.793, 0.906, 0.906, 0.928, 0.932, 0.932),
    (4, 32, 1.0): (0.701, 0.897, 0.897, 0.835, 0.850, 0.923),
    (4, 32, 2.0): (0.568, 0.881, 0.881, 0.602, 0.727, 0.906),
    (4, 32, 4.0): (0.412, 0.850, 0.667, 0.382, 0.536, 0.873),
    (4, 32, 8.0): (0.264, 0.627, 0.348, 0.220, 0.371, 0.644),
    (8, 32, 1.0): (0.653, 0.807, 0.807, 0.817, 0.814, 0.857),
    (8, 32, 2.0): (0.542, 0.793, 0.793, 0.611, 0.744, 0.842),
    (2, 16, 1.0): (0.716, 0.906, 0.906, 0.744, 0.814, 0.923),
    (4, 16, 2.0): (0.539, 0.787, 0.787, 0.571, 0.686, 0.828),
}
"""1F1B, 1F1B with k = ceil(2 D / (F + B)), GPipe, interleaved, split backward in the memory of 1F1B, and with k."""


@pytest.mark.parametrize("case", PUBLISHED)
def test_efficiency_over_a_slow_hop(case: tuple[int, int, float]) -> None:
    depth, microbatches, delay = case
    extra = math.ceil(2 * delay / 3)
    found = [efficiency(depth, microbatches, delay, *kind) for kind in (
        ("1f1b",), ("1f1b", extra), ("gpipe",), ("interleaved",), ("zero_bubble",), ("zero_bubble", extra))]
    assert found[:4] == pytest.approx(PUBLISHED[case][:4], abs=0.02)
    # The split orders are found by a greedy rule that leaves ties open: ours may be better, and is by up to 0.026.
    for ours, published in zip(found[4:], PUBLISHED[case][4:], strict=True):
        assert published - 0.02 <= ours <= published + 0.03


def crossing(width: int, microbatches: int, busy: float, name: str, extra: int, turns: bool) -> float:
    """Return the step of two equal stages (F + B = 0.578 s, as in Holmes's group 1), `width` pipelines sharing a NIC.

    `busy` is what one message occupies of the NIC; nothing else costs time.
    """
    pipelines = tuple(Pipeline(microbatches, (Stage((k,), 0, 1), Stage((width + k,), 1, 1))) for k in range(width))
    groups = (*(Group("pipeline", (k, width + k), "ethernet") for k in range(width)),
              Group("turn", tuple(range(width, 2 * width)), "local"))
    forward = 0.578 / 3
    times = ((round(1e6 * forward), round(2e6 * forward), round(1e6 * forward)),) * 2
    choice = ScheduleChoice(name, extra, turns=turns, stage_times=(times,),
                            hop_times=(((round(1e6 * busy * width), round(1e6 * busy)),),))
    schedule = make_schedule(pipelines, groups, (), choice)
    messages = {}
    for k in range(width):
        messages[k, width + k] = Traffic(busy, 0.0, {("a", "out"): busy, ("b", "in"): busy})
        messages[width + k, k] = Traffic(busy, 0.0, {("b", "out"): busy, ("a", "in"): busy})
    compute = {(kind, p, s): forward * seconds for p in range(width) for s in range(2)
               for kind, seconds in SECONDS.items()}
    return simulate(schedule, (), Prices(compute, messages, (), dict.fromkeys(range(2 * width), 0.0))).step_seconds


@pytest.mark.parametrize(("microbatches", "sharing", "turns", "zero_bubble"), [
    (12, 0.965, 0.980, 0.984), (8, 0.950, 0.971, 0.977), (6, 0.937, 0.963, 0.970)])
def test_turns_on_a_shared_nic(microbatches: int, sharing: float, turns: float, zero_bubble: float) -> None:
    """Eight pipelines of a node over 25 Gb/s, against the same schedule on an infinite Ethernet."""
    def ratio(name: str, turn: bool) -> float:
        return (crossing(8, microbatches, 1e-9, name, 1, turn)
                / crossing(8, microbatches, 0.137 / 8, name, 1, turn))

    assert ratio("1f1b", False) == pytest.approx(sharing, abs=0.004)
    assert ratio("1f1b", True) == pytest.approx(turns, abs=0.004)
    assert ratio("zero_bubble", True) == pytest.approx(zero_bubble, abs=0.01)


def test_messages_share_a_nic_and_leave_what_they_cannot_use() -> None:
    links = Links()
    out, other, narrow = ("a", "out"), ("b", "in"), ("c", "in")
    links.start(1, 0.0, Traffic(1.0, busy={out: 1.0, other: 1.0}))
    assert links.flows[1].end == 1.0
    changed = links.start(2, 0.5, Traffic(1.0, busy={out: 1.0, narrow: 4.0}))
    assert {flow.number for flow in changed} == {1, 2}
    # The second is held up by its receiver, at a quarter of its rate; the first has the other three quarters.
    assert links.flows[2].rate == pytest.approx(0.25)
    assert links.flows[1].rate == pytest.approx(0.75)
    assert links.flows[1].end == pytest.approx(0.5 + 0.5 / 0.75)
    links.finish(1, links.flows[1].end)
    assert links.flows[2].rate == pytest.approx(0.25)


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0.1, 5), st.floats(0, 3)), min_size=1,
                max_size=12))
def test_no_link_is_overfull_and_all_traffic_arrives(transfers: list[tuple[int, int, float, float]]) -> None:
    links, moved, now = Links(), 0, 0.0
    waiting = sorted(enumerate(transfers), key=lambda item: item[1][3])
    while waiting or links.flows:
        ends = [(flow.end, number) for number, flow in links.flows.items()]
        if waiting and (not ends or waiting[0][1][3] <= min(ends)[0]):
            number, (a, b, seconds, start) = waiting.pop(0)
            now = max(now, start)
            links.start(number, now, Traffic(seconds, busy={(str(a), "out"): seconds, (str(b), "in"): seconds}))
        else:
            now, number = min(ends)
            links.finish(number, now)
            moved += 1
        for port in {port for flow in links.flows.values() for port, _ in flow.lane.needs}:
            assert sum(flow.rate * need for flow in links.flows.values()
                       for each, need in flow.lane.needs if each == port) <= 1 + 1e-6
        assert all(flow.rate > 0 for flow in links.flows.values())
    assert moved == len(transfers)
    ports = {port: sum(t[2] for t in transfers if t[at] == port) for at in (0, 1) for port in range(4)}
    earliest = max(start + seconds for _, _, seconds, start in transfers)
    assert now >= max(earliest, *ports.values()) - 1e-6


def two_replicas(buckets: dict[int, tuple[Bucket, ...]], gathers: dict[int, tuple[Bucket, ...]],
                 overlap: bool) -> Timeline:
    pipelines = (Pipeline(4, (Stage((0,), 0, 1),)), Pipeline(4, (Stage((1,), 0, 1),)))
    reductions = (Reduction(("layers.0",), (0, 1)),)
    schedule = make_schedule(pipelines, (), reductions, ScheduleChoice("1f1b"))
    if gathers and not overlap:
        actions = {rank: (*each, Action(ActionKind.GATHER, reduction=0)) for rank, each in schedule.actions.items()}
        schedule = Schedule("1f1b", actions)
    compute = {(kind, p, 0): float(seconds) for p in range(2) for kind, seconds in SECONDS.items()}
    traffic = Traffic(2.0, busy={("a", "out"): 2.0})
    return simulate(schedule, reductions, Prices(compute, {}, (traffic,), {0: 0.5, 1: 0.25}, buckets=buckets,
                                                 gathers=gathers, overlap_gathers=overlap), trace=True)


def halves(first: float, second: float) -> dict[int, tuple[Bucket, ...]]:
    half = Traffic(1.0, busy={("a", "out"): 1.0})
    return {0: tuple(Bucket(half, {(0, 0): at, (1, 0): at}) for at in (first, second))}


def test_buckets_are_reduced_under_the_last_backward() -> None:
    assert two_replicas({}, {}, False).step_seconds == pytest.approx(12 + 2 + 0.5)
    # The first half is ready in the middle of the last backward of 2 s and takes its last second.
    assert two_replicas(halves(0.5, 1.0), {}, False).step_seconds == pytest.approx(12 + 1 + 0.5)
    # Ready later, both follow the backward in part.
    assert two_replicas(halves(0.75, 1.0), {}, False).step_seconds == pytest.approx(12 + 1.5 + 0.5)


def test_parameters_are_gathered_under_the_first_forward() -> None:
    late = two_replicas({}, halves(0.0, 0.5), False)
    assert late.step_seconds == pytest.approx(12 + 2 + 0.5 + 2)
    # The first forward needs the first half at once (there at 1 s) and the second in its middle (there at 2 s).
    hidden = two_replicas({}, halves(0.0, 0.5), True)
    assert hidden.step_seconds == pytest.approx(12 + 1.5 + 2 + 0.5)
    kinds = {action.kind for _, action, _, _ in hidden.records}
    assert kinds == {ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.REDUCE, ActionKind.OPTIMIZER}
    assert [what for what, _, _ in hidden.transfers] == ["G0", "G0", "R0"]


def test_the_trace_tells_when_ranks_wait() -> None:
    pipeline = Pipeline(2, (Stage((0,), 0, 1), Stage((1,), 1, 1)))
    schedule = make_schedule((pipeline,), (), (), ScheduleChoice("1f1b"))
    compute = {(kind, 0, s): float(seconds) for s in range(2) for kind, seconds in SECONDS.items()}
    prices = Prices(compute, {(0, 1): Traffic(0.5), (1, 0): Traffic(0.5)}, (), {0: 0.0, 1: 0.0})
    timeline = simulate(schedule, (), prices, trace=True)
    found = {(rank, str(action)): (start, end) for rank, action, start, end in timeline.records}
    assert found[1, "RA0.1.0@0"] == (0.0, 1.5)
    assert found[1, "B0.1.0"] == (2.5, 4.5)
    assert ("0>1 F0.1.0", 1.0, 1.5) in timeline.transfers
    assert timeline.busy_seconds == {0: 6.0, 1: 6.0}


def test_a_schedule_that_cannot_run_is_an_error() -> None:
    pipeline = Pipeline(2, (Stage((0,), 0, 1), Stage((1,), 1, 1)))
    schedule = make_schedule((pipeline,), (), (), ScheduleChoice("1f1b"))
    lost = Schedule("1f1b", {**schedule.actions, 0: schedule.actions[0][:1]})
    compute = {(kind, 0, s): 1.0 for s in range(2) for kind in SECONDS}
    with pytest.raises(ValueError, match="rank 1 waits for ever at RA0.1.0@0"):
        simulate(lost, (), Prices(compute, {}, (), {0: 0.0, 1: 0.0}))


@pytest.mark.parametrize("busy", [{}, {("node/0", "out ib"): 0.5}])
def test_a_blocking_send_holds_its_rank_until_it_has_moved(busy: dict[tuple[str, str], float]) -> None:
    """A rank computes for a second, sends for half a second, and computes again; the latency is the receiver's."""
    forwards = [Action(ActionKind.FORWARD, 0, 0, microbatch) for microbatch in range(2)]
    schedule = Schedule("1f1b", {
        0: (forwards[0], Action(ActionKind.SEND_ACTIVATION, 0, 0, 0, 1), forwards[1]),
        1: (Action(ActionKind.RECEIVE_ACTIVATION, 0, 1, 0, 0), Action(ActionKind.FORWARD, 0, 1, 0))})
    compute = {(ActionKind.FORWARD, 0, 0): 1.0, (ActionKind.FORWARD, 0, 1): 0.125}
    messages = {(0, 1): Traffic(0.5, 0.25, busy)}
    ends = {}
    for blocking in (False, True):
        prices = Prices(compute, messages, (), {0: 0.0, 1: 0.0}, blocking_sends=blocking)
        records = simulate(schedule, (), prices, trace=True).records
        ends[blocking] = [max(end for rank, _, _, end in records if rank == each) for each in (0, 1)]
    assert ends == {False: [2.0, 1.875], True: [2.5, 1.875]}
