"""What the search asks about a stage before anything is simulated: a narrow interface, filled by the cost model."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from holmes_hpc.planner.cost.rank_memory import USABLE_FRACTION
from holmes_hpc.planner.cost.stages import ComputeCost
from holmes_hpc.planner.layout.node_kinds import Kind
from holmes_hpc.planner.layout.ownership import TOKEN_TABLE
from holmes_hpc.planner.simulation.prices import compute_cost, network_cost, stage_seconds
from holmes_hpc.planner.task import Task

_GIB = 2.0**30


class Held(NamedTuple):
    """Bytes on a rank: of what it holds alone, of the optimizer's state if nobody shared it, and of activations.

    `divided` is to be divided by the number of ranks that share it; `kept` is for each micro-batch in flight.
    """

    whole: float
    divided: float
    kept: float


@dataclass(frozen=True)
class Hop:
    """One message between two stages: its seconds, and the seconds that it occupies its node's NIC."""

    seconds: float
    node_seconds: float


class StageCosts(Protocol):
    """What stages on kinds of nodes cost. `tensor` is the tensor-parallel degree, `samples` the micro-batch size."""

    def layer_seconds(self, kind: Kind, tensor: int, samples: int) -> float:
        """Return forward and backward of one layer, exchange between tensor-parallel ranks included."""
        ...

    def end_seconds(self, kind: Kind, tensor: int, samples: int, *, first: bool, last: bool) -> float:
        """Return forward and backward of what the first and the last stage hold beside layers."""
        ...

    def layer_bytes(self, kind: Kind, tensor: int, samples: int) -> Held:
        """Return what one layer needs on a rank."""
        ...

    def end_bytes(self, kind: Kind, tensor: int, samples: int, *, first: bool, last: bool) -> Held:
        """Return what a stage needs beside layers: what its ends hold, and the largest passing tensors."""
        ...

    def free_bytes(self, kind: Kind) -> float:
        """Return the memory of a rank that states and activations may take."""
        ...

    def hop(self, before: Kind, after: Kind, samples: int) -> Hop:
        """Return the price of a micro-batch's activations from one node to another one, each way."""
        ...

    def layer_gradient_bytes(self) -> float:
        """Return the bytes of the gradients of one whole layer."""
        ...

    def table_gradient_bytes(self) -> float:
        """Return the bytes of the gradients of the token table, which are summed when all others are ready."""
        ...

    def tied_gradient_bytes(self) -> float:
        """Return those of the table that the first and the last stage both hold: nothing where it is not tied."""
        ...

    def sync_seconds_a_byte(self, kinds: tuple[Kind, ...], nodes: tuple[int, ...]) -> float:
        """Return seconds for each byte that every node sums with `nodes` nodes of each kind, NICs alone."""
        ...


def held_bytes(cost: ComputeCost, units: tuple[str, ...], tensor: int, samples: int, *, sharded: bool) -> Held:
    """Return what one of `tensor` ranks needs of some units; only of a sharded optimizer something is divided."""
    copies, gradients, moments = cost.state_bytes
    shared = copies - cost.element_bytes + moments if sharded else 0
    count = cost.parameter_count(units, tensor)
    return Held(count * (copies + gradients + moments - shared), count * shared,
                cost.activation_bytes(units, samples, tensor))


