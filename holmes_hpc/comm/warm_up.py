"""The first operations of a new group: they prove that it works, and set up what the training will use."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from holmes_hpc.comm.backends import Backend
from holmes_hpc.values import Operation, Plan

_FLOAT_BYTES = 4
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter_sum = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def exchanges_parts(plan: Plan, index: int) -> bool:
    """Return whether a group's ranks exchange parts all to all, and not by the backend's own reduce-scatter.

    They do where a copy has more ranks than shards, or scatters in two levels (`comm.sharding`).
    """
    for reduction in plan.reductions if index else ():
        scatters = [level for level in reduction.levels if level.operation is Operation.REDUCE_SCATTER]
        if reduction.divides and any(index in level.groups for level in scatters):
            unlike = len(plan.groups[index].ranks) != reduction.shards
            if unlike or len(scatters) > 1:
                return True
    return False


def warm_up(group: ProcessGroup, backend: Backend, largest_bytes: int, timeout: timedelta, *, exchanges: bool = True
            ) -> None:
    """Use a group once; where a backend connects at first use, with every kind of collective, small and large.

    All-to-all only where it `exchanges` parts so: it connects every rank with every other one over all channels, which
    took 3.3 GB of each of eight GPUs of a node (NVIDIA/nccl issue 1685).

    NCCL chooses the algorithm by the size and connects each at its first use, on the host (NCCL 2.22 and later). In the
    middle of a step that holds a rank which has not yet sent what another one waits for, and both stand for ever. With
    a timeout the CPU waits on every backend, so a group that cannot connect shows here.
    """
    size = dist.get_world_size(group)
    for elements in (1, largest_bytes // _FLOAT_BYTES // size) if backend.abilities.connects_late else (1,):
        if elements == 0:
            continue
        part = torch.zeros(elements, device=backend.device)
        whole = torch.zeros(elements * size, device=backend.device)
        _wait(dist.all_reduce(whole, group=group, async_op=True), timeout)
        if backend.abilities.connects_late:
            _wait(_scatter_sum(part, whole, group=group, async_op=True), timeout)
            _wait(_gather(whole, part, group=group, async_op=True), timeout)
            if exchanges:
                _wait(dist.all_to_all_single(torch.empty_like(whole), whole, group=group, async_op=True), timeout)
            for root in dist.get_process_group_ranks(group):
                _wait(dist.broadcast(part, src=root, group=group, async_op=True), timeout)


def warm_up_edge(group: ProcessGroup, reverse: ProcessGroup, ranks: Sequence[int], rank: int, device: torch.device,
                 timeout: timedelta) -> None:
    """Send one element between all members, both ways; all receives first, since a send ends only with its receive.

    Pairs go in one order on all members, which matters where tags are ignored. `reverse` carries what goes from a later
    rank of the group to an earlier one.
    """
    works = []
    for source, destination in itertools.permutations(sorted(ranks), 2):
        carrier = group if ranks.index(source) < ranks.index(destination) else reverse
        tensor = torch.zeros(1, device=device)
        if rank == destination:
            works.append((tensor, dist.irecv(tensor, src=source, group=carrier)))
        elif rank == source:
            works.append((tensor, dist.isend(tensor, dst=destination, group=carrier)))
    for _, work in works:
        _wait(work, timeout)


def _wait(work: Work | None, timeout: timedelta) -> None:
    if work is not None:
        work.wait(timeout)
