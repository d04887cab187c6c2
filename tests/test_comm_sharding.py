"""Sums in shards and gathers of shards, in one and two levels, against sums computed in one process."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from holmes_hpc.comm.groups import connect
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.comm.scratch import Scratch
from holmes_hpc.comm.sharding import Route
from holmes_hpc.comm.stepwise import Collective, Lane
from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan
from holmes_hpc.values import RankPlace, Synchronization
from holmes_hpc.values.levels import ranks_by_node
from tests.forked import run_ranks
from tests.test_comm_reduce import CASES, data, outer
from tests.tiny_plans import tiny_plan, tiny_reduction

TWO_NODES = {
    "two nodes of two": ([data(0, 1, 2, 3)], (0, 1, 2, 3), (1,), (), False),
    "two nodes of two, and across": (
        [data(0, 1, 2, 3), data(4), outer(0, 4), outer(1, 5)], (0, 1, 2, 3, 4), (1, 2), (3,), True),
    "fabrics of two nodes of two": (
        [data(0, 1, 2, 3), data(4, 5, 6, 7), *(outer(j, j + 4) for j in range(4))],
        tuple(range(8)), (1, 2), (3, 4, 5, 6), True),
}
ALL = {**CASES, **TWO_NODES}
BUCKETS = 3
SHARD = 5


def placed(world_size, groups, reduction, ranks_a_node):
    plan = tiny_plan(world_size, groups, [reduction])
    ranks = tuple(RankPlace(r, f"n/{r // ranks_a_node}", r % ranks_a_node, "cpu", "n") for r in range(world_size))
    return dataclasses.replace(plan, ranks=ranks, synchronization=Synchronization(sharded=True))


def values(rank, length, bucket):
    return torch.randn(length, generator=torch.Generator().manual_seed(97 * rank + bucket))


def scattered_and_gathered(given, plan, polls):
    communicator = connect(given.store, given.rank, given.world_size, plan, NodeNetworks.local(),
                           start_timeout=30, train_timeout=20)
    reduction = plan.reductions[0]
    if given.rank not in reduction.owners:
        return None
    route = Route(reduction, communicator, Scratch(torch.device("cpu")))
    lane = Lane()
    buffers = [values(given.rank, SHARD * route.shards, bucket) for bucket in range(BUCKETS)]
    for buffer in buffers:
        lane.add(Collective(route.reduce_steps(buffer), communicator))
    for _ in range(polls):
        lane.poll()
    lane.finish()
    shards = [route.shard(buffer).clone() for buffer in buffers]
    gathered = []
    for bucket, shard in enumerate(shards):
        whole = torch.full((SHARD * route.shards,), -1.0, dtype=torch.bfloat16)
        route.shard(whole).copy_(shard)
        lane.add(Collective(route.gather_steps(whole), communicator))
        gathered.append(whole)
        if bucket % 2:
            lane.poll()
    lane.finish()
    inside = [group for group in plan.groups if group.is_inside]
    sizes = {len(group.ranks) for group in inside}
    return {"shards": route.shards, "position": route.position, "counts": route.counts, "divided": route.divided,
            "sums": [shard.tolist() for shard in shards], "gathered": [each.float().tolist() for each in gathered],
            "levels": bool(inside) and (len(inside), sizes.pop())}


@pytest.mark.parametrize("name", ALL)
def test_shards_hold_the_sum_and_gathers_the_whole(name):
    groups, owners, inner, outers, sharded = ALL[name]
    world_size = max(4, *(rank + 1 for rank in owners))
    ranks_a_node = 2 if name in TWO_NODES else 1
    if name == "two nodes of two, and across":
        groups, world_size = groups[:3], 5
    reduction, groups = tiny_reduction(groups, owners, inner, outers, sharded, sharded=True,
                                       slot_of=lambda rank: str(rank // ranks_a_node))
    plan = placed(world_size, groups, reduction, ranks_a_node)
    results = run_ranks(world_size, scattered_and_gathered, plan, 2000)
    mine = {rank: results[rank] for rank in owners}
    shards = {each["shards"] for each in mine.values()}
    assert len(shards) == 1
    count = shards.pop()
    for bucket in range(BUCKETS):
        expected = sum(values(rank, SHARD * count, bucket).double() for rank in owners)
        counted = torch.zeros(count)
        for rank, each in mine.items():
            if each["position"] is None:
                assert each["sums"][bucket] == []
            else:
                part = slice(each["position"] * SHARD, (each["position"] + 1) * SHARD)
                assert torch.allclose(torch.tensor(each["sums"][bucket]).double(), expected[part], atol=1e-6)
                counted[each["position"]] += each["counts"]
            if each["divided"]:
                assert torch.allclose(torch.tensor(each["gathered"][bucket]).double(), expected, rtol=1e-2, atol=1e-2)
                same = next(r for r in owners if mine[r]["divided"])
                assert each["gathered"][bucket] == mine[same]["gathered"][bucket], f"rank {rank} holds other bits"
        assert counted.tolist() == [1.0] * count, "every shard counts once"
    if name == "two nodes of two":
        assert all(each["levels"] == (2, 2) for each in mine.values())


def groups_made(given, plan):
    """Connect, sum and gather, and return every group that torch was asked for."""
    made, new_group = [], torch.distributed.new_group

    def noting(ranks, **options):
        made.append((tuple(ranks), options["group_desc"]))
        return new_group(ranks, **options)

    torch.distributed.new_group = noting
    communicator = connect(given.store, given.rank, given.world_size, plan, NodeNetworks.local(),
                           start_timeout=30, train_timeout=20)
    lane = Lane()
    for reduction in (each for each in plan.reductions if given.rank in each.owners):
        route = Route(reduction, communicator, Scratch(torch.device("cpu")))
        buffer = values(given.rank, SHARD * route.shards, 0)
        lane.add(Collective(route.reduce_steps(buffer), communicator))
        lane.finish()
        lane.add(Collective(route.gather_steps(buffer), communicator))
        lane.finish()
    return made


@pytest.mark.parametrize("overrides", [
    ["cluster.nodes=2", "cluster.gpus_per_node=2", "parallel.pipeline=1"],
    ["cluster.nodes=2", "cluster.gpus_per_node=2", "parallel.pipeline=1", "parallel.tensor=2"],
    ["cluster.nodes=2", "cluster.gpus_per_node=2", "parallel.pipeline=2", "optimizer.sharded=false"],
], ids=["levels in nodes", "tensor", "pipeline"])
def test_the_groups_made_are_those_of_the_plan(overrides):
    made = plan(compose(["+cluster=uniform", "parallel=holmes", *overrides]), mode="local")
    expected = [(group.ranks, f"{group.kind} on {group.network}") for group in made.groups[1:] if len(group.ranks) > 1]
    assert len(set(expected)) == len(expected) > 2
    assert any(group.is_inside for group in made.groups) == ("optimizer.sharded=false" not in overrides)
    assert run_ranks(4, groups_made, made) == [expected] * 4


def test_levels_need_equal_nodes_of_several_ranks():
    nodes = "aabbccdd"
    assert ranks_by_node((0, 1, 2, 3), nodes.__getitem__) == ((0, 1), (2, 3))
    assert ranks_by_node((0, 2, 4), nodes.__getitem__) is None, "one rank a node"
    assert ranks_by_node((0, 1), nodes.__getitem__) is None, "one node"
    assert ranks_by_node((0, 1, 2), nodes.__getitem__) is None, "unequal nodes"
    assert ranks_by_node((0, 2, 1, 3), nodes.__getitem__) is None, "not in node order"
