"""The parts of the search, each against something slower and simpler; and what must hold whatever the cluster is."""

import dataclasses
import itertools
import random

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.config.compose import compose
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner import plan
from holmes_hpc.planner.layout.node_kinds import Kind, node_kinds, on_nodes
from holmes_hpc.planner.making import assemble, find_best
from holmes_hpc.planner.search.budget import SearchBudget
from holmes_hpc.planner.search.catalogue import propose_by
from holmes_hpc.planner.search.search import choose
from holmes_hpc.planner.search.shortlist import twins_last
from holmes_hpc.planner.strategies.fleets.knapsack import Knapsack, share_microbatches
from holmes_hpc.planner.strategies.fleets.placement import place, used_slots
from holmes_hpc.planner.strategies.fleets.space import Space
from holmes_hpc.planner.strategies.fleets.templates import Template
from holmes_hpc.planner.strategies.layer_split import cut_layers
from holmes_hpc.planner.task import Task, task_of
from holmes_hpc.schedule import build_schedule
from holmes_hpc.values import Plan
from tests.fuzzing import examples
from tests.planner_problems import Problem, make_cluster
from tests.schedule_rules import schedule_problems

FABRIC = st.tuples(st.sampled_from(["a100-80g", "v100", "t4"]), st.sampled_from(["hdr200", "roce100", "eth25"]),
                   st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple))


@examples(60)
@given(st.data(), st.integers(1, 4), st.integers(4, 9))
def test_layers_are_cut_as_an_exhaustive_search_cuts_them(data: st.DataObject, depth: int, layers: int) -> None:
    seconds = st.floats(0.1, 3.0)
    layer = [data.draw(seconds) for _ in range(depth)]
    end = [data.draw(st.floats(0.0, 2.0)) for _ in range(depth)]
    caps = [data.draw(st.integers(0, 9)) for _ in range(depth)]
    cuts = [cut for cut in itertools.product(*(range(1, cap + 1) for cap in caps)) if sum(cut) == layers]
    found, good = cut_layers(numpy.array([layer]), numpy.array([end]), numpy.array([caps], dtype=float), layers)
    assert bool(good[0]) == bool(cuts)
    if cuts:
        best = min(max(n * x + e for n, x, e in zip(cut, layer, end, strict=True)) for cut in cuts)
        assert tuple(found[0]) in cuts
        assert max(n * x + e for n, x, e in zip(found[0], layer, end, strict=True)) == pytest.approx(best)


def template(kind: int, tensor: int, count: int, period: float, fill: float) -> Template:
    return Template(((kind, tensor, count),), (1,) * count, period, fill, period + fill)


@examples(30)
@given(st.integers(0, 10**6))
def test_the_knapsack_finds_the_best_multiset(seed: int) -> None:
    draw = random.Random(seed)
    kinds = kinds_of((4,), (3,))
    templates = [template(draw.randrange(2), 1, draw.randint(1, 3), draw.uniform(0.5, 2), draw.uniform(0, 3))
                 for _ in range(5)] + [template(0, 1, 1, 3.0, 0.5), template(1, 1, 1, 4.0, 0.5)]
    microbatches = draw.randint(8, 20)
    best = min((fleet.seconds for multiset in multisets(templates, kinds)
                if (fleet := share_microbatches(multiset, [0.0] * len(multiset), microbatches))), default=None)
    sack = Knapsack(kinds, templates, [0.0] * len(templates), microbatches)
    found = next(iter(sack.fleets(best or 1.0, may_idle=False)), None)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert found.gpus(2) == (4, 3)
        assert sum(count for _, count in found.pipelines) == microbatches
        assert best <= found.seconds * (1 + 1e-9) <= best * 1.002


def kinds_of(*counts: tuple[int, ...]) -> tuple[Kind, ...]:
    cluster = make_cluster("k", tuple((gpu, "hdr200", each) for gpu, each in zip(("a100-80g", "v100"), counts,
                                                                               strict=True)), 25.0)
    return tuple(Kind((node,)) for node in cluster.nodes)


def multisets(templates: list[Template], kinds: tuple[Kind, ...]) -> list[list[Template]]:
    """All multisets that take all GPUs."""
    found = []

    def extend(chosen: list[Template], first: int, left: tuple[int, ...]) -> None:
        if not any(left):
            found.append(chosen)
        for i in range(first, len(templates)):
            rest = tuple(a - b for a, b in zip(left, templates[i].gpus(len(kinds)), strict=True))
            if min(rest) >= 0:
                extend([*chosen, templates[i]], i, rest)

    extend([], 0, tuple(kind.total_gpus for kind in kinds))
    return found


@examples(5)
@given(st.lists(FABRIC, min_size=1, max_size=3), st.integers(1, 5), st.integers(2, 12), st.booleans(),
       st.sampled_from(["auto", "flashflex"]))
