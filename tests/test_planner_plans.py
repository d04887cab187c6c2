"""Whole plans: strategies on clusters of all shapes, groups and reductions, refusals."""

import dataclasses
import functools
import io
import os
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError, PlanRefusedError
from holmes_hpc.planner import bind, plan, render
from holmes_hpc.planner.search import candidate
from holmes_hpc.planner.simulation.predict import predict
from holmes_hpc.schedule import build_schedule, plan_digest
from holmes_hpc.values import Operation, Plan
from holmes_hpc.values.capabilities import ENGINE, unsupported
from holmes_hpc.values.owned import Owned
from tests.fuzzing import examples
from tests.schedule_rules import schedule_problems

MIXED = "+cluster=mixed"
FINE = Fraction(1, 12)
"""A slice that every tensor degree of these tests is made of."""


@functools.cache  # many ask for the same one
def make(*overrides: str, mode: str | None = None) -> Plan:
    return plan(compose(list(overrides)), mode)


def inner_and_outer(reduction):
    """Return the groups that sum inside themselves first, and those that join them."""
    first = reduction.copies or (reduction.levels[0].groups if reduction.levels else ())
    return first, next((level.groups for level in reduction.levels if level.operation is Operation.ALL_REDUCE
                        and level.groups != first), ())


def sums_parts(reduction):
    return reduction.divides or any(level.operation is Operation.BROADCAST for level in reduction.levels)


def nodes(ib: int, roce: int, gpus: int = 2) -> list[str]:
    return [MIXED, f"cluster.partitions.ib.nodes={ib}", f"cluster.partitions.roce.nodes={roce}",
            f"cluster.partitions.ib.gpus_per_node={gpus}", f"cluster.partitions.roce.gpus_per_node={gpus}"]


def check(made: Plan, overrides: list[str]) -> None:
    """What must hold for every plan."""
    config = compose(overrides)
    cluster = read_cluster(config.cluster)
    architecture = Architecture.from_config(config.model)
    assert Plan.from_json(made.to_json()) == made
    for pipeline in made.pipelines:
        held = [layer for stage in pipeline.stages
                for layer in range(stage.first_layer, stage.first_layer + stage.num_layers)]
        assert held == list(range(architecture.num_layers))
    assert sum(p.microbatches for p in made.pipelines) * made.micro_batch_size == made.global_batch_size
    assert {r for p in made.pipelines for s in p.stages for r in s.ranks} == set(range(made.world_size))
    schedule = build_schedule(made)
    assert plan_digest(made) == made.schedule.digest
    assert schedule_problems(made.pipelines, made.reductions, schedule) == []
    assert made.groups[0].kind == "world"
    assert made.groups[0].ranks == tuple(range(made.world_size))
    assert len(set(made.groups)) == len(made.groups)
    check_ownership(made, architecture)
    for reduction in made.reductions:
        inner, outer = inner_and_outer(reduction)
        members = [rank for i in inner for rank in made.groups[i].ranks]
        assert sorted(members) == (list(reduction.owners) if len(reduction.owners) > 1 else [])
        if outer and sums_parts(reduction):
            ranks = [made.groups[i].ranks for i in inner]
            assert [made.groups[i].ranks for i in outer] == list(zip(*ranks, strict=False))
    if made.strategy == "holmes":
        for group in made.groups:
            fabrics = {cluster.node_of(rank).fabric for rank in group.ranks}
            assert group.network == cluster.shared_network(group.ranks)
            if group.kind == "data":
                assert len(fabrics) == 1
            if group.kind == "tensor":
                assert group.network == "local"


