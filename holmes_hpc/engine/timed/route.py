"""How a timed rank exchanges buckets: over the plan's groups on their networks, as many bytes as a ring of NCCL sends.

The rule is that of the simulator (`planner/cost/network.py`): a ring over R ranks passes (R - 1) / R of a buffer
through every rank, and so through every node's NICs, when it scatters a sum or gathers; an all-reduce does both. What
the links inside nodes take goes on beside that, so a collective lasts at least so long: that part is a wait.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from holmes_hpc.comm.groups import Communicator
from holmes_hpc.comm.reduce import AllReduceStep, whole_sum_steps
from holmes_hpc.comm.scratch import Scratch
from holmes_hpc.comm.sharding import Route
from holmes_hpc.comm.stepwise import Step
from holmes_hpc.values import Reduction
from holmes_hpc.values.levels import LOCAL
from holmes_hpc.values.timed import TimedPrices


class Zeros:
    """Tensors of zeros that all lie over each other: memory for the longest one of each type, whatever is asked for."""

    def __init__(self) -> None:
        self._longest: dict[torch.dtype, Tensor] = {}

    def take(self, length: int, dtype: torch.dtype) -> Tensor:
        """Return a flat tensor."""
        if dtype not in self._longest or self._longest[dtype].numel() < length:
            self._longest[dtype] = torch.zeros(length, dtype=dtype)
        return self._longest[dtype][:length]


class TimedRoute(Route):
    """The route of a reduction in the wind tunnel. `total` is how many elements all buckets have, once they are cut."""

    def __init__(self, index: int, reduction: Reduction, communicator: Communicator, scratch: Scratch,
                 prices: TimedPrices, zeros: Zeros) -> None:
        super().__init__(reduction, communicator, scratch)
        self._zeros, self.total = zeros, 1
        self._least_sum = prices.dilated(prices.inside_sums.get(index, 0.0))
        self._least_gather = prices.dilated(prices.inside_gathers.get(index, 0.0))

    def reduce_steps(self, buffer: Tensor) -> list[Step | None]:
        """Return the steps of a sum: those of the real route, with the level inside nodes as a wait."""
        least = self._least_sum * buffer.numel() / self.total
        if not self.divided:
            steps = whole_sum_steps(buffer, self._reduction, self._communicator)
            return [self._timed_whole(step, least) for step in steps]
        found: list[Step | None] = [None]
        if self._communicator.has_group(self._copy):
            found = [self._exchange(self._scatters, buffer, least, "summing gradients")]
        if self.position is not None:
            found += [AllReduceStep(self._communicator.group(join), self.shard(buffer),
                                    "summing gradients between fabrics")
                      for join in self._joins if self._communicator.has_group(join)]
        return found

    def gather_steps(self, buffer: Tensor) -> list[Step]:
        """Return the step of a gather."""
        if not self.gathers:
            return []
        least = self._least_gather * buffer.numel() / self.total
        return [self._exchange(self._gathers, buffer, least, "gathering parameters")]

    def _timed_whole(self, step: Step | None, least_seconds: float) -> Step | None:
        if isinstance(step, AllReduceStep):
            if self._communicator.network(step.group) == LOCAL:
                return Inside(step.group, least_seconds, step.doing)
            return Paced(step, least_seconds)
        return step

    def _exchange(self, indices: Sequence[int], buffer: Tensor, least_seconds: float, doing: str) -> Step:
        """Return the step over this rank's group on a network; over one inside its node, if it has no other."""
        plan = self._communicator.plan
        across = [index for index in indices if plan.groups[index].network != LOCAL]
        if not across:
            return Inside(self._communicator.group(indices[-1]), least_seconds, doing)
        group, ring = plan.groups[across[0]].ranks, plan.groups[self._copy].ranks
        each = ring_elements(buffer.numel(), [plan.ranks[rank].slot for rank in ring],
                             [plan.ranks[rank].slot for rank in group])
        return Paced(Exchange(self._communicator.group(across[0]), each, buffer.dtype, self._zeros, doing),
                     least_seconds)


