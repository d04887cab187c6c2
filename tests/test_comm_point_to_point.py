"""Messages arrive by tag whatever the order, and both directions may be in flight."""

import contextlib
import dataclasses
import time

import pytest
import torch

from holmes_hpc.comm.gloo import GlooBackend
from holmes_hpc.comm.groups import connect
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.comm.point_to_point import Transfers
from holmes_hpc.errors import NetworkError
from holmes_hpc.values import Group
from tests.forked import run_ranks
from tests.tiny_plans import tiny_plan

CHAIN = tiny_plan(4, [Group("pipeline", (rank, rank + 1), "ethernet") for rank in range(3)])
RING = tiny_plan(4, [Group("pipeline", (0, 1, 2, 3), "ethernet")])
MESSAGES = 6
# Larger than the socket buffers, so that a send cannot end before its receive.
SHAPE = (512, 1024)


def ready(given, plan, train_timeout=20.0):
    communicator = connect(
        given.store, given.rank, given.world_size, plan, NodeNetworks.local(),
        start_timeout=20, train_timeout=train_timeout,
    )
    return communicator, Transfers(communicator)


def value(source, destination, tag):
    return 100.0 * source + 10.0 * destination + tag


def neighbours(rank):
    return [peer for peer in (rank - 1, rank + 1) if 0 <= peer < 4]


def both_ways(given):
    """Send everything to both neighbours before receiving anything, each rank in another order."""
    communicator, transfers = ready(given, CHAIN)
    rank = given.rank
    mixed = torch.Generator().manual_seed(rank)
    messages = [(peer, tag) for peer in neighbours(rank) for tag in range(MESSAGES)]

    def shuffled():
        return [messages[i] for i in torch.randperm(len(messages), generator=mixed).tolist()]

    for peer, tag in shuffled():
        transfers.send(torch.full(SHAPE, value(rank, peer, tag)), communicator.edge(rank, peer), peer, tag)
        if tag % 2:
            transfers.post_receive(communicator.edge(rank, peer), peer, tag, SHAPE)
    for peer, tag in shuffled():
        if not tag % 2:
            transfers.post_receive(communicator.edge(rank, peer), peer, tag, SHAPE)
    wrong = 0
    for peer, tag in shuffled():
        received = transfers.receive(communicator.edge(rank, peer), peer, tag)
        wrong += int((received != value(peer, rank, tag)).sum())
    transfers.finish()
    return wrong


def test_order_of_posting_does_not_matter_and_both_directions_flow():
    assert run_ranks(4, both_ways) == [0, 0, 0, 0]


def among_four(given):
    """With tensor parallelism an edge has four ranks; peers are ranks of the world, not of the group."""
    plan = tiny_plan(5, [Group("pipeline", (4, 2, 1, 3), "ethernet")])
    communicator, transfers = ready(given, plan)
    rank = given.rank
    if rank == 0:
        return None
    peers = [peer for peer in (1, 2, 3, 4) if peer != rank]
    for peer in peers:
        transfers.post_receive(communicator.edge(rank, peer), peer, 7, (2, 3), torch.bfloat16)
        sent = torch.full((3, 2), value(rank, peer, 7), dtype=torch.bfloat16).T
        transfers.send(sent, communicator.edge(peer, rank), peer, 7)
    received = [transfers.receive(communicator.edge(rank, peer), peer, 7) for peer in peers]
    transfers.finish()
    assert all(each.dtype == torch.bfloat16 and each.shape == (2, 3) for each in received)
    return [each[1, 2].item() for each in received]


def test_peers_are_ranks_of_the_world():
    results = run_ranks(5, among_four)
    for rank in (1, 2, 3, 4):
        peers = [peer for peer in (1, 2, 3, 4) if peer != rank]
        exact = [torch.tensor(value(peer, rank, 7)).bfloat16().item() for peer in peers]
        assert results[rank] == exact