def check_ownership(made: Plan, architecture: Architecture) -> None:
    """Every rank's every parameter is reduced exactly once, by all ranks that hold the same part of it."""
    if all(len(stage.ranks) == 1 for pipeline in made.pipelines for stage in pipeline.stages):
        assert Counter(unit for r in made.reductions for unit in r.owns) == Counter(architecture.units)
    found: Counter[tuple[int, str, Fraction]] = Counter()
    for reduction in made.reductions:
        for owned in map(Owned.parse, reduction.owns):
            points = [FINE * k for k in range(FINE.denominator)
                      if not owned.of or Fraction(owned.begin, owned.of) <= FINE * k < Fraction(owned.end, owned.of)]
            for info in architecture.unit_parameters(owned.unit):
                if owned.of and info.split_dim is None or owned.replicated and info.split_dim is not None:
                    continue
                found.update((rank, info.name, point) for rank in reduction.owners for point in points)
    expected: Counter[tuple[int, str, Fraction]] = Counter()
    for rank in range(made.world_size):
        held = {}
        for p, s in made.stages_of(rank):
            stages = made.pipelines[p].stages
            stage = stages[s]
            share = Fraction(1, len(stage.ranks))
            begin = stage.ranks.index(rank) * share
            for info in architecture.stage_parameters(stage.first_layer, stage.num_layers, first=s == 0,
                                                      last=s == len(stages) - 1):
                held[info.name] = (begin, begin + share) if info.split_dim is not None else (Fraction(0), Fraction(1))
        expected.update((rank, name, FINE * k) for name, (begin, end) in held.items()
                        for k in range(FINE.denominator) if begin <= FINE * k < end)
    assert found == expected


CASES = {
    "mixed": [MIXED],
    "mixed-holmes-2": [MIXED, "parallel=holmes", "parallel.pipeline=2"],
    "mixed-holmes-8": [MIXED, "parallel=holmes", "parallel.pipeline=8", "model.num_layers=8"],
    "mixed-alternate": [MIXED, "parallel=holmes", "cluster.order=alternate"],
    "mixed-megatron": [MIXED, "parallel=megatron", "parallel.pipeline=2"],
    "mixed-megatron-tensor": [MIXED, "parallel=megatron", "parallel.pipeline=2", "parallel.tensor=2"],
    "mixed-holmes-tensor": [MIXED, "parallel=holmes", "parallel.tensor=2"],
    "mixed-tensor-sequence": [MIXED, "parallel=holmes", "parallel.tensor=2", "parallel.sequence_parallel=true",
                              "parallel.recompute=selective", "model.tied_embeddings=false"],
    "unlike-tensor-degrees": [
        *nodes(1, 1, 6), "parallel=manual", "model.num_layers=3", "model.num_heads=6", "model.hidden_size=96",
        "model.vocab_size=258", "train.global_batch_size=24", "parallel.micro_batch_size=1",
        "parallel.pipelines=[{microbatches: 8, stages: [{ranks: [0, 1], layers: 1}, {ranks: [2, 3, 4], layers: 2}]},"
        "{microbatches: 8, stages: [{ranks: [5], layers: 1}, {ranks: [6, 7], layers: 1}, {ranks: [8, 9], layers: 1}]},"
        "{microbatches: 8, stages: [{ranks: [10, 11], layers: 3}]}]"],
    "untied": [MIXED, "parallel=holmes", "model.tied_embeddings=false"],
    "3-beside-1": [*nodes(3, 1), "parallel=holmes", "parallel.pipeline=2"],
    "5-beside-3": [*nodes(5, 3, 1), "parallel=holmes", "parallel.pipeline=2"],
    "3-beside-1-deep": [*nodes(3, 1, 1), "parallel=holmes", "parallel.pipeline=3"],
    "gpipe": [MIXED, "parallel=holmes", "parallel.schedule=gpipe"],
    "holmes-split": ["+cluster=mixed_gpus", "parallel=holmes", "parallel.layer_split=holmes", "model=gpt2_small",
                     "parallel.pipeline=2"],
    "list-split": [MIXED, "parallel=holmes", "parallel.pipeline=2", "parallel.layer_split=[3,1]"],
    "ib": ["+cluster=ib"],
    "ethernet": ["+cluster=ethernet"],
    "one-node": ["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=4"],
    "three-fabrics": [MIXED, "+cluster.partitions={ib2: {nodes: 1, gpus_per_node: 2, gpu: a100-80g, nic: hdr200}}",
                      "parallel=holmes"],
    "interleaved": [MIXED, "parallel=holmes", "parallel.chunks=2", "model.num_layers=6"],
    "interleaved-3-beside-1": [*nodes(3, 1, 1), "parallel=holmes", "parallel.chunks=2"],
    "interleaved-megatron": [MIXED, "parallel=megatron", "parallel.chunks=2", "parallel.pipeline=2",
                             "parallel.schedule=interleaved"],
    "zero-bubble": [MIXED, "parallel=holmes", "parallel.schedule=zero_bubble"],
    "zero-bubble-3-beside-1": [*nodes(3, 1, 1), "parallel=holmes", "parallel.schedule=zero_bubble"],
    "turns": [MIXED, "parallel=holmes", "parallel.turns=true"],
    "manual": [*nodes(1, 1, 1), "parallel=manual", "train.global_batch_size=16", "parallel.micro_batch_size=2",
               "parallel.pipelines=[{microbatches: 5, stages: [{ranks: [0], layers: 3}, {ranks: [1], layers: 1}]},"
               "{microbatches: 3, stages: [{ranks: [1], layers: 2}, {ranks: [0], layers: 2}]}]"],
}


