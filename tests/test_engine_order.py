"""No two ranks can wait for each other: on every group, all members begin the same operations in the same order.

Ranks of random plans run their sums with operations that arrive at random times.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import read_cluster
from holmes_hpc.comm import sharding
from holmes_hpc.comm.gloo import BACKEND_NAME
from holmes_hpc.comm.scratch import Scratch
from holmes_hpc.comm.sharding import Route
from holmes_hpc.comm.stepwise import Collective, Lane
from holmes_hpc.config.cluster_schema import Partition
from holmes_hpc.config.compose import compose
from holmes_hpc.planner.layout.groups import GroupRules, find_groups
from holmes_hpc.values import Group, Pipeline, Reduction, Stage
from tests.device_queues import Queues
from tests.fuzzing import examples
from tests.test_comm_stepwise import FakeCommunicator, FakeWork

BUCKETS = 3


@dataclass
class Layout:
    groups: tuple[Group, ...]
    reductions: tuple[Reduction, ...]


class OneOf(FakeCommunicator):
    """The communicator of one rank; a group is its index."""

    def __init__(self, plan: Layout, rank: int) -> None:
        self.plan, self.rank, self.world = plan, rank, 0

    def has_group(self, index: int) -> bool:
        return self.rank in self.plan.groups[index].ranks and len(self.plan.groups[index].ranks) > 1

    def group(self, index: int) -> int:
        return index


@dataclass
class Noted:
    """A step that notes when it begins and arrives when it likes."""

    group: int
    name: tuple
    log: dict[int, list]
    works: list[FakeWork]
    doing: str = "testing"

    def begin(self) -> list[FakeWork]:
        self.log.setdefault(self.group, []).append(self.name)
        self.works.append(FakeWork())
        return self.works[-1:]

    def end(self) -> None:
        return


@functools.cache
def composed(tied: bool) -> Any:
    return compose(["+cluster=mixed", "model.num_layers=4", f"model.tied_embeddings={str(tied).lower()}"])


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, bool]:
    fabrics = draw(st.lists(st.integers(1, 2), min_size=2, max_size=3))
    gpus = draw(st.integers(1, 2))
    world = gpus * sum(fabrics)
    tied = draw(st.booleans())
    config = composed(tied)
    config.cluster.partitions = {f"f{i}": Partition(nodes=n, gpus_per_node=gpus) for i, n in enumerate(fabrics)}
    pipelines = []
    for _ in range(draw(st.integers(2, 4))):
        cuts = sorted(draw(st.lists(st.integers(1, 3), max_size=3, unique=True)))
        bounds = list(zip([0, *cuts], [*cuts, 4], strict=True))
        ranks = draw(st.lists(st.integers(0, world - 1), min_size=len(bounds), max_size=len(bounds)))
        pipelines.append(Pipeline(1, tuple(Stage((rank,), a, b - a)
                                           for rank, (a, b) in zip(ranks, bounds, strict=True))))
    rules = draw(st.sampled_from([GroupRules(), GroupRules(two_level=False), GroupRules(one_network=True)]))
    cluster = read_cluster(config.cluster)
    sharded = draw(st.booleans())
    groups, reductions = find_groups(Architecture.from_config(config.model), cluster, pipelines, rules, sharded=sharded,
                                     in_nodes=draw(st.booleans()))
    return Layout(groups, reductions), sharded


def begun(layout: Layout, rank: int, overlap: bool, queued: bool, chance: random.Random) -> dict[int, list]:
    """Run the sums of a rank as the engine does and return what it began on each group, in order."""
    log: dict[int, list] = {}
    works: list[FakeWork] = []
    owned = [(i, each) for i, each in enumerate(layout.reductions) if rank in each.owners]
    communicator = OneOf(layout, rank)
    sums: dict[int, list[Collective]] = {}
    places: dict[int, set[int]] = {}
    for index, reduction in owned:
        route = Route(reduction, communicator, Scratch(torch.device("cpu")))
        for bucket in range(BUCKETS):
            steps = route.reduce_steps(torch.zeros(12 * route.shards))
            noted = [None if step is None else Noted(step.group, (index, bucket, place), log, works)
                     for place, step in enumerate(steps)]
            for place, step in enumerate(noted):
                if step is not None:
                    places.setdefault(step.group, set()).add(place)
            sums.setdefault(index, []).append(Collective(noted, communicator))
    lane = Lane(Queues() if queued else None, early=all(len(each) == 1 for each in places.values()))

    def some_arrive() -> None:
        for work in works:
            work.over = work.over or chance.random() < 0.3
        lane.poll()

    if overlap:
        for index, _ in owned:
            for each in sums[index]:
                lane.add(each)
                some_arrive()
    for index, _ in owned:
        if not overlap:
            for each in sums[index]:
                lane.add(each)
                some_arrive()
        lane.finish(sums[index][-1])
    return log


@examples(200)
@given(layouts(), st.booleans(), st.booleans(), st.integers(0, 2**32))
def test_all_members_of_a_group_begin_the_same_in_the_same_order(drawn: tuple[Layout, bool], overlap: bool,
                                                                 queued: bool, seed: int) -> None:
    layout, _ = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding.dist, "get_backend", lambda group: BACKEND_NAME)
        patch.setattr(sharding.dist, "get_world_size", lambda group: len(layout.groups[group].ranks))
        ranks = sorted({rank for reduction in layout.reductions for rank in reduction.owners})
        logs = {rank: begun(layout, rank, overlap, queued, random.Random(seed + rank)) for rank in ranks}
    for index, group in enumerate(layout.groups):
        orders = {rank: logs[rank].get(index, []) for rank in group.ranks if rank in logs}
        first = next(iter(orders.values()), [])
        names = [[name[:2] for name in order] for order in orders.values()]
        assert all(order == [name[:2] for name in first] for order in names), f"{group}: {orders}"