def mistakes(given):
    communicator, transfers = ready(given, RING, train_timeout=0.6)
    if given.rank > 0:
        given.kept = communicator, transfers
        return None
    edge = communicator.edge(0, 1)
    with pytest.raises(ValueError, match="message 3 from rank 1 was never posted"):
        transfers.receive(edge, 1, 3)
    transfers.post_receive(edge, 1, 3, (4,))
    with pytest.raises(ValueError, match="already awaited"):
        transfers.post_receive(edge, 1, 3, (4,))
    began = time.monotonic()
    with pytest.raises(NetworkError) as caught:
        transfers.receive(edge, 1, 3)
    return time.monotonic() - began, str(caught.value)


def test_message_that_does_not_come_is_named_after_the_timeout():
    seconds, message = run_ranks(4, mistakes)[0]
    assert seconds > 0.3, "by the timeout of 0.6 s: the peers stay"
    assert "waiting for message 3 from rank 1" in message
    assert "the pipeline group of ranks 0 on ib/0, 1 on roce/0" in message


def unreceived(given):
    communicator, transfers = ready(given, CHAIN, train_timeout=0.6)
    if given.rank != 0:
        given.kept = communicator, transfers
        return None
    transfers.send(torch.zeros(SHAPE), communicator.edge(0, 1), 1, 5)
    with pytest.raises(NetworkError, match="sending message 5 to rank 1"):
        transfers.finish()
    return "named"


def test_send_that_nobody_receives_is_named():
    assert run_ranks(4, unreceived)[0] == "named"


def both_ways_on_two_groups(given):
    # As on NCCL, where each direction of an edge has a group of its own.
    GlooBackend.abilities = dataclasses.replace(GlooBackend.abilities, has_tags=False)
    communicator, transfers = ready(given, CHAIN)
    carriers = []
    for peer in neighbours(given.rank):
        edge = communicator.edge(given.rank, peer)
        forward = communicator.towards(edge, *sorted((given.rank, peer)))
        backward = communicator.towards(edge, *sorted((given.rank, peer), reverse=True))
        carriers.append(forward is edge and backward is not edge)
        transfers.send(torch.full((4,), value(given.rank, peer, 1)), edge, peer, 1)
        transfers.post_receive(edge, peer, 1, (4,))
    received = []
    for peer in neighbours(given.rank):
        received.append(transfers.receive(communicator.edge(given.rank, peer), peer, 1)[0].item())
    transfers.finish()
    named = ""
    if given.rank < 2:
        named = communicator.describe(communicator.towards(communicator.edge(0, 1), 1, 0))
    return all(carriers), received, named


def test_each_direction_may_have_its_own_group():
    results = run_ranks(4, both_ways_on_two_groups)
    assert results[0][2] == results[1][2]
    assert "pipeline group of ranks 0 on ib/0, 1 on roce/0" in results[0][2]
    for rank, (carriers, received, _) in enumerate(results):
        assert carriers
        assert received == [value(peer, rank, 1) for peer in neighbours(rank)]


class OverSoon:
    """A send that is over once it is asked for the second time."""

    def __init__(self):
        self.asked = 0

    def is_completed(self):
        self.asked += 1
        return self.asked > 1


class NoNetwork:
    """What `Transfers` needs of a communicator; it counts what was waited for."""

    rank, waited = 0, 0

    def towards(self, group, source, destination):
        return group

    def naming(self, group, doing):
        return contextlib.nullcontext()

    def wait(self, work, group, doing):
        self.waited += 1


def test_what_was_received_is_not_kept_until_the_end_of_the_step(monkeypatch):
    monkeypatch.setattr(torch.distributed, "isend", lambda *message, **given: OverSoon())
    network = NoNetwork()
    transfers = Transfers(network)
    tensors = [torch.zeros(3) for _ in range(10)]
    kept = []
    for tag, tensor in enumerate(tensors):
        transfers.send(tensor, None, 1, tag)
        kept.append(len(transfers._sends))
    assert max(kept) <= 5
    transfers.finish()
    assert network.waited == len(tensors)
