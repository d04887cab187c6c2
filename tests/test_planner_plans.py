"""Whole plans, on clusters of all shapes: what must hold for each, and how little it costs."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner import plan
from holmes_hpc.planner.search import candidate
from holmes_hpc.planner.simulation.predict import predict
from holmes_hpc.schedule import build_schedule, plan_digest
from holmes_hpc.values import Plan
from holmes_hpc.values.owned import Owned
from tests.fuzzing import examples
from tests.plans_for_tests import CASES, MIXED, inner_and_outer, make, nodes, sums_parts
from tests.schedule_rules import schedule_problems

FINE = Fraction(1, 12)
"""A slice that every tensor degree of these tests is made of."""


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


def test_planning_a_small_cluster_simulates_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is counted rather than timed: `benchmarks.search_speed` shows the seconds."""
    simulated = []

    def counting(*arguments: object) -> object:
        simulated.append(arguments)
        return predict(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(candidate, "predict", counting)
    plan(compose([MIXED]))
    assert 10 < len(simulated) < 250
