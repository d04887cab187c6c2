"""Reduce-scatter and all-gather of flat buffers between the owners of a reduction, as steps.

Gloo's own reduce-scatter is an all-reduce, so on gloo it is an all-to-all and a local sum, in the order of the
group's ranks and so with the same bits every time. The plan's levels say whether it goes inside the nodes and then
across.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from holmes_hpc.comm.backends import abilities_of
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.reduce import AllReduceStep, whole_sum_steps
from holmes_hpc.comm.scratch import Loan, Scratch
from holmes_hpc.comm.stepwise import Step
from holmes_hpc.values import Level, Operation, Reduction

_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class Route:
    """How this rank takes part in the levels of a reduction.

    `shards`: into how many equal parts a buffer is cut, 1 where it is summed whole. `position`: which of them is this
    rank's, None when it has none (its copy has more ranks than shards). `counts`: whether this rank speaks for its
    shard where every shard is to be counted once.

    Where the owners share the optimizer's state, the scatters of the plan's levels leave in each rank of a copy the sum
    of its shard, inside the nodes first where there are two; an all-reduce joins the copies. Ranks at one position
    update the shard alike, and each copy gathers inside itself.
    """

    def __init__(self, reduction: Reduction, communicator: Communicator, scratch: Scratch) -> None:
        self._reduction, self._communicator, self._scratch = reduction, communicator, scratch
        self.divided, self.shards = reduction.divides, reduction.shards
        self.position: int | None = 0
        self.counts = reduction.owners[0] == communicator.rank
        if self.divided:
            self._copy = self._own(reduction.copies)[0]
            place = communicator.plan.groups[self._copy].ranks.index(communicator.rank)
            self.position = place if place < self.shards else None
            self.counts = self.position is not None and self._copy in reduction.norm
            self._scatters = self._own_at(reduction.levels, Operation.REDUCE_SCATTER)
            self._joins = self._own_at(reduction.levels, Operation.ALL_REDUCE)
            self._gathers = self._own_at(reduction.gathers, Operation.ALL_GATHER)

    @property
    def gathers(self) -> bool:
        """Whether this rank gathers shards that other ranks updated."""
        return self.divided and self._communicator.has_group(self._copy)

    def writes(self, number: int) -> bool:
        """Return whether this rank saves its shard of bucket `number`: of ranks that hold the same one, only one does.

        The buckets are dealt to these ranks in turn.
        """
        if not self.divided:
            owners = self._reduction.owners
            return owners[number % len(owners)] == self._communicator.rank
        alike = self._reduction.copies
        return self.position is not None and alike[number % len(alike)] == self._copy

    def shard(self, buffer: Tensor) -> Tensor:
        """Return this rank's part of a buffer, a view; empty when it has none."""
        size = buffer.numel() // self.shards
        return buffer[:0] if self.position is None else buffer[self.position * size:(self.position + 1) * size]

    def reduce_steps(self, buffer: Tensor) -> list[Step | None]:
        """Return the steps that leave the sum over all owners in this rank's shard; the rest is undefined after.

        buffer: flat, contiguous, its length a multiple of `shards`.
        """
        if not self.divided:
            return whole_sum_steps(buffer, self._reduction, self._communicator)
        shard = self.shard(buffer)
        steps: list[Step | None] = [None, None]
        if self._communicator.has_group(self._copy):
            steps = self._scatter_steps(buffer, shard)
        if self.position is not None:
            steps += [AllReduceStep(self._communicator.group(join), shard, "summing gradients between fabrics")
                      for join in self._joins if self._communicator.has_group(join)]
        return steps

    def gather_steps(self, buffer: Tensor) -> list[Step]:
        """Return the steps that fill a buffer with the shards of all ranks of the copy."""
        if not self.gathers:
            return []
        groups = [self._communicator.group(index) for index in self._gathers]
        if len(groups) == 2:
            return self._gather_in_two(buffer, *groups)
        ranks = self._ranks(self._gathers[0])
        if self.shards == len(ranks):
            return [_gather(groups[0], buffer, self.shard(buffer))]
        return [_Broadcasts(groups[0], buffer, ranks[:self.shards])]

    def _scatter_steps(self, buffer: Tensor, shard: Tensor) -> list[Step | None]:
        groups = [self._communicator.group(index) for index in self._scatters]
        if len(groups) == 2:
            return self._scatter_in_two(buffer, shard, *groups)
        group, ranks = groups[0], len(self._ranks(self._scatters[0]))
        if abilities_of(group).divides and self.shards == ranks:
            return [_ReduceScatter(group, buffer, shard), None]
        if self.shards == ranks == 2:
            return [_PairSum(group, buffer, shard, self._scratch), None]
        return [_AllToAllSum(group, buffer, shard, self.shards, self._scratch), None]

    def _scatter_in_two(self, buffer: Tensor, shard: Tensor, inside: ProcessGroup,
                        across: ProcessGroup) -> list[Step | None]:
        local, nodes = (len(self._ranks(index)) for index in self._scatters)
        part = Loan(self._scratch, buffer.numel() // local, buffer.dtype)
        return [_AllToAllSum(inside, buffer, part, local, self._scratch, interleaved=nodes),
                _PairSum(across, part, shard, self._scratch) if nodes == 2 else
                _AllToAllSum(across, part, shard, nodes, self._scratch)]

    def _gather_in_two(self, buffer: Tensor, across: ProcessGroup, inside: ProcessGroup) -> list[Step]:
        nodes, local = (len(self._ranks(index)) for index in self._gathers)
        part = Loan(self._scratch, buffer.numel() // local, buffer.dtype)
        return [_gather(across, part, self.shard(buffer)), _GatherInside(inside, nodes, buffer, part, self._scratch)]

    def _own_at(self, levels: Sequence[Level], operation: Operation) -> tuple[int, ...]:
        """Return this rank's group at each level that does so, in their order."""
        return tuple(own for level in levels if level.operation is operation for own in self._own(level.groups))

    def _own(self, indices: Sequence[int]) -> list[int]:
        return [index for index in indices if self._communicator.rank in self._ranks(index)]

    def _ranks(self, index: int) -> tuple[int, ...]:
        return self._communicator.plan.groups[index].ranks


class _AllToAllSum:
    """Sends part j of `source` to rank j and adds up what arrives, in the order of the ranks, into `result`.

    Ranks from `parts` on receive nothing. `interleaved` = n: part j is every parts-th of n * parts equal pieces, from
    the j-th on.
    """

    doing = "summing gradients"

    def __init__(self, group: ProcessGroup, source: Tensor | Loan, result: Tensor | Loan, parts: int,
                 scratch: Scratch, *, interleaved: int = 0) -> None:
        self.group = group
        self._source, self._result, self._parts, self._scratch = source, result, parts, scratch
        self._interleaved = interleaved
        self._ranks = dist.get_world_size(group)

    def begin(self) -> list[Work]:
        source = _tensor(self._source)
        size = source.numel() // self._parts
        self._sent = source
        if self._interleaved:
            self._sent = self._scratch.take(source.numel(), source.dtype)
            pieces = source.view(self._interleaved, self._parts, -1).transpose(0, 1)
            self._sent.view(self._parts, self._interleaved, -1).copy_(pieces)
        receives = dist.get_rank(self.group) < self._parts
        self._arriving = self._scratch.take(size * self._ranks if receives else 0, source.dtype)
        splits: dict[str, list[int]] = {} if self._parts == self._ranks else {
            "input_split_sizes": [size if j < self._parts else 0 for j in range(self._ranks)],
            "output_split_sizes": [size if receives else 0] * self._ranks,
        }
        return [_required(dist.all_to_all_single(self._arriving, self._sent, group=self.group, async_op=True,
                                                 **splits))]  # type: ignore[arg-type]

    def end(self) -> None:
        if self._arriving.numel():
            parts, result = self._arriving.view(self._ranks, -1), _tensor(self._result)
            torch.sum(parts, 0, out=result)
        self._scratch.give(self._arriving)
        if self._interleaved:
            self._scratch.give(self._sent)
        if isinstance(self._source, Loan):
            self._source.give_back()


class _PairSum:
    """The same between two ranks of gloo: each sends the other's half from where it lies, and copies nothing."""

    doing = "summing gradients"

    def __init__(self, group: ProcessGroup, source: Tensor | Loan, result: Tensor | Loan, scratch: Scratch) -> None:
        self.group, self._source, self._result, self._scratch = group, source, result, scratch

    def begin(self) -> list[Work]:
        halves = _tensor(self._source).view(2, -1)
        rank = dist.get_rank(self.group)
        self._own = halves[rank]
        self._arriving = self._scratch.take(self._own.numel(), self._own.dtype)
        return [_swap(self.group, halves[1 - rank], self._arriving)]

    def end(self) -> None:
        torch.add(self._own, self._arriving, out=_tensor(self._result))
        self._scratch.give(self._arriving)
        if isinstance(self._source, Loan):
            self._source.give_back()


class _ReduceScatter:
    """The backend's own reduce-scatter."""

    doing = "summing gradients"

    def __init__(self, group: ProcessGroup, buffer: Tensor, shard: Tensor) -> None:
        self.group, self._buffer, self._shard = group, buffer, shard

    def begin(self) -> list[Work]:
        return [_required(_reduce_scatter(self._shard, self._buffer, group=self.group, async_op=True))]

    def end(self) -> None:
        return


class _AllGather:
    """Gathers equal shards; `shard` may be this rank's part of `buffer`."""

    doing = "gathering parameters"

    def __init__(self, group: ProcessGroup, buffer: Tensor | Loan, shard: Tensor | Loan) -> None:
        self.group, self._buffer, self._shard = group, buffer, shard

    def begin(self) -> list[Work]:
        return [_required(_all_gather(_tensor(self._buffer), _tensor(self._shard), group=self.group, async_op=True))]

    def end(self) -> None:
        return


class _PairGather:
    """The same between two ranks of gloo, whose own gather would take a fresh buffer and copy it."""

    doing = "gathering parameters"

    def __init__(self, group: ProcessGroup, buffer: Tensor | Loan, shard: Tensor | Loan) -> None:
        self.group, self._buffer, self._shard = group, buffer, shard

    def begin(self) -> list[Work]:
        halves, shard = _tensor(self._buffer).view(2, -1), _tensor(self._shard)
        rank = dist.get_rank(self.group)
        if halves[rank].data_ptr() != shard.data_ptr():
            halves[rank].copy_(shard)
        return [_swap(self.group, shard, halves[1 - rank])]

    def end(self) -> None:
        return


class _Broadcasts:
    """The first ranks send a part of the buffer each to all others of the group."""

    doing = "gathering parameters"

    def __init__(self, group: ProcessGroup, buffer: Tensor, sources: tuple[int, ...]) -> None:
        self.group, self._sources, self._parts = group, sources, buffer.view(len(sources), -1)

    def begin(self) -> list[Work]:
        return [_required(dist.broadcast(part, src=source, group=self.group, async_op=True))
                for part, source in zip(self._parts, self._sources, strict=True)]

    def end(self) -> None:
        return


class _GatherInside(_AllGather):
    """The second level of a gather: every rank of a node has one part of each node's piece."""

    def __init__(self, group: ProcessGroup, nodes: int, buffer: Tensor, part: Loan, scratch: Scratch) -> None:
        self._gathered, self._part = Loan(scratch, buffer.numel(), buffer.dtype), part
        super().__init__(group, self._gathered, part)
        self._target, self._nodes = buffer, nodes

    def end(self) -> None:
        ranks = dist.get_world_size(self.group)
        pieces = self._gathered.tensor.view(ranks, self._nodes, -1).transpose(0, 1)
        self._target.view(self._nodes, ranks, -1).copy_(pieces)
        self._gathered.give_back()
        self._part.give_back()


def _gather(group: ProcessGroup, buffer: Tensor | Loan, shard: Tensor | Loan) -> Step:
    pair = abilities_of(group).swaps_pairs and dist.get_world_size(group) == 2
    return (_PairGather if pair else _AllGather)(group, buffer, shard)


def _swap(group: ProcessGroup, outgoing: Tensor, incoming: Tensor) -> Work:
    """Begin to send a tensor to the other rank of a pair and to receive one as long: an all-to-all without own part."""
    own, length = dist.get_rank(group), outgoing.numel()
    splits = [0 if rank == own else length for rank in range(2)]
    return _required(dist.all_to_all_single(incoming, outgoing, output_split_sizes=splits, input_split_sizes=splits,
                                            group=group, async_op=True))


def _tensor(source: Tensor | Loan) -> Tensor:
    return source.tensor if isinstance(source, Loan) else source


def _required(work: Work | None) -> Work:
    if work is None:
        raise RuntimeError("this rank is not in the process group of its collective")
    return work