def ring_elements(length: int, ring: Sequence[str], group: Sequence[str]) -> int:
    """Return how much each rank of a group sends each other one, so that nodes send together what those of a ring do.

    `length` elements are scattered or gathered over a ring of ranks on these nodes; of their groups, which are alike
    and hold each of them once, one has its ranks on the nodes of `group`.
    """
    nodes = len(set(ring))
    apart = sum(count * (len(group) - count) for count in Counter(group).values()) * (len(ring) // len(group))
    return max(1, round(nodes * length * (len(ring) - 1) / len(ring) / apart)) if apart else 1


class Exchange:
    """Sends a piece of the same length from every rank of a group to every other one."""

    def __init__(self, group: ProcessGroup, each: int, dtype: torch.dtype, zeros: Zeros, doing: str) -> None:
        self.group, self.doing = group, doing
        self._each, self._dtype, self._zeros = each, dtype, zeros

    def begin(self) -> list[Work]:
        """Begin to send and receive."""
        own = dist.get_rank(self.group)
        splits = [0 if rank == own else self._each for rank in range(dist.get_world_size(self.group))]
        tensor = self._zeros.take(sum(splits), self._dtype)
        work = dist.all_to_all_single(tensor, tensor, output_split_sizes=splits, input_split_sizes=splits,
                                      group=self.group, async_op=True)
        return [] if work is None else [work]

    def end(self) -> None:
        """Nothing is left to do."""


class Paced:
    """A step that lasts at least so long, since links that are not emulated are busy with it."""

    def __init__(self, step: Step, least_seconds: float) -> None:
        self.group, self.doing, self._step, self._least = step.group, step.doing, step, least_seconds

    def begin(self) -> list[Work]:
        """Begin the step, and the wait."""
        return [*self._step.begin(), cast(Work, Deadline(time.perf_counter() + self._least))]

    def end(self) -> None:
        """End the step."""
        self._step.end()


class Inside:
    """A collective inside a node: its ranks meet, and then it takes its time."""

    def __init__(self, group: ProcessGroup, seconds: float, doing: str) -> None:
        self.group, self.doing, self._seconds = group, doing, seconds

    def begin(self) -> list[Work]:
        """Begin to meet."""
        work = dist.all_reduce(torch.zeros(1), group=self.group, async_op=True)
        return [] if work is None else [cast(Work, After(work, self._seconds))]

    def end(self) -> None:
        """Nothing is left to do."""


class Deadline:
    """Work that is over at a time of `time.perf_counter`."""

    def __init__(self, when: float) -> None:
        self._when = when

    def is_completed(self) -> bool:
        """Return whether it is over."""
        return time.perf_counter() >= self._when

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is."""
        time.sleep(max(0.0, self._when - time.perf_counter()))
        return True

    def get_future(self) -> Any:
        """Raise RuntimeError, as works do that have none."""
        raise RuntimeError("a deadline has no future")


class After:
    """Work that is over so many seconds after another one, as far as that was seen to end."""

    def __init__(self, work: Work, seconds: float) -> None:
        self._work, self._seconds, self._ended = work, seconds, 0.0
        work.get_future().add_done_callback(self._note)

    def is_completed(self) -> bool:
        """Return whether it is over."""
        return self._work.is_completed() and time.perf_counter() >= (self._ended or time.perf_counter()) + self._seconds

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is."""
        self._work.wait(*([] if timeout is None else [timeout]))
        ended = self._ended or time.perf_counter()
        time.sleep(max(0.0, ended + self._seconds - time.perf_counter()))
        return True

    def get_future(self) -> Any:
        """Raise RuntimeError, as works do that have none."""
        raise RuntimeError("a wait has no future")

    def _note(self, future: Any) -> None:
        self._ended = time.perf_counter()