@pytest.mark.parametrize("name", CASES)
def test_plans_hold_together(name: str) -> None:
    check(make(*CASES[name]), CASES[name])


@examples(4)
@given(ib=st.integers(1, 4), roce=st.integers(1, 4), gpus=st.integers(1, 2), layers=st.integers(2, 6),
       batch=st.integers(8, 40), strategy=st.sampled_from(["holmes", "megatron", "auto"]), tied=st.booleans())
def test_any_cluster_gets_a_sound_plan_or_a_reason(ib: int, roce: int, gpus: int, layers: int, batch: int,
                                                   strategy: str, tied: bool) -> None:
    overrides = [*nodes(ib, roce, gpus), f"parallel={strategy}", f"model.num_layers={layers}",
                 f"train.global_batch_size={batch}", f"model.tied_embeddings={str(tied).lower()}"]
    try:
        made = make(*overrides)
    except PlanRefusedError as refusal:
        assert "global_batch_size" in str(refusal) or "pipeline" in str(refusal)
        return
    check(made, overrides)
    assert make(*overrides) == made


def test_six_ranks_beside_two() -> None:
    made = make(*CASES["3-beside-1"])
    assert len(made.pipelines) == 6
    served = Counter(stage.ranks[0] for pipeline in made.pipelines for stage in pipeline.stages)
    assert [served[rank] for rank in range(8)] == [1] * 6 + [3] * 2
    fabric_of = {place.rank: place.fabric for place in made.ranks}
    layers = {fabric_of[stage.ranks[0]]: stage.num_layers for stage in made.pipelines[0].stages}
    assert layers["ib"] > layers["roce"], "the smaller fabric serves three pipelines and takes fewer layers"


def test_megatron_formulas_and_one_network() -> None:
    made = make(*CASES["mixed-megatron-tensor"])
    ranks = [[stage.ranks for stage in pipeline.stages] for pipeline in made.pipelines]
    assert ranks == [[(0, 1), (4, 5)], [(2, 3), (6, 7)]]
    assert {group.network for group in made.groups} == {"ethernet"}
    assert {g.network for g in make("+cluster=ib", "parallel=megatron").groups} == {"ib"}
    local = make("+cluster=uniform", "cluster.nodes=1", "parallel=megatron")
    assert {g.network for g in local.groups} == {"local"}


