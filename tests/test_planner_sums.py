"""The plan says in how many levels gradients are summed; `--help` says what this version does not run yet."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from holmes_hpc.cluster import read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.config.describe import expected, settings, valid_words
from holmes_hpc.config.schema import Parallel, Train
from holmes_hpc.planner import plan, render
from holmes_hpc.planner.telling.sums import sums_in_words
from holmes_hpc.values.capabilities import ENGINE, unsupported

MIXED = "+cluster=mixed"
TWO = "in two levels, inside the nodes and then across"
BETWEEN = "sums between ib and roce, over ethernet: of shards, after the sums inside each fabric (parallel.two_level)"


def sums(*overrides: str, mode: str = "slurm") -> list[str]:
    return sums_in_words(plan(compose([MIXED, "parallel.micro_batch_size=1", *overrides]), mode=mode))


def test_levels_inside_nodes_and_inside_fabrics_are_told_apart() -> None:
    """The described cluster has GPUs, where NCCL knows the nodes; its emulation sums by gloo, which does not."""
    whole = ["parallel=holmes", "parallel.pipeline=2"]
    assert sorted(sums(*whole)) == [BETWEEN, "sums over ib, 4 ranks: in one level",
                                    "sums over roce, 4 ranks: in one level"]
    assert sorted(sums(*whole, mode="emulated")) == [BETWEEN, f"sums over ib, 4 ranks (2 nodes x 2): {TWO}",
                                                     f"sums over roce, 4 ranks (2 nodes x 2): {TWO}"]
    assert sums(*whole, "parallel.two_level=true") == sums(*whole), "null is true"
    flat = sums(*whole, "parallel.two_level=false", mode="emulated")
    assert BETWEEN not in flat and f"sums over ethernet, 8 ranks (4 nodes x 2): {TWO}" in flat


def test_one_rank_a_node_and_sums_that_are_not_sharded_have_one_level() -> None:
    one_a_node = ["cluster.partitions.ib.gpus_per_node=1", "cluster.partitions.roce.gpus_per_node=1"]
    assert "sums over ib, 2 ranks: in one level" in sums("parallel=holmes", "parallel.pipeline=2", *one_a_node)
    whole = sums("parallel=megatron", "parallel.pipeline=1", "optimizer.sharded=false")
    assert whole == ["sums over ethernet, 8 ranks: in one level"]


def test_a_plan_in_which_nobody_shares_says_nothing_and_the_table_says_the_rest() -> None:
    alone = ["+cluster=ib", "model.tied_embeddings=false", "cluster.partitions.ib.nodes=1",
             "cluster.partitions.ib.gpus_per_node=1"]
    assert sums_in_words(plan(compose(alone), mode="slurm")) == []
    config = compose([MIXED, "parallel=holmes", "parallel.pipeline=2"])
    text = io.StringIO()
    Console(file=text, width=120).print(render(plan(config), read_cluster(config.cluster)))
    assert BETWEEN in text.getvalue() and max(map(len, text.getvalue().splitlines())) <= 120


@pytest.mark.parametrize(("schema", "name", "runs"), [
    (Parallel, "cross_fabric_dtype", ENGINE.cross_fabric_dtypes), (Parallel, "schedule", ("auto", *ENGINE.schedules)),
    (Parallel, "recompute", ("auto", *ENGINE.recompute)), (Train, "precision", ENGINE.precisions),
])
def test_help_marks_exactly_the_values_that_the_engine_refuses(
        schema: type, name: str, runs: tuple[str, ...]) -> None:
    setting = settings(schema)[name]
    group = schema.__name__.lower()
    for word in valid_words(setting.metadata):
        chunks = ["parallel.chunks=2"] if word == "interleaved" else []
        refused = bool(unsupported(compose([MIXED, f"{group}.{name}={word}", *chunks])))
        assert refused == (word not in runs)
        assert (f"{word} (not yet run by this version)" in expected(setting)) == refused
