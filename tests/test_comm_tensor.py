"""Collectives of tensor-parallel ranks against sums and joins computed in one process."""

import pytest
import torch

from holmes_hpc.comm.groups import connect
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.comm.tensor import TensorExchange
from holmes_hpc.values import Group
from tests.forked import run_ranks
from tests.tiny_plans import tiny_plan

SHAPE = (2, 6, 5)


def mine(rank, dtype=torch.float32):
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(rank)).to(dtype)


def exchange_of(given, ranks):
    plan = tiny_plan(given.world_size, [Group("tensor", ranks, "local")])
    communicator = connect(given.store, given.rank, given.world_size, plan, NodeNetworks.local(), start_timeout=20,
                           train_timeout=10)
    return TensorExchange(communicator, 1) if given.rank in ranks else None


def all_of(given, ranks, dtype):
    exchange = exchange_of(given, ranks)
    if exchange is None:
        return None
    x = mine(given.rank, dtype)
    before = x.clone()
    results = exchange.sum(x), exchange.maximum(x), exchange.gather(x, 1), exchange.scatter_sum(x, 1)
    assert torch.equal(x, before), "the exchange must leave its input alone"
    results += (exchange.gather(x.transpose(0, 1), 0),)
    return [result.float().numpy() for result in results]


@pytest.mark.parametrize(("ranks", "dtype"), [((0, 1, 2), torch.float32), ((2, 0), torch.float32),
                                              ((0, 1, 2), torch.bfloat16)])
def test_exchange(ranks, dtype):
    """A group whose ranks are not sorted keeps the plan's order, which is that of the shards."""
    found = run_ranks(3, all_of, ranks, dtype)
    each = [mine(rank, dtype) for rank in ranks]
    total = torch.stack(each).float().sum(0)
    exact = dtype is torch.float32
    for shard, rank in enumerate(ranks):
        added, largest, gathered, scattered, transposed = map(torch.from_numpy, found[rank])
        torch.testing.assert_close(added, total, rtol=1e-6 if exact else 2e-2, atol=1e-6 if exact else 2e-2)
        assert torch.equal(largest, torch.stack(each).amax(0).float())
        assert torch.equal(gathered, torch.cat(each, dim=1).float())
        assert torch.equal(transposed, torch.cat([x.transpose(0, 1) for x in each], dim=0).float())
        own = total.chunk(len(ranks), dim=1)[shard]
        if exact:
            torch.testing.assert_close(scattered, own, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(scattered, own.to(dtype).float()), "summed in float32, rounded once"
    for rank in set(range(3)) - set(ranks):
        assert found[rank] is None