def test_megatron_reduces_a_tied_table_in_data_groups_and_then_in_pairs() -> None:
    made = make(MIXED, "parallel=megatron", "parallel.pipeline=2")
    table = next(r for r in made.reductions if r.owns == ("embedding.token",))
    assert not sums_parts(table)
    inner, outer = inner_and_outer(table)
    assert [made.groups[i].ranks for i in inner] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [(made.groups[i].kind, made.groups[i].ranks) for i in outer] == [
        ("embedding", (k, k + 4)) for k in range(4)]
    deep = make(MIXED, "parallel=megatron", "parallel.pipeline=8", "model.num_layers=8")
    table = next(r for r in deep.reductions if r.owns == ("embedding.token",))
    inner, outer = inner_and_outer(table)
    assert [(deep.groups[i].kind, deep.groups[i].ranks) for i in inner] == [("embedding", (0, 7))]
    assert outer == ()


def test_holmes_reduces_a_tied_table_in_two_levels() -> None:
    made = make(MIXED, "parallel=holmes", "parallel.pipeline=2")
    table = next(r for r in made.reductions if r.owns == ("embedding.token",))
    assert sums_parts(table)
    inner, outer = inner_and_outer(table)
    assert [made.groups[i].network for i in inner] == ["ib", "roce"]
    assert [(made.groups[i].ranks, made.groups[i].network) for i in outer] == [
        ((k, k + 4), "ethernet") for k in range(4)]
    flat = make(MIXED, "parallel=holmes", "parallel.pipeline=2", "parallel.two_level=false")
    table = next(r for r in flat.reductions if r.owns == ("embedding.token",))
    inner, outer = inner_and_outer(table)
    assert [(flat.groups[i].ranks, flat.groups[i].network) for i in inner] == [(tuple(range(8)), "ethernet")]
    assert outer == ()


def test_untied_holmes_sends_no_gradient_over_ethernet() -> None:
    made = make(*CASES["untied"])
    reduced = {made.groups[i].network for r in made.reductions for i in r.groups}
    assert reduced == {"ib", "roce"}


def test_spread_stages_keep_their_hops_inside_nodes() -> None:
    made = make(MIXED, "parallel=holmes", "parallel.pipeline=4")
    networks = Counter((g.kind, g.network) for g in made.groups)
    assert networks["pipeline", "local"] == 4
    assert networks["pipeline", "ethernet"] == 2


def test_layer_split_holmes_gives_the_slower_gpus_fewer_layers() -> None:
    made = make(*CASES["holmes-split"])
    fabric_of = {place.rank: place.fabric for place in made.ranks}
    layers = {fabric_of[s.ranks[0]]: s.num_layers for s in made.pipelines[0].stages}
    assert layers["ib"] > layers["roce"]


@pytest.mark.parametrize("strategy", ["auto", "holmes", "megatron"])
@pytest.mark.parametrize(("split", "layers"), [("uniform", (4, 4)), ("[1,7]", (1, 7)), ("[6,2]", (6, 2))])
def test_an_asked_layer_split_is_what_the_plan_has(strategy: str, split: str, layers: tuple[int, int]) -> None:
    made = make(MIXED, f"parallel={strategy}", f"parallel.layer_split={split}", "model.num_layers=8",
                "parallel.pipeline=2")
    assert {tuple(stage.num_layers for stage in pipeline.stages) for pipeline in made.pipelines} == {layers}
    assert made.layer_split == (split if split == "uniform" else "+".join(map(str, layers)))


def test_strategies_that_cut_layers_themselves_refuse_a_split_or_stand_back() -> None:
    with pytest.raises(PlanRefusedError, match=r"flashflex.*Set parallel\.layer_split=adaptive, or parallel=holmes"):
        make(MIXED, "parallel=flashflex", "parallel.layer_split=uniform")
    made = make(MIXED, "parallel.layer_split=[1,3]")
    assert [stage.num_layers for stage in made.pipelines[0].stages] == [1, 3]


