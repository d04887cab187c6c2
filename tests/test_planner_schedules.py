"""Schedules: the textbook's order, validity for any plan, what the validator sees."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.layout.pipelines import build_pipelines
from holmes_hpc.schedule.building import make_schedule, schedule_digest, transfers
from holmes_hpc.schedule.in_flight import peak_in_flight
from holmes_hpc.values import (
    Action,
    ActionKind,
    Group,
    Level,
    Operation,
    Pipeline,
    Reduction,
    Schedule,
    ScheduleChoice,
    Stage,
)
from tests.fuzzing import examples
from tests.schedule_rules import schedule_problems


def alike(depth: int, microbatches: int, width: int = 1) -> tuple[Pipeline, ...]:
    stages = [[(s * width + k,) for k in range(width)] for s in range(depth)]
    return build_pipelines(stages, [1] * depth, microbatches * width)


def textbook(depth: int, microbatches: int, rank: int, extra: int = 0) -> list[str]:
    """1F1B as the papers draw it: warm-up forwards, pairs of one forward and one backward, the backwards left."""
    warmup = min(microbatches, depth - rank - 1 + extra)
    order = [f"F{i}" for i in range(warmup)]
    for i in range(microbatches - warmup):
        order += [f"F{warmup + i}", f"B{i}"]
    return order + [f"B{i}" for i in range(microbatches - warmup, microbatches)]


def compute_of(schedule: Schedule, rank: int) -> list[str]:
    return [f"{a.kind.value}{a.microbatch}" for a in schedule.actions[rank]
            if a.kind in (ActionKind.FORWARD, ActionKind.BACKWARD)]


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 5, 8, 16, 31])
def test_alike_pipelines_run_the_textbook_1f1b(depth: int, microbatches: int) -> None:
    schedule = make_schedule(alike(depth, microbatches), (), (), ScheduleChoice("1f1b"))
    for rank in range(depth):
        assert compute_of(schedule, rank) == textbook(depth, microbatches, rank)


@pytest.mark.parametrize("extra", [1, 2, 3, 5])
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_extra_warmup_upstream_of_the_slow_hop_only(extra: int, cut: int) -> None:
    groups = (Group("pipeline", (cut, cut + 1), "ethernet"), Group("pipeline", (0, 3), "local"))
    schedule = make_schedule(alike(4, 16), groups, (), ScheduleChoice("1f1b", warmup_extra=extra))
    for rank in range(4):
        assert compute_of(schedule, rank) == textbook(4, 16, rank, extra if rank <= cut else 0)


def megatron_interleaved(ranks: int, chunks: int, microbatches: int, rank: int) -> list[str]:
    """The order of Megatron-LM, written from its description: micro-batches go in groups as large as the pipeline.

    Within a group every chunk runs the whole group before the next chunk does; backwards visit the chunks the other
    way round. A rank warms up until the first backward can reach it.
    """
    forwards, backwards = [], []
    for group in range(0, microbatches, ranks):
        for chunk in range(chunks):
            for microbatch in range(group, group + ranks):
                forwards.append(f"F{chunk * ranks + rank}.{microbatch}")
                backwards.append(f"B{(chunks - 1 - chunk) * ranks + rank}.{microbatch}")
    warmup = min(len(forwards), (ranks - rank - 1) * 2 + (chunks - 1) * ranks)
    order = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - warmup:]


def in_chunks(ranks: int, chunks: int, microbatches: int, width: int = 1) -> tuple[Pipeline, ...]:
    stages = [[(s * width + k,) for k in range(width)] for s in range(ranks)] * chunks
    return build_pipelines(stages, [1] * (ranks * chunks), microbatches * width)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize("groups", [1, 2, 3, 5])
def test_pipelines_in_chunks_run_megatrons_interleaved_order(ranks: int, chunks: int, groups: int) -> None:
    pipelines = in_chunks(ranks, chunks, groups * ranks, width=2)
    schedule = make_schedule(pipelines, (), (), ScheduleChoice("interleaved", chunks=chunks))
    assert schedule_problems(pipelines, (), schedule) == []
    for rank in range(ranks):
        for k in range(2):
            found = [f"{a.kind.value}{a.stage}.{a.microbatch}" for a in schedule.actions[rank * 2 + k]
                     if a.kind in (ActionKind.FORWARD, ActionKind.BACKWARD)]
            assert found == megatron_interleaved(ranks, chunks, groups * ranks, rank)


@pytest.mark.parametrize("microbatches", [1, 2, 3, 5, 7, 9])
def test_chunks_with_any_number_of_microbatches(microbatches: int) -> None:
    pipelines = in_chunks(4, 2, microbatches)
    schedule = make_schedule(pipelines, (), (), ScheduleChoice("interleaved", chunks=2))
    assert schedule_problems(pipelines, (), schedule) == []


def test_zero_bubble_splits_every_backward_in_the_memory_of_1f1b() -> None:
    pipelines = alike(4, 12)
    schedule = make_schedule(pipelines, (), (), ScheduleChoice("zero_bubble"))
    assert schedule_problems(pipelines, (), schedule) == []
    kinds = [action.kind for action in schedule.actions[1]]
    assert kinds.count(ActionKind.BACKWARD_INPUT) == kinds.count(ActionKind.BACKWARD_WEIGHT) == 12
    assert ActionKind.BACKWARD not in kinds
    for (_, _, s), peak in peak_in_flight(schedule).items():
        assert peak <= 4 - s
    # The gradient leaves before the weight part of the same micro-batch.
    order = [str(action) for action in schedule.actions[1]]
    assert order.index("SG0.1.0@0") < order.index("W0.1.0")


def test_zero_bubble_follows_the_times_that_the_plan_carries() -> None:
    pipelines = alike(4, 12)
    slow_hop = ScheduleChoice("zero_bubble", hop_times=(((0, 0), (40, 20), (0, 0)),),
                               stage_times=(((10, 20, 10),) * 4,))
    first = make_schedule(pipelines, (), (), ScheduleChoice("zero_bubble"))
    second = make_schedule(pipelines, (), (), slow_hop)
    assert schedule_problems(pipelines, (), second) == []
    assert first.digest() != second.digest()


def test_warmup_by_hop() -> None:
    choice = ScheduleChoice("1f1b", 2, hop_warmups=((0, 2, 1),))
    schedule = make_schedule(alike(4, 16), (), (), choice)
    for rank, extra in enumerate((3, 3, 1, 0)):
        assert compute_of(schedule, rank) == textbook(4, 16, rank, extra)


def crossing(width: int, slow: int = 0) -> tuple[tuple[Pipeline, ...], tuple[Group, ...]]:
    pipelines = alike(2, 4, width)
    edges = [Group("pipeline", (k, width + k), "ethernet") for k in range(width)]
    return pipelines, (*edges, Group("turn", tuple(range(width, 2 * width)), "local"))


def test_turns_are_taken_at_the_first_crossing() -> None:
    pipelines, groups = crossing(3)
    schedule = make_schedule(pipelines, groups, (), ScheduleChoice("1f1b", turns=True))
    assert schedule_problems(pipelines, (), schedule) == []
    starts = [[str(action) for action in schedule.actions[rank][:4]] for rank in (3, 4, 5)]
    assert starts == [
        ["RA0.1.0@0", "PT0.1.0@4", "F0.1.0", "B0.1.0"],
        ["TT1.1.0@3", "RA1.1.0@1", "PT1.1.0@5", "F1.1.0"],
        ["TT2.1.0@4", "RA2.1.0@2", "F2.1.0", "B2.1.0"]]
    without = make_schedule(pipelines, groups, (), ScheduleChoice("1f1b"))
    assert {a.kind for each in without.actions.values() for a in each}.isdisjoint(
        {ActionKind.TAKE_TURN, ActionKind.PASS_TURN})
    lost = broken(schedule, 3, [a for a in schedule.actions[3] if a.kind is not ActionKind.PASS_TURN])
    assert any("waits for ever at TT1.1.0@3" in problem for problem in schedule_problems(pipelines, (), lost))


def test_gpipe_runs_all_forwards_first() -> None:
    schedule = make_schedule(alike(3, 4), (), (), ScheduleChoice("gpipe"))
    for rank in range(3):
        assert compute_of(schedule, rank) == [*(f"F{i}" for i in range(4)), *(f"B{i}" for i in range(4))]


def test_action_list_of_a_middle_rank() -> None:
    reductions = (Reduction(("head",), (2,)), Reduction(("layers.1",), (1, 9)))
    schedule = make_schedule(alike(3, 2), (), reductions, ScheduleChoice("1f1b"))
    assert [str(action) for action in schedule.actions[1]] == [
        "RA0.1.0@0", "F0.1.0", "SA0.1.0@2", "RA0.1.1@0", "F0.1.1", "SA0.1.1@2",
        "RG0.1.0@2", "B0.1.0", "SG0.1.0@0", "RG0.1.1@2", "B0.1.1", "SG0.1.1@0", "R1", "O"]


def test_stages_on_one_rank_need_no_transfer() -> None:
    pipeline = Pipeline(2, (Stage((0,), 0, 1), Stage((0,), 1, 1)))
    schedule = make_schedule((pipeline,), (), (), ScheduleChoice("1f1b"))
    kinds = {action.kind for action in schedule.actions[0]}
    assert kinds == {ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.OPTIMIZER}
    assert schedule_problems((pipeline,), (), schedule) == []


def test_transfers_pair_equal_stages_and_spread_unequal_ones() -> None:
    assert transfers((0, 1), (2, 3)) == ((0, 2), (1, 3))
    assert transfers((0, 1), (2, 3, 4, 5)) == ((0, 2), (0, 3), (1, 4), (1, 5))
    assert transfers((0, 1, 2, 3), (4, 5)) == ((0, 4), (2, 5))
    assert transfers((0, 1), (0, 1)) == ()


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Pipeline, ...]:
    """Pipelines over stages of unequal width and tensor degree, or freely written ones that reuse ranks."""
    if draw(st.booleans()):
        widths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
        tensor = draw(st.integers(1, 2))
        stages, rank = [], 0
        for width in widths:
            stages.append([tuple(range(rank + k * tensor, rank + (k + 1) * tensor)) for k in range(width)])
            rank += width * tensor
        ways = len({i * 60 // width for width in widths for i in range(width)})
        return build_pipelines(stages, [1] * len(widths), ways + draw(st.integers(0, 12)))
    world = draw(st.integers(1, 5))
    pipelines = []
    for _ in range(draw(st.integers(1, 3))):
        groups = st.lists(st.integers(0, world - 1), min_size=1, max_size=min(2, world), unique=True)
        ranks = draw(st.lists(groups, min_size=1, max_size=5))
        stages = tuple(Stage(tuple(group), s, 1) for s, group in enumerate(ranks))
        pipelines.append(Pipeline(draw(st.integers(1, 6)), stages))
    return tuple(pipelines)


@examples(100)
@given(layouts(), st.sampled_from(["1f1b", "gpipe", "zero_bubble", "interleaved"]), st.integers(0, 3), st.booleans(),
       st.data())
def test_every_layout_gets_a_schedule_that_runs(pipelines: tuple[Pipeline, ...], name: str, extra: int, turns: bool,
                                                data: st.DataObject) -> None:
    groups = tuple(
        Group("pipeline", tuple(sorted({*p.stages[s].ranks, *p.stages[s + 1].ranks})), ("ethernet", "ib")[s % 2])
        for p in pipelines for s in range(len(p.stages) - 1))
    owners = tuple(sorted({rank for p in pipelines for stage in p.stages for rank in stage.ranks}))
    reductions = (Reduction(("layers.0",), owners),)
    receivers = dict.fromkeys(stage.ranks[0] for p in pipelines for stage in p.stages[1:])
    groups += (Group("turn", tuple(receivers), "local"),)
    times: tuple[tuple[tuple[int, ...], ...], ...] = ()
    if data.draw(st.booleans()):
        time = st.tuples(st.integers(1, 9), st.integers(10, 20), st.integers(1, 9))
        times = tuple(tuple(data.draw(time) for _ in p.stages) for p in pipelines)
    choice = ScheduleChoice(name, extra, chunks=2 if name == "interleaved" else 1, turns=turns, stage_times=times)
    schedule = make_schedule(pipelines, groups, reductions, choice)
    assert schedule_problems(pipelines, reductions, schedule) == []
    if name in ("1f1b", "zero_bubble"):
        for (_, p, s), peak in peak_in_flight(schedule).items():
            assert peak <= len(pipelines[p].stages) - s + extra * len(pipelines[p].stages)
    assert schedule.digest() == make_schedule(pipelines, groups, reductions, choice).digest()


def test_peak_in_flight_of_1f1b_and_gpipe() -> None:
    pipelines = alike(4, 8)
    peaks = peak_in_flight(make_schedule(pipelines, (), (), ScheduleChoice("1f1b")))
    assert peaks == {(rank, 0, rank): 4 - rank for rank in range(4)}
    peaks = peak_in_flight(make_schedule(pipelines, (), (), ScheduleChoice("gpipe")))
    assert peaks == {(rank, 0, rank): 8 for rank in range(4)}


def test_a_digest_of_pipelines_that_are_alike_still_tells_them_apart() -> None:
    """One of the alike is looked at; a count, an order or a reduction of any other one is another digest."""
    def pipeline(first: int, microbatches: int = 6) -> Pipeline:
        return Pipeline(microbatches, (Stage((first, first + 1), 0, 2), Stage((first + 2, first + 3), 2, 2)))

    equal, rest = (pipeline(0), pipeline(4), pipeline(8)), (pipeline(0), pipeline(4), pipeline(8, 7))
    times = ((3, 20, 9), (3, 20, 9))
    choices = [ScheduleChoice("zero_bubble", stage_times=(times, times, last))
               for last in (times, ((9, 60, 2), (3, 20, 9)))]
    sums = (Reduction(("layers.0",), tuple(range(12)), (Level((0,), Operation.ALL_REDUCE),)),)
    digests = [schedule_digest(equal, (), (), choices[0]), schedule_digest(rest, (), (), choices[0]),
               schedule_digest(equal, (), (), choices[1]), schedule_digest(equal, (), sums, choices[0]),
               schedule_digest(equal, (), (), ScheduleChoice("1f1b")),
               schedule_digest(equal, (Group("pipeline", (8, 9, 10, 11), "ethernet"),), (), ScheduleChoice("1f1b", 1))]
    assert len(set(digests)) == len(digests)
    assert schedule_digest(equal, (), (), choices[0]) == digests[0]


def broken(schedule: Schedule, rank: int, actions: list[Action]) -> Schedule:
    return dataclasses.replace(schedule, actions={**schedule.actions, rank: tuple(actions)})


def test_the_validator_sees_what_is_wrong() -> None:
    pipelines = alike(2, 3)
    good = make_schedule(pipelines, (), (), ScheduleChoice("1f1b"))
    first = list(good.actions[0])
    assert any("never runs F0.0.1" in p for p in schedule_problems(
        pipelines, (), broken(good, 0, [a for a in first if str(a) != "F0.0.1"])))
    assert any("2 times" in p for p in schedule_problems(pipelines, (), broken(good, 0, [first[0], *first])))
    assert any("waits for ever" in p for p in schedule_problems(
        pipelines, (), broken(good, 0, [a for a in first if a.kind is not ActionKind.SEND_ACTIVATION])))
    assert any("never received" in p for p in schedule_problems(
        pipelines, (), broken(good, 0, [a for a in first if a.kind is not ActionKind.RECEIVE_GRADIENT])))
    assert any("optimizer" in p for p in schedule_problems(pipelines, (), broken(good, 0, first[:-1])))
    swapped = [*first[:-3], first[-2], first[-3], first[-1]]
    assert schedule_problems(pipelines, (), broken(good, 0, swapped))


def test_tensor_ranks_that_meet_in_another_order_wait_for_ever() -> None:
    pipelines = build_pipelines([[(0, 1)]], [1], 3)
    good = make_schedule(pipelines, (), (), ScheduleChoice("gpipe"))
    assert schedule_problems(pipelines, (), good) == []
    first = list(good.actions[0])
    turned = broken(good, 0, [first[1], first[0], *first[2:]])
    assert any("rank 1 waits for ever at F0.0.0" in problem for problem in schedule_problems(pipelines, (), turned))


def test_transfers_between_stages_that_share_ranks() -> None:
    assert transfers((0, 1), (1,)) == (), "with unlike degrees every rank has all of the activation"
    assert transfers((0,), (0, 1)) == ((0, 1),)
    assert transfers((0, 1), (1, 0)) == ((0, 1), (1, 0)), "the shards of equal degrees change places"
    pipelines = (Pipeline(3, (Stage((0, 1), 0, 1), Stage((1,), 1, 1), Stage((1, 2), 2, 1), Stage((2, 1), 3, 1))),)
    schedule = make_schedule(pipelines, (), (), ScheduleChoice("1f1b"))
    assert schedule_problems(pipelines, (), schedule) == []


def test_a_rank_that_serves_three_pipelines_takes_turns() -> None:
    pipelines = build_pipelines([[(r,) for r in range(6)], [(6,), (7,)]], [2, 1], 18)
    schedule = make_schedule(pipelines, (), (), ScheduleChoice("1f1b"))
    forwards = [a.pipeline for a in schedule.actions[6] if a.kind is ActionKind.FORWARD]
    assert sorted(forwards) == [0] * 3 + [1] * 3 + [2] * 3
    assert sorted(forwards[:3]) == [0, 1, 2]


@pytest.mark.parametrize("extra", range(4))
def test_turns_wait_for_tensor_ranks_that_serve_other_stages(extra: int) -> None:
    pipelines = (Pipeline(1, (Stage((0,), 0, 1), Stage((0, 1), 1, 1), Stage((0,), 2, 1))),
                 Pipeline(3, (Stage((1,), 0, 1), Stage((1,), 1, 1), Stage((0,), 2, 1))))
    groups = (Group("pipeline", (0, 1), "ethernet"), Group("turn", (0, 1), "local"))
    schedule = make_schedule(pipelines, groups, (), ScheduleChoice("1f1b", extra, turns=True))
    assert schedule_problems(pipelines, (), schedule) == []


def test_unknown_schedules_are_refused() -> None:
    with pytest.raises(PlanRefusedError, match="auto, gpipe, 1f1b, interleaved or zero_bubble"):
        make_schedule(alike(2, 2), (), (), ScheduleChoice("dualpipe"))
    with pytest.raises(PlanRefusedError, match="parallel.chunks=1"):
        make_schedule(alike(2, 2), (), (), ScheduleChoice("1f1b", chunks=2))


def test_64_ranks_with_64_microbatches() -> None:
    """What that takes says benchmarks/planner_parts.py."""
    for pipelines in (alike(64, 64), alike(8, 64, 8)):
        schedule = make_schedule(pipelines, (), (), ScheduleChoice("1f1b"))
        stages = sum(len(pipeline.stages) for pipeline in pipelines)
        kinds = Counter(action.kind for actions in schedule.actions.values() for action in actions)
        assert kinds[ActionKind.FORWARD] == kinds[ActionKind.BACKWARD] == 64 * stages
