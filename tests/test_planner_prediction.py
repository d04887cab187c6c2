"""Predictions of whole layouts: ranks folded together, what is overlapped, speed."""

import dataclasses
from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import Machine, read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.planner.cost.network import NetworkCost
from holmes_hpc.planner.cost.rank_memory import memory_gib_per_rank
from holmes_hpc.planner.layout.groups import GroupRules, find_groups
from holmes_hpc.planner.layout.layout import Layout
from holmes_hpc.planner.layout.pipelines import build_pipelines, overlaps
from holmes_hpc.planner.simulation.buckets import Buckets
from holmes_hpc.planner.simulation.events import simulate
from holmes_hpc.planner.simulation.predict import predict
from holmes_hpc.planner.simulation.prices import compute_cost, price
from holmes_hpc.planner.task import PlanSettings, Task
from holmes_hpc.schedule.building import make_schedule
from holmes_hpc.schedule.in_flight import peak_in_flight
from holmes_hpc.values import ActionKind, Pipeline, ScheduleChoice
from tests.fuzzing import examples


@dataclass(frozen=True)
class Exchange:
    sharded: bool = True
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    bucket_mib: float = 64.0


def mixed_layout(nodes: int, tensor: int, *, depth: int = 2, chunks: int = 1, batch: int = 32,
                 model: str = "gpt_3_6b") -> tuple[Task, Layout]:
    """Return a layout over InfiniBand and RoCE nodes of 8 GPUs, whole nodes to every stage, the fabrics halves."""
    config = compose(["+cluster=mixed", f"model={model}", "train.precision=bfloat16",
                      f"train.global_batch_size={batch}",
                      *(f"cluster.partitions.{name}.{key}" for name in ("ib", "roce")
                        for key in (f"nodes={nodes // 2}", "gpus_per_node=8"))])
    cluster = read_cluster(config.cluster)
    task = Task(PlanSettings.from_config(config), Architecture.from_config(config.model), cluster,
                Machine.described(cluster))
    width = cluster.world_size // depth
    stages = [[tuple(range(s * width + k, s * width + k + tensor)) for k in range(0, width, tensor)]
              for s in range(depth)] * chunks
    share, rest = divmod(task.architecture.num_layers, depth * chunks)
    pipelines = build_pipelines(stages, [share + (s < rest) for s in range(depth * chunks)], batch)
    return task, layout_of(task, pipelines)


def layout_of(task: Task, pipelines: tuple[Pipeline, ...], overlap: Exchange | None = None) -> Layout:
    """Return the layout of pipelines whose owners share the optimizer's state, if `overlap` says so."""
    groups, reductions = find_groups(task.architecture, task.cluster, pipelines, GroupRules(),
                                     sharded=overlap is not None and overlap.sharded)
    return Layout(pipelines, groups, reductions, 1, overlap)


CASES = {
    "1f1b": (4, 1, 1, ScheduleChoice("1f1b", 1)),
    "tensor": (4, 4, 1, ScheduleChoice("1f1b")),
    "zero bubble": (4, 2, 1, ScheduleChoice("zero_bubble", 1)),
    "chunks": (4, 8, 2, ScheduleChoice("interleaved", chunks=2)),
    "turns": (4, 2, 1, ScheduleChoice("1f1b", 1, turns=True)),
}


@pytest.mark.parametrize("name", CASES)
def test_folding_changes_no_prediction(name: str) -> None:
    nodes, tensor, chunks, choice = CASES[name]
    task, layout = mixed_layout(nodes, tensor, chunks=chunks)
    schedule = make_schedule(layout.pipelines, layout.groups, layout.reductions, choice)
    whole = simulate(schedule, layout.reductions, price(task, layout))
    predicted = predict(task, layout, choice)
    assert predicted.step_seconds == pytest.approx(whole.step_seconds, rel=0.01)
    busy = sum(whole.busy_seconds.values()) / task.cluster.world_size
    assert predicted.idle_fraction == pytest.approx(1 - busy / predicted.step_seconds, abs=0.01)
    memory = memory_gib_per_rank(compute_cost(task), task.cluster, layout.pipelines, 1, peak_in_flight(schedule))
    assert predicted.memory_gib_per_rank == pytest.approx(memory)


@examples(8)
@given(ib=st.integers(1, 3), roce=st.integers(1, 3), gpus=st.sampled_from([1, 2, 4]), deep=st.integers(1, 2),
       name=st.sampled_from(["1f1b", "zero_bubble", "gpipe"]), extra=st.integers(0, 1), turns=st.booleans(),
       overlapped=st.booleans(), batch=st.integers(12, 30))