def test_holmes_is_predicted_to_beat_megatron_on_mixed_fabrics() -> None:
    same = ["parallel.pipeline=2", "parallel.layer_split=uniform", "parallel.micro_batch_size=2",
            "parallel.warmup_extra=0", "model.num_layers=8"]
    for mode in ("slurm", "emulated"):
        ours = make(MIXED, "parallel=holmes", *same, mode=mode)
        baseline = make(MIXED, "parallel=megatron", *same, mode=mode)
        assert ours.predicted.step_seconds < baseline.predicted.step_seconds


def test_order_of_equal_nodes_changes_no_prediction() -> None:
    for options in (["parallel.pipeline=2"], ["parallel.pipeline=4"], []):
        grouped = make(MIXED, "parallel=holmes", *options)
        alternate = make(MIXED, "parallel=holmes", "cluster.order=alternate", *options)
        assert alternate.predicted.step_seconds == pytest.approx(grouped.predicted.step_seconds, rel=1e-9)


def test_modes_price_different_machines() -> None:
    described, here = make(MIXED), make(MIXED, mode="emulated")
    assert described.predicted.machine == "described"
    assert here.predicted.machine == "emulated"
    assert {place.gpu for place in described.ranks} == {"a100-80g"}
    assert {place.gpu for place in here.ranks} == {"cpu"}
    assert here.predicted.step_seconds > described.predicted.step_seconds
    assert make(MIXED, "launch.mode=emulated") == here
    assert make(MIXED, "cluster.emulate.compute=timed", mode="emulated").predicted.machine == "described"


def test_emulated_step_takes_at_least_the_work_of_all_ranks_on_the_cores() -> None:
    made = make(MIXED, "parallel=holmes", "parallel.pipeline=2", mode="emulated")
    predicted = made.predicted
    assert predicted.idle_fraction is not None
    busy = (1 - predicted.idle_fraction) * predicted.step_seconds * made.world_size
    assert predicted.step_seconds >= busy / len(os.sched_getaffinity(0)) * 0.999


def test_auto_takes_the_best_and_keeps_the_others() -> None:
    made = make(MIXED)
    assert made.predicted.step_seconds <= make(MIXED, "parallel=holmes").predicted.step_seconds
    assert {"holmes", "flashflex"} <= {made.strategy, *(other.strategy for other in made.rejected)}
    assert 0 < len(made.rejected) <= 10
    assert "megatron" in {other.strategy for other in made.rejected}
    for other in made.rejected:
        assert other.reason
        assert other.predicted is None or other.predicted.step_seconds >= made.predicted.step_seconds


def test_extra_warmup_is_chosen_where_a_hop_is_slow_and_can_be_fixed() -> None:
    slow = [MIXED, "model=gpt_3_6b", "train.precision=float16", "parallel.pipeline=2", "train.global_batch_size=256",
            "parallel=holmes", "parallel.micro_batch_size=1", "parallel.schedule=1f1b"]
    chosen, strict = make(*slow), make(*slow, "parallel.warmup_extra=0")
    assert chosen.schedule.warmup_extra >= 1
    assert strict.schedule.warmup_extra == 0
    assert chosen.predicted.step_seconds < 0.99 * strict.predicted.step_seconds
    assert max(chosen.predicted.memory_gib_per_rank) > max(strict.predicted.memory_gib_per_rank)
    assert make(*slow, "parallel.warmup_extra=3").schedule.warmup_extra == 3


def test_auto_compares_schedules_and_turns() -> None:
    slow = [MIXED, "model=gpt_3_6b", "train.precision=float16", "parallel.pipeline=4", "train.global_batch_size=32",
            "parallel=holmes", "parallel.micro_batch_size=1"]
    chosen, plain = make(*slow), make(*slow, "parallel.schedule=1f1b", "parallel.turns=false")
    assert chosen.schedule.name == "zero_bubble"
    assert chosen.predicted.step_seconds < 0.99 * plain.predicted.step_seconds
    assert chosen.schedule.stage_times and chosen.schedule.hop_times
    for made in (chosen, make(*slow, "parallel.turns=true")):
        has_turns = any(group.kind == "turn" for group in made.groups)
        assert has_turns == made.schedule.turns
    forced = make(MIXED, "parallel=holmes", "parallel.pipeline=2", "parallel.turns=true")
    assert [(g.ranks, g.network) for g in forced.groups if g.kind == "turn"] == [((4, 5), "local"), ((6, 7), "local")]