def test_plans_hold_together_on_any_cluster(fabrics: list[tuple[str, str, tuple[int, ...]]], layers: int, batch: int,
                                            tied: bool, strategy: str) -> None:
    task = Problem("any", tuple(fabrics), layers, batch, hidden=256, sequence=128, tied=tied).task(
        f"parallel={strategy}")
    try:
        best, rejected = find_best(task)
    except PlanRefusedError:
        return
    made = assemble(task, best, rejected)
    check(task, made)
    again, _ = find_best(task)
    assert again.layout == best.layout


def check(task: Task, made: Plan) -> None:
    assert Plan.from_json(made.to_json()) == made
    assert made.world_size == len(made.ranks)
    assert {place.slot for place in made.ranks} <= {node.slot for node in task.cluster.nodes}
    assert {rank for p in made.pipelines for s in p.stages for rank in s.ranks} == set(range(made.world_size))
    for pipeline in made.pipelines:
        held = [n for s in pipeline.stages for n in range(s.first_layer, s.first_layer + s.num_layers)]
        assert held == list(range(task.architecture.num_layers))
    assert sum(p.microbatches for p in made.pipelines) * made.micro_batch_size == made.global_batch_size
    assert schedule_problems(made.pipelines, made.reductions, build_schedule(made)) == []
    for place_of, need in zip(made.ranks, made.predicted.memory_gib_per_rank, strict=True):
        node = next(node for node in task.cluster.nodes if node.slot == place_of.slot)
        assert need <= task.machine.memory_gib(node)


def test_equal_nodes_in_another_order_give_the_same_step() -> None:
    task = Problem("order", (("a100-80g", "hdr200", (2, 2)), ("v100", "roce100", (2,)))).task()
    nodes = task.cluster.nodes
    other = dataclasses.replace(task.cluster, nodes=(nodes[1], nodes[2], nodes[0]))
    moved = dataclasses.replace(task, cluster=other, machine=dataclasses.replace(task.machine, cluster=other))
    assert find_best(moved)[0].seconds == pytest.approx(find_best(task)[0].seconds, rel=1e-9)


def test_a_slow_node_is_left_out_only_when_asked() -> None:
    problem = Problem("slow", (("a100-80g", "hdr200", (2,)), ("t4", "eth25", (1,))), ethernet_gbps=1)
    assert find_best(problem.task())[0].task.cluster.world_size == 2
    made, rejected = find_best(problem.task("parallel.leave_nodes_out=false"))
    assert made.task.cluster.world_size == 3
    plan = assemble(problem.task(), *find_best(problem.task()))
    assert any("f1/0" in note for note in plan.notes)


def test_ranks_of_some_nodes_are_numbered_anew() -> None:
    task = Problem("some", (("a100-80g", "hdr200", (2, 3)), ("v100", "roce100", (2,)))).task()
    some = on_nodes(task, ["f0/1", "f1/0"])
    assert [some.cluster.ranks_of(node) for node in some.cluster.nodes] == [(0, 1, 2), (3, 4)]
    assert on_nodes(task, [node.slot for node in task.cluster.nodes]) is task


def test_what_the_engine_lacks_is_chosen_only_alone() -> None:
    found, _ = find_best(Problem("two", (("a100-80g", "hdr200", (2,)),)).task())
    slower = dataclasses.replace(found, predicted=dataclasses.replace(found.predicted, step_seconds=9.0))
    faster = dataclasses.replace(found, missing=("magic",))
    assert choose([faster, slower]) is slower
    assert choose([faster]) is faster


def test_the_budget_counts_work_and_not_time() -> None:
    task = Problem("8", (("a100-80g", "hdr200", (4,)), ("v100", "roce100", (4,))), layers=8, batch=16).task()
    short = dataclasses.replace(task, settings=task.settings.replace(search_seconds=0.05))
    assert SearchBudget(2.0, 8).units > SearchBudget(0.1, 8).units
    assert find_best(short)[0].layout == find_best(short)[0].layout
    assert find_best(short)[0].seconds >= find_best(task)[0].seconds * (1 - 1e-9)


def test_placement_takes_all_gpus_of_the_used_nodes() -> None:
    task = Problem("place", (("a100-80g", "hdr200", (4, 4)), ("v100", "roce100", (4,))), layers=8, batch=16).task()
    space = Space(task)
    assert node_kinds(task)[0].total_gpus == 8
    fleet = share_microbatches([Template(((0, 2, 2), (1, 1, 2)), (2, 2, 2, 2), 1.0, 3.0, 4.0)] * 2, [0.0, 0.0], 16)
    assert fleet is not None
    cluster = task.cluster.only(used_slots(fleet, space.kinds))
    for together in (True, False):
        pipelines = place(fleet, space.kinds, cluster, stages_together=together)
        assert pipelines is not None
        ranks = [rank for p in pipelines for s in p.stages for rank in s.ranks]
        assert sorted(ranks) == list(range(12))
        assert all(len({cluster.node_of(r).slot for r in s.ranks}) == 1 for p in pipelines for s in p.stages)


