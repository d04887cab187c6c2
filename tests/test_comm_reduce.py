"""Sums in one and two levels against sums computed in one process."""

import pytest
import torch

from holmes_hpc.comm.groups import connect
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.comm.reduce import GradientSum, all_reduce_scalars, split
from holmes_hpc.values import Group
from tests.forked import run_ranks
from tests.tiny_plans import tiny_plan, tiny_reduction


def data(*ranks):
    return Group("data", ranks, "ib")


def outer(*ranks):
    return Group("data", ranks, "ethernet")


# groups from index 1 on, owners, inner, outer, sharded
CASES = {
    "one level": ([data(0, 1, 2, 3)], (0, 1, 2, 3), (1,), (), False),
    "one owner": ([data(2)], (2,), (1,), (), False),
    "two level": ([data(0, 2), data(1, 3), outer(0, 1), outer(2, 3)], (0, 1, 2, 3), (1, 2), (3, 4), True),
    "unsorted": ([data(2, 0), data(1, 3), outer(2, 1), outer(0, 3)], (0, 1, 2, 3), (1, 2), (3, 4), True),
    "three beside one": ([data(0, 1, 2), data(3), outer(0, 3)], (0, 1, 2, 3), (1, 2), (3,), True),
    "three beside two": (
        [data(0, 1, 2), data(3, 4), outer(0, 3), outer(1, 4)], (0, 1, 2, 3, 4), (1, 2), (3, 4), True,
    ),
    "embedding": ([data(0, 1), data(2, 3), outer(0, 2), outer(1, 3)], (0, 1, 2, 3), (1, 2), (3, 4), False),
    "single ranks": ([data(0), data(3), outer(0, 3)], (0, 3), (1, 2), (3,), True),
    "one outer group": ([data(0, 1), data(2, 3), outer(0, 1, 2, 3)], (0, 1, 2, 3), (), (3,), False),
}
LENGTHS = (1001, 3, 1, 2)


def gradients(rank, length):
    return torch.randn(length, generator=torch.Generator().manual_seed(1000 * rank + length))


def summed(given, groups, reduction, asynchronous):
    communicator = connect(
        given.store, given.rank, given.world_size, tiny_plan(given.world_size, groups, [reduction]),
        NodeNetworks.local(), start_timeout=20, train_timeout=10,
    )
    if given.rank not in reduction.owners:
        return None
    flats = [gradients(given.rank, length) for length in LENGTHS]
    if asynchronous:
        for pending in [GradientSum(flat, reduction, communicator) for flat in flats]:
            pending.wait()
    else:
        for flat in flats:
            GradientSum(flat, reduction, communicator).wait()
    return [flat.tolist() for flat in flats]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_owner_gets_the_sum(name, asynchronous):
    groups, owners, inner, outer_groups, sharded = CASES[name]
    reduction, _ = tiny_reduction(groups, owners, inner, outer_groups, sharded)
    world_size = max(4, *(rank + 1 for rank in owners))
    results = run_ranks(world_size, summed, groups, reduction, asynchronous)
    for rank in range(world_size):
        assert (results[rank] is not None) == (rank in owners)
    for position, length in enumerate(LENGTHS):
        expected = sum(gradients(rank, length).double() for rank in owners)
        found = [results[rank][position] for rank in owners]
        assert torch.allclose(torch.tensor(found[0]).double(), expected, atol=1e-6)
        assert all(each == found[0] for each in found), "all owners hold the same bits"


def test_repeating_gives_the_same_bits():
    groups, owners, inner, outer_groups, sharded = CASES["three beside two"]
    reduction, _ = tiny_reduction(groups, owners, inner, outer_groups, sharded)
    assert run_ranks(5, summed, groups, reduction, False) == run_ranks(5, summed, groups, reduction, True)


def test_last_part_takes_the_remainder():
    assert [part.tolist() for part in split(torch.arange(7), 3)] == [[0, 1], [2, 3], [4, 5, 6]]
    assert [part.numel() for part in split(torch.arange(2), 3)] == [0, 0, 2]


def left_out(given):
    groups = [data(0, 1), data(2), outer(0, 2)]
    reduction, _ = tiny_reduction(groups, (0, 1, 2), (1, 2), (3,))
    communicator = connect(
        given.store, given.rank, 3, tiny_plan(3, groups), NodeNetworks.local(),
        start_timeout=20, train_timeout=5,
    )
    if given.rank == 1:
        with pytest.raises(ValueError, match="rank 1 is in no outer group"):
            GradientSum(torch.ones(4), reduction, communicator).wait()
        with pytest.raises(ValueError, match="flat contiguous"):
            GradientSum(torch.ones(4, 4), reduction, communicator).wait()
        return None
    flat = torch.ones(4)
    GradientSum(flat, reduction, communicator).wait()
    return flat.tolist()


def test_owner_outside_the_outer_groups_is_refused():
    assert run_ranks(3, left_out)[1] is None


def scalars(given):
    communicator = connect(given.store, given.rank, 3, tiny_plan(3, []), NodeNetworks.local())
    total = torch.tensor([1.0, given.rank], dtype=torch.float64)
    all_reduce_scalars(total, communicator.world)
    largest = torch.tensor([float(given.rank)])
    all_reduce_scalars(largest, communicator.world, communicator, torch.distributed.ReduceOp.MAX)
    return total.tolist(), largest.item()


def test_scalars():
    assert run_ranks(3, scalars) == [([3.0, 3.0], 2.0)] * 3