def test_micro_batches_leave_four_for_each_pipeline() -> None:
    for overrides in ([MIXED, "parallel=holmes"], [MIXED, "parallel=megatron"]):
        made = make(*overrides)
        assert min(p.microbatches for p in made.pipelines) >= 4
        assert made.micro_batch_size & (made.micro_batch_size - 1) == 0
    tiny = make(MIXED, "parallel=holmes", "parallel.pipeline=2", "train.global_batch_size=8")
    assert tiny.micro_batch_size == 1


REFUSED = {
    "more fabrics than layers": (["parallel=holmes", "model.num_layers=1"], "layers"),
    "fewer stages than fabrics": (["parallel=holmes", "parallel.pipeline=1"], "at least 2"),
    "megatron does not divide": (["parallel=megatron", "parallel.pipeline=3"], "tensor x pipeline x data must be 8"),
    "megatron data": (["parallel=megatron", "parallel.pipeline=2", "parallel.data=3"], "must be 8"),
    "fabrics thinner than data": (["parallel=holmes", "parallel.data=8"], "parallel.data=8"),
    "tensor wider than a node": (["parallel=holmes", "parallel.tensor=4"], "one of 1, 2"),
    "tensor does not divide the heads": (["parallel=holmes", "parallel.tensor=2", "model.num_heads=1"], "1 heads"),
    "fewer micro-batches than pipelines": (["parallel=holmes", "parallel.pipeline=2", "train.global_batch_size=3",
                                            "parallel.micro_batch_size=1"], "each needs at least one"),
    "megatron micro-batches": (["parallel=megatron", "parallel.pipeline=2", "train.global_batch_size=6",
                                "parallel.micro_batch_size=1"], "multiple"),
    "memory": (["model=gpt_145_6b", "parallel=holmes"], "memory"),
    "memory of megatron": (["model=gpt_145_6b", "parallel=megatron"], r"rank \d+ \(\w+/\d, a100-80g\) needs .* GiB"),
    "flashflex": (["parallel=flashflex", "model=gpt_145_6b"], "memory"),
    "flashflex in chunks": (["parallel=flashflex", "parallel.schedule=interleaved", "parallel.chunks=2",
                             "model.num_layers=8"], "parallel.chunks=1"),
    "more chunks than layers": (["parallel=holmes", "parallel.chunks=8"], "stages, which need at least as many layers"),
    "manual without pipelines": (["parallel=manual"], "parallel.pipelines"),
    "manual leaves ranks out": (["parallel=manual", "parallel.pipelines=[{stages: [{ranks: [0], layers: 4}]}]"],
                                "ranks 1, 2, 3, 4, 5, 6, 7 are in no stage"),
    "manual layers": (["parallel=manual", "parallel.pipelines=[{stages: [{ranks: [0], layers: 3}]}]"], "3 layers"),
    "manual rank": (["parallel=manual", "parallel.pipelines=[{stages: [{ranks: [9], layers: 4}]}]"], "0 to 7"),
    "manual tensor group over nodes": (
        ["parallel=manual", "parallel.pipelines=[{stages: [{ranks: [0, 4], layers: 4}]}]"], "one node"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name: str) -> None:
    overrides, words = REFUSED[name]
    with pytest.raises((PlanRefusedError, ConfigurationError), match=words):
        make(MIXED, *overrides)


@pytest.mark.parametrize("strategy", ["auto", "flashflex", "holmes", "megatron"])
@pytest.mark.parametrize("overrides", [
    ["parallel.tensor=3"], ["parallel.tensor=8"],
    ["parallel.tensor=4", "cluster.partitions.roce.gpus_per_node=4"],
    ["parallel.tensor=2", "model.num_heads=3", "model.hidden_size=96"],
], ids=" ".join)
def test_a_tensor_degree_that_does_not_fit_is_refused_by_every_strategy(strategy: str, overrides: list[str]) -> None:
    with pytest.raises(PlanRefusedError, match=r"parallel\.tensor=[0-9]+: .*Set parallel\.tensor to one of 1"):
        plan(compose(["+cluster=mixed", f"parallel={strategy}", *overrides]), mode="slurm")


def test_bind_names_the_nodes_or_refuses() -> None:
    made = make(MIXED)
    names = {"ib/0": "n17", "ib/1": "n3", "roce/0": "r1", "roce/1": "r2"}
    bound = bind(made, names)
    assert [place.node for place in bound.ranks] == ["n17", "n17", "n3", "n3", "r1", "r1", "r2", "r2"]
    assert bound.pipelines == made.pipelines
    with pytest.raises(PlanRefusedError, match="no node for roce/1"):
        bind(made, {k: v for k, v in names.items() if k != "roce/1"})
    with pytest.raises(PlanRefusedError, match="no such slot: ib/2"):
        bind(made, {**names, "ib/2": "n4"})
    with pytest.raises(PlanRefusedError, match="n3 is given to several"):
        bind(made, {**names, "ib/0": "n3"})


def test_table_shows_everything_at_a_glance() -> None:
    config = compose([MIXED])
    cluster = read_cluster(config.cluster)
    made = plan(config)
    buffer = io.StringIO()
    Console(file=buffer, width=120).print(render(made, cluster))
    text = buffer.getvalue()
    for word in ("fabrics", "hdr200", "roce200", "stage 0", "layer", "process groups", "ethernet", "predicted",
                 "the cluster as described", "rejected", "megatron"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 120
    place = "note: ib/0 is the first node of the label ib: an emulated or local run calls it ib-0"
    assert place in text
    bound = bind(made, {rank.slot: f"n{rank.slot[-1]}-{rank.fabric}" for rank in made.ranks})
    buffer = io.StringIO()
    Console(file=buffer, width=120).print(render(bound, cluster))
    assert place not in buffer.getvalue() and "n0-ib" in buffer.getvalue(), "machines are known"
    buffer = io.StringIO()
    Console(file=buffer, width=120).print(render(plan(config, "emulated"), cluster))
    assert "this machine" in buffer.getvalue()


def test_the_engine_says_what_it_cannot_run() -> None:
    assert unsupported(compose([MIXED])) == []
    assert unsupported(compose([MIXED, "parallel.schedule=gpipe", "parallel.warmup_extra=2"])) == []
    assert unsupported(compose([MIXED, "parallel.tensor=2", "parallel.sequence_parallel=true",
                                "parallel.recompute=full"])) == []
    assert unsupported(compose([MIXED, "parallel.chunks=2", "parallel.turns=true"])) == []
    problems = unsupported(compose([MIXED, "parallel.cross_fabric_dtype=bfloat16"]))
    assert len(problems) == 1
    assert "parallel.cross_fabric_dtype=bfloat16" in problems[0] and "float32 or null" in problems[0]
    less = dataclasses.replace(ENGINE, precisions=("float32",), schedules=("gpipe", "1f1b"), turns=False)
    problems = unsupported(compose([MIXED, "train.precision=bfloat16", "parallel.schedule=zero_bubble",
                                    "parallel.turns=true"]), abilities=less)
    assert len(problems) == 3
    assert "auto, gpipe or 1f1b" in problems[0]


def test_planning_a_small_cluster_simulates_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is counted rather than timed: `benchmarks.search_speed` shows the seconds."""
    simulated = []

    def counting(*arguments: object) -> object:
        simulated.append(arguments)
        return predict(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(candidate, "predict", counting)
    plan(compose([MIXED]))
    assert 10 < len(simulated) < 250