def test_folding_unlike_pipelines_changes_little(ib: int, roce: int, gpus: int, deep: int, name: str, extra: int,
                                                 turns: bool, overlapped: bool, batch: int) -> None:
    """Fabrics of unequal size: ranks serve several pipelines, and some parts are alike."""
    config = compose(["+cluster=mixed", "model=gpt_3_6b", f"train.global_batch_size={batch}",
                      f"cluster.partitions.ib.nodes={ib}", f"cluster.partitions.roce.nodes={roce}",
                      *(f"cluster.partitions.{each}.gpus_per_node={gpus}" for each in ("ib", "roce"))])
    cluster = read_cluster(config.cluster)
    task = Task(PlanSettings.from_config(config), Architecture.from_config(config.model), cluster,
                Machine.described(cluster))
    fast = [(rank,) for rank in range(ib * gpus)]
    slow = [(rank,) for rank in range(ib * gpus, cluster.world_size)]
    stages = [*(fast[s::deep] for s in range(deep) if fast[s::deep]), slow]
    assume(len(overlaps([len(parts) for parts in stages])) <= batch)
    pipelines = build_pipelines(stages, [30 // len(stages)] * len(stages), batch)
    layout = layout_of(task, pipelines, Exchange() if overlapped else None)
    choice = ScheduleChoice(name, extra, turns=turns)
    whole = simulate(make_schedule(pipelines, layout.groups, layout.reductions, choice), layout.reductions,
                     price(task, layout))
    assert predict(task, layout, choice).step_seconds == pytest.approx(whole.step_seconds, rel=0.02)


def test_what_is_overlapped_is_hidden() -> None:
    task, layout = mixed_layout(4, 1)
    choice = ScheduleChoice("1f1b", 1)

    def seconds(**changes: bool) -> float:
        overlap = dataclasses.replace(Exchange(), **changes)
        return predict(task, layout_of(task, layout.pipelines, overlap), choice).step_seconds

    alone = seconds(sharded=False, overlap_grad_reduce=False, overlap_param_gather=False)
    assert alone == pytest.approx(predict(task, layout, choice).step_seconds, rel=0.01)
    assert seconds(sharded=False, overlap_param_gather=False) < alone
    # What sharding does to the sum it takes back in the gather; the optimizer's own time is less.
    neither = seconds(overlap_grad_reduce=False, overlap_param_gather=False)
    assert 0.8 * alone < neither < alone
    reduced, gathered = seconds(overlap_param_gather=False), seconds(overlap_grad_reduce=False)
    assert seconds() < min(reduced, gathered) < max(reduced, gathered) < neither


def test_buckets_divide_traffic_and_follow_the_backward() -> None:
    task, layout = mixed_layout(4, 1, depth=1)
    layout = layout_of(task, layout.pipelines, Exchange())
    made = Buckets(task.architecture, layout.pipelines, layout.groups, NetworkCost(task.machine), Exchange(), 2, 4)
    reduction = max(layout.reductions, key=lambda each: len(each.owns))
    buckets = made.reduced(reduction)
    assert len(buckets) == 34
    whole = NetworkCost(task.machine).summed(reduction, layout.groups, 4 * task.architecture.parameter_count())
    assert sum(bucket.traffic.seconds for bucket in buckets) == pytest.approx(whole.seconds, rel=0.01)
    ready = [bucket.stages[0, 0] for bucket in buckets]
    assert ready == sorted(ready)
    assert 0 < ready[0] < 0.1 and ready[-1] == 1.0
    needed = [bucket.stages[0, 0] for bucket in made.gathered(reduction)]
    assert needed == sorted(needed)
    assert needed[0] == 0.0 and needed[-1] > 0.9


def test_the_weight_part_is_a_part_of_the_backward() -> None:
    task, layout = mixed_layout(4, 2)
    prices = price(task, layout)
    for s in range(2):
        parts = [prices.compute[kind, 0, s] for kind in (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)]
        assert sum(parts) == pytest.approx(prices.compute[ActionKind.BACKWARD, 0, s])
        # The attention core and the tensor-parallel sums have no weights.
        assert 0.5 * parts[0] < parts[1] < parts[0]


def test_1024_ranks_are_folded_to_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """What that takes says benchmarks/simulator.py."""
    task, layout = mixed_layout(128, 8, depth=8, batch=512, model="gpt_39_1b")
    assert task.cluster.world_size == 1024
    simulated = set()

    def make(pipelines, *rest):
        simulated.update(rank for pipeline in pipelines for stage in pipeline.stages for rank in stage.ranks)
        return make_schedule(pipelines, *rest)

    monkeypatch.setattr("holmes_hpc.planner.simulation.predict.make_schedule", make)
    predicted = predict(task, layout_of(task, layout.pipelines, Exchange()), ScheduleChoice("1f1b", 1))
    assert 0 < len(simulated) <= 64
    assert predicted.step_seconds > 0 and len(predicted.memory_gib_per_rank) == 1024
