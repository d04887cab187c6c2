"""What ranks that own the same part of a model take to sum its gradients and to gather its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holmes_hpc.planner.cost.network import Traffic
from holmes_hpc.planner.layout.groups import GroupRules, two_levels
from holmes_hpc.planner.simulation.prices import network_cost
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Synchronization
from holmes_hpc.values.levels import GroupList, Sums, in_levels

_MANY_BYTES = 1e9
"""So many that latencies and rates can be told apart."""


@dataclass(frozen=True)
class Exchange:
    """Seconds for each byte of a rank's gradients, and seconds whatever their size; then those of parameters."""

    sum_a_byte: float = 0.0
    sum_latency: float = 0.0
    gather_a_byte: float = 0.0
    gather_latency: float = 0.0


NONE = Exchange()


class Exchanges:
    """Prices exchanges on the machine of a task, each once."""

    def __init__(self, task: Task, rules: GroupRules, synchronization: Synchronization) -> None:
        self.task, self.rules, self.synchronization = task, rules, synchronization
        self.network = network_cost(task)
        everyone = range(task.cluster.world_size)
        self.one_network = task.cluster.shared_network(everyone) if rules.one_network else None
        self._known: dict[tuple[tuple[int, ...], int], Exchange] = {}

    def of(self, owners: tuple[int, ...], tensor: int) -> Exchange:
        """Return what `owners`, one of each `tensor` ranks that hold a stage, take for theirs beside all others."""
        if len(owners) < 2:
            return NONE
        key = owners, tensor
        if key not in self._known:
            inside, across = two_levels(self.task.cluster, owners, self.rules)
            self._known[key] = self._priced(inside, across, tensor, by_parts=bool(across))
        return self._known[key]

    def in_pairs(self, first: Sequence[int], last: Sequence[int], tensor: int) -> Exchange:
        """Return the same for Megatron's tied table: the data groups of both ends, then each pair of both."""
        return self._priced([list(first), list(last)], [list(pair) for pair in zip(first, last, strict=True)], tensor,
                            by_parts=False)

    def _priced(self, inside: list[list[int]], across: list[list[int]], tensor: int, *, by_parts: bool) -> Exchange:
        found, owners = GroupList(), tuple(rank for ranks in inside for rank in ranks)
        inner, outer = (tuple(self._add(found, ranks) for ranks in groups) for groups in (inside, across))
        reduction = in_levels((), owners, Sums(inner, outer, by_parts), found, sharded=self.synchronization.sharded,
                              slot_of=self._slot_of if self.task.machine.uses_gloo else None)
        summed = _rates(lambda size: self.network.summed(reduction, found.groups, size), tensor)
        if not reduction.gathers:
            return Exchange(*summed)
        return Exchange(*summed, *_rates(lambda size: self.network.gathered(reduction, found.groups, size), tensor))

    def _slot_of(self, rank: int) -> str:
        return self.task.cluster.node_of(rank).slot

    def _add(self, found: GroupList, ranks: Sequence[int]) -> int:
        return found.add("data", ranks, lambda: self.one_network or self.task.cluster.shared_network(ranks))


def _rates(price: Callable[[float], Traffic], tensor: int) -> tuple[float, float]:
    """Return seconds a byte and latency; all tensor-parallel ranks of a stage exchange at once and share its NICs."""
    latency, whole = price(0.0).seconds, price(_MANY_BYTES)
    alone = whole.seconds - latency
    return max([alone, *(tensor * busy for busy in whole.busy.values())]) / _MANY_BYTES, latency
