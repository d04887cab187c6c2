"""What each strategy makes of a cluster: stages, layers, sums, and which prediction wins."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner import plan
from holmes_hpc.planner.telling.restore import restore
from tests.plans_for_tests import CASES, MIXED, inner_and_outer, make, sums_parts


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
    plain = make(MIXED, "launch.mode=local")
    assert plain.predicted.machine == "local" and plain.predicted.is_here and here.predicted.is_here
    assert not described.predicted.is_here
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


@pytest.mark.parametrize(("gpus", "words", "machine"), [
    (2, (), "described"), (2, ("launch.backend=nccl",), "described"), (1, (), "local"), (0, (), "local"),
    (2, ("launch.backend=gloo",), "local"), (2, ("cluster.gpu=cpu",), "local"), (4, ("cluster.nodes=2",), "local")])
def test_a_local_run_on_gpus_is_priced_as_described(monkeypatch: pytest.MonkeyPatch, gpus: int, words: tuple[str, ...],
                                                    machine: str) -> None:
    monkeypatch.setattr("holmes_hpc.planner.making.count_gpus", lambda: gpus)
    config = compose(["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=2", "cluster.gpu=h200",
                      "launch.mode=local", *words])
    made = plan(config)
    assert made.predicted.machine == machine
    monkeypatch.setattr("holmes_hpc.planner.making.count_gpus", lambda: 0)  # it is looked at elsewhere
    task, _ = restore(config, made)
    assert (task.machine.gpu(task.cluster.nodes[0]).name == "h200") == (machine == "described")