def test_degrees_beyond_the_ranks_are_refused_once_for_all_strategies():
    with pytest.raises(PlanRefusedError) as refused:
        plan(compose(["+cluster=mixed", "model=gpt_tiny", "parallel.pipeline=4", "parallel.data=8"]))
    words = str(refused.value)
    assert words.startswith("parallel.pipeline=4 and parallel.data=8 need 32 ranks, and the cluster has 8.")
    assert "Or:" not in words and "None" not in words


NEARLY_EQUAL_FABRICS = ("+cluster=mixed", "model=gpt_7_5b", "parallel=holmes", "train.precision=float16",
                        "train.global_batch_size=128", "cluster.partitions.ib.gpus_per_node=8",
                        "cluster.partitions.roce.gpus_per_node=8")


def test_layouts_that_swap_nearly_equal_fabrics_are_simulated_after_unlike_ones() -> None:
    found = propose_by("holmes", task_of(compose(list(NEARLY_EQUAL_FABRICS)), "slurm"), 1, [])
    ranked = sorted(found, key=lambda each: (not each.fits, each.estimate_seconds))
    first, twins = twins_last(ranked)
    assert first[0] is ranked[0] and twins[0] is ranked[1]
    assert ranked[0].facts.layers == ranked[1].facts.layers and ranked[0].facts.form != ranked[1].facts.form
    assert sorted(map(id, (*first, *twins))) == sorted(map(id, ranked))


def test_a_layout_that_only_pays_with_turns_is_found() -> None:
    """Without them it is the slowest of those that are looked at; given its depth alone, the search finds it."""
    free, fixed = (plan(compose([*NEARLY_EQUAL_FABRICS, *more]), "slurm") for more in ((), ("parallel.pipeline=4",)))
    assert fixed.schedule.turns
    assert free.predicted.step_seconds <= 1.03 * fixed.predicted.step_seconds


def test_a_wider_degree_that_cannot_be_hides_neither_a_layout_nor_why_there_is_none() -> None:
    """Of 8 ranks, 8 stages leave one tensor rank: wider degrees are refused, and that is no reason."""
    asked = ["+cluster=mixed", "parallel=megatron"]
    with pytest.raises(PlanRefusedError, match=r"memory: rank 0 .* needs .* GiB"):
        plan(compose([*asked, "parallel.pipeline=8", "model=gpt_39_1b"]), mode="slurm")
    eight = ["cluster.partitions.ib.gpus_per_node=8", "cluster.partitions.roce.gpus_per_node=8"]
    recomputed = plan(compose([*asked, *eight, "parallel.pipeline=16", "model=llama_70b", "train.precision=float16",
                               "train.global_batch_size=128"]), mode="slurm")
    assert recomputed.recompute == "full" and len(recomputed.pipelines[0].stages) == 16


@pytest.mark.parametrize(("asked", "fixed"), [
    # Memory holds what exchanges over eight tensor ranks, and with recomputation what is much faster.
    (["+cluster=mixed", "model=llama_70b", "parallel=megatron", "cluster.partitions.ib.gpus_per_node=8",
      "cluster.partitions.roce.gpus_per_node=8"], ["parallel.tensor=1", "parallel.pipeline=16"]),
    # Estimates are too high for all layouts alike, by what zero bubble takes away.
    (["+cluster=ethernet", "model=gpt_tiny", "parallel=flashflex"], ["parallel.micro_batch_size=16"]),
    # Memory is too small for the schedule that hides most, and enough for the next one.
    (["+cluster=holmes_paper", "model=llama_13b", "parallel=flashflex"], ["parallel.tensor=1"]),
    # The best fleets by their own seconds are all of other micro-batch sizes.
    (["+cluster=ib", "model=gpt_7_5b", "parallel=flashflex"], ["parallel.micro_batch_size=4"]),
], ids=["recomputation", "estimates", "memory for warm-up", "sizes"])
def test_what_is_left_open_is_chosen_no_worse_than_by_hand(asked: list[str], fixed: list[str]) -> None:
    size = [] if "model=gpt_tiny" in asked else ["train.precision=float16", "train.global_batch_size=128"]
    found, by_hand = (plan(compose([*asked, *size, "parallel.plain=0", *more]), mode="slurm").predicted.step_seconds
                      for more in ([], fixed))
    assert found <= by_hand * (1 + 1e-9)
