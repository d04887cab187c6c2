"""Every group of a plan is built, works, and is named when it cannot connect or breaks."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from holmes_hpc.comm.groups import connect
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.errors import ConfigurationError, NetworkError
from holmes_hpc.values import Group
from tests.forked import RankFailedError, run_ranks
from tests.tiny_plans import tiny_plan

FOUR = tiny_plan(
    4,
    [
        Group("tensor", (3,), "local"),
        Group("data", (2, 0), "ib"),
        Group("data", (1, 3), "roce"),
        Group("pipeline", (0, 1), "ethernet"),
        Group("pipeline", (2, 3), "ethernet"),
        Group("embedding", (0, 3), "ethernet"),
    ],
)


def connected(given, plan, **arguments):
    arguments = {"start_timeout": 20.0, "train_timeout": 10.0, **arguments}
    return connect(given.store, given.rank, given.world_size, plan, NodeNetworks.local(), **arguments)


def sums(given):
    steps = []
    communicator = connected(given, FOUR, progress=lambda *step: steps.append(step))
    seen = {}
    for index in range(len(FOUR.groups)):
        if communicator.has_group(index):
            value = torch.tensor([10.0**given.rank])
            dist.all_reduce(value, group=communicator.group(index))
            seen[index] = value.item()
    first = dist.get_global_rank(communicator.group(2), 0) if communicator.has_group(2) else None
    return seen, first, steps


def test_every_rank_has_its_groups_and_no_others():
    results = run_ranks(4, sums)
    assert [seen for seen, _, _ in results] == [
        {0: 1111.0, 2: 101.0, 4: 11.0, 6: 1001.0},
        {0: 1111.0, 3: 1010.0, 4: 11.0},
        {0: 1111.0, 2: 101.0, 5: 1100.0},
        {0: 1111.0, 3: 1010.0, 5: 1100.0, 6: 1001.0},
    ]
    assert [first for _, first, _ in results] == [2, None, 2, None], "the plan's order of ranks is kept"


def test_progress_counts_every_group_of_several_ranks():
    steps = run_ranks(4, sums)[1][2]
    assert [(done, total) for done, total, _ in steps] == [(done, 6) for done in range(7)]
    assert steps[3][2] == "data group of ranks 1, 3 over roce"


def lookups(given):
    communicator = connected(given, FOUR)
    texts = []
    calls = ((communicator.edge, (1, 2)), (communicator.group, (1,)), (communicator.group, (99,)))
    for call, arguments in calls:
        with pytest.raises(ValueError, match=f"rank {given.rank}") as caught:
            call(*arguments)
        texts.append(str(caught.value))
    own, peer = given.rank, given.rank ^ 1
    same = communicator.edge(own, peer) is communicator.edge(peer, own)
    index = 4 if given.rank < 2 else 5
    communicator.barrier()
    return same and communicator.edge(own, peer) is communicator.group(index), texts


def test_edges_are_found_in_either_order_and_wrong_ones_refused():
    for found, texts in run_ranks(4, lookups):
        assert found
        assert "no pipeline edge between ranks 1 and 2" in texts[0]
        assert "no process group 1: Group(kind='tensor', ranks=(3,)" in texts[1]
        assert "the plan has no such group" in texts[2]


def alone(given):
    communicator = connected(given, tiny_plan(1, [Group("data", (0,), "ib")]))
    communicator.barrier()
    return communicator.has_group(0), communicator.has_group(1)


def test_one_rank_builds_nothing_and_works():
    assert run_ranks(1, alone) == [(False, False)]


EIGHT = tiny_plan(
    8,
    [Group("data", (0, 2, 4, 6), "ib"), Group("data", (1, 3, 5, 7), "roce")]
    + [Group("data", (rank, rank + 1), "ethernet") for rank in range(0, 8, 2)]
    + [Group("pipeline", (rank, (rank + 3) % 8), "ethernet") for rank in range(8)]
    + [Group("pipeline", (rank, rank + 1, rank + 2, rank + 3), "ethernet") for rank in range(5)],
)


def connected_groups(given):
    communicator = connected(given, EIGHT, start_timeout=30.0)
    numbers = torch.full((1,), float(given.rank))
    dist.all_reduce(numbers, group=communicator.world)
    return sum(given.rank in group.ranks for group in EIGHT.groups), int(numbers)


def test_eight_ranks_start_twenty_groups_within_the_start_timeout():
    """Groups that wait for each other in a circle would not get there in any time."""
    outcomes = run_ranks(8, connected_groups)
    assert [total for _, total in outcomes] == [28] * 8
    assert sum(mine for mine, _ in outcomes) == sum(len(group.ranks) for group in EIGHT.groups)


def absent_peer(given):
    if given.rank == 3:
        plan = tiny_plan(4, FOUR.groups[1:3])
        connected(given, plan)
        return None
    with pytest.raises(NetworkError) as caught:
        connected(given, FOUR, start_timeout=1.0)
    return str(caught.value)


def test_group_that_cannot_connect_is_named():
    # Rank 3 never makes its second group, so rank 1 cannot; ranks 0 and 2 fail later, at their edges to those.
    messages = run_ranks(4, absent_peer)
    assert "rank 0 could not connect the pipeline group of ranks 0 on ib/0, 1 on roce/0" in messages[0]
    message = messages[1]
    assert "rank 1 could not connect the data group of ranks 1 on roce/0, 3 on roce/1 over roce" in message
    assert "interface lo here" in message
    assert "train.start_timeout_seconds" in message


def bad_interface(given):
    interfaces = {"local": "lo", "ethernet": "lo", "ib": "nosuch0", "roce": "lo"}
    networks = NodeNetworks(node="ib/0", label="ib", interfaces=interfaces)
    if given.rank == 1:
        networks = NodeNetworks.local()
    with pytest.raises(NetworkError) as caught:
        plan = tiny_plan(2, [Group("data", (0, 1), "ib")])
        connect(given.store, given.rank, 2, plan, networks, "gloo", start_timeout=1, train_timeout=1)
    return str(caught.value)


def test_missing_interface_is_named_by_the_rank_that_lacks_it():
    messages = run_ranks(2, bad_interface)
    assert "'nosuch0'" in messages[0]
    assert "cluster.partitions.ib.fabric_interface" in messages[0]
    assert "could not connect the data group of ranks 0 on ib/0, 1 on roce/0" in messages[1]


def silent_peer(given):
    communicator = connected(given, FOUR, train_timeout=0.6)
    if given.rank in (1, 3):
        given.kept = communicator
        return None
    began = time.monotonic()
    with pytest.raises(NetworkError) as caught:
        if given.rank == 0:
            communicator.barrier()
        else:
            work = dist.all_reduce(torch.zeros(1), group=communicator.world, async_op=True)
            communicator.wait(work, communicator.world, "waiting for nothing")
    return time.monotonic() - began, str(caught.value)


def test_training_timeout_holds_after_the_start():
    results = run_ranks(4, silent_peer)
    for rank in (0, 2):
        seconds, message = results[rank]
        assert seconds > 0.3, "by the timeout of 0.6 s: the peers stay"
        assert "the world group of ranks 0 on ib/0, 1 on roce/0" in message
        assert "train.timeout_seconds (now 0.6)" in message


def killed_peer(given):
    communicator = connected(given, FOUR, train_timeout=2.0)
    if given.rank == 1:
        os._exit(9)
    with pytest.raises(NetworkError) as caught:
        for _ in range(2):
            communicator.barrier()
    return str(caught.value)


def test_dead_peer_breaks_the_group():
    outcomes = run_ranks(4, killed_peer, check=False)
    assert outcomes[1].error == "died"
    ended = [outcomes[rank].value for rank in (0, 2, 3)]
    assert all("the world group of ranks 0 on ib/0, 1 on roce/0" in message for message in ended)
    assert any("by peer" in message for message in ended), "its neighbours notice before the timeout"


def test_wrong_calls_are_refused_before_anything_is_built():
    with pytest.raises(ConfigurationError, match="valid: gloo, nccl"):
        connect(None, 0, 4, FOUR, NodeNetworks.local(), "mpi")
    with pytest.raises(ValueError, match="for 4 ranks"):
        connect(None, 0, 2, FOUR, NodeNetworks.local())


def fail_on_one(given):
    if given.rank == 1:
        raise KeyError("broken")
    time.sleep(60)


def test_helper_reports_the_failed_rank_and_ends_the_others():
    began = time.monotonic()
    with pytest.raises(RankFailedError, match="rank 1: KeyError"):
        run_ranks(2, fail_on_one)
    assert time.monotonic() - began < 30.0, "it does not wait for the one that sleeps"