class StageCostModel:
    """What the planner's cost model says of stages."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cost = compute_cost(task)
        self.network = network_cost(task)
        self._seconds = functools.cache(self._unit_seconds)
        self._held = functools.cache(functools.partial(held_bytes, self.cost, sharded=task.settings.sharded))
        self.hop = functools.cache(self._hop)  # type: ignore[method-assign]
        self.sync_seconds_a_byte = functools.cache(self._sync_seconds_a_byte)  # type: ignore[method-assign]

    def layer_seconds(self, kind: Kind, tensor: int, samples: int) -> float:
        """See StageCosts."""
        return self._seconds(kind, ("layers.0",), tensor, samples)

    def end_seconds(self, kind: Kind, tensor: int, samples: int, *, first: bool, last: bool) -> float:
        """See StageCosts."""
        units = self._end_units(first, last)
        return self._seconds(kind, units, tensor, samples) if units else 0.0

    def layer_bytes(self, kind: Kind, tensor: int, samples: int) -> Held:
        """See StageCosts."""
        return self._held(("layers.0",), tensor, samples)

    def end_bytes(self, kind: Kind, tensor: int, samples: int, *, first: bool, last: bool) -> Held:
        """See StageCosts."""
        units = self._end_units(first, last)
        held = self._held(units, tensor, samples)
        return held._replace(whole=held.whole + self.cost.workspace_bytes(("layers.0", *units), samples, tensor))

    def free_bytes(self, kind: Kind) -> float:
        """See StageCosts."""
        context = self.cost.static_gib(kind.node, 0) * _GIB
        return self.task.machine.memory_gib(kind.node) * USABLE_FRACTION * _GIB - context

    def layer_gradient_bytes(self) -> float:
        """See StageCosts."""
        return self.task.software.gradient_bytes * self.cost.parameter_count(("layers.0",), 1)

    def table_gradient_bytes(self) -> float:
        """See StageCosts."""
        return self.task.software.gradient_bytes * self.cost.parameter_count((TOKEN_TABLE,), 1)

    def tied_gradient_bytes(self) -> float:
        """See StageCosts."""
        return self.table_gradient_bytes() if self.task.architecture.tied_embeddings else 0.0

    def hop(self, before: Kind, after: Kind, samples: int) -> Hop:
        """See StageCosts."""
        raise NotImplementedError  # replaced by the cached method of the instance

    def sync_seconds_a_byte(self, kinds: tuple[Kind, ...], nodes: tuple[int, ...]) -> float:
        """See StageCosts."""
        raise NotImplementedError  # replaced by the cached method of the instance

    def _end_units(self, first: bool, last: bool) -> tuple[str, ...]:
        return self.task.architecture.stage_units(0, 0, first=first, last=last)

    def _unit_seconds(self, kind: Kind, units: tuple[str, ...], tensor: int, samples: int) -> float:
        ranks = self.task.cluster.ranks_of(kind.node)[:tensor]
        return sum(stage_seconds(self.task, self.cost, ranks, units, samples))

    def _hop(self, before: Kind, after: Kind, samples: int) -> Hop:
        nodes = (before.nodes[0], after.nodes[-1])
        if nodes[0].slot == nodes[1].slot:
            return Hop(0.0, 0.0)
        size = self.task.architecture.boundary_bytes(samples, self.cost.element_bytes)
        pair = tuple(self.task.cluster.ranks_of(node)[0] for node in nodes)
        traffic = self.network.message(self.task.cluster.shared_network(pair), pair[0], pair[1], size)
        return Hop(traffic.seconds + traffic.latency_seconds, max([0.0, *traffic.busy.values()]))

    def _sync_seconds_a_byte(self, kinds: tuple[Kind, ...], nodes: tuple[int, ...]) -> float:
        return self.network.hierarchical_seconds_a_byte([
            self.task.cluster.ranks_of(node)[0]
            for kind, count in zip(kinds, nodes, strict=True) for node in kind.nodes[:count]])


class StageTable:
    """Prices of stages by kind and tensor-parallel degree, each looked up once."""

    def __init__(self, stage_costs: StageCosts, kinds: Sequence[Kind], samples: int) -> None:
        self.stage_costs, self.kinds, self.samples = stage_costs, kinds, samples
        self.rows: dict[tuple[int, int, bool, bool], tuple[float, ...]] = {}

    def row(self, kind: int, tensor: int, first: bool, last: bool) -> tuple[float, ...]:
        """Return the seconds of a layer and of the ends, then bytes.

        Of a layer: whole, divided and kept; free for layers and what the ends keep; of the ends: divided and kept.
        """
        key = (kind, tensor, first, last)
        if key not in self.rows:
            stage_costs, node, samples = self.stage_costs, self.kinds[kind], self.samples
            layer = stage_costs.layer_bytes(node, tensor, samples)
            end = stage_costs.end_bytes(node, tensor, samples, first=first, last=last)
            self.rows[key] = (stage_costs.layer_seconds(node, tensor, samples),
                              stage_costs.end_seconds(node, tensor, samples, first=first, last=last),
                              layer.whole, layer.divided, layer.kept, stage_costs.free_bytes(node) - end.whole,
                              end.divided, end.kept)
        return self.rows[key]
