"""A step that no layout of a problem beats in which every rank holds one run of layers: proven by prices of layers.

For one micro-batch size, M micro-batches have to pass each of L layers and the head. A tensor-parallel group that holds
n layers behind a others serves m micro-batches, and within a step of T seconds

    before(a) + m (n layer + head)                   <= T - optimizer    and
    before(a) + m (n inputs + head inputs) + after(a) <= T - optimizer    and
    before(a) + m (n layer + head) - last + (n - alone) sync <= T - optimizer

where `layer` and `head` are forward and backward of the group, `inputs` those without the gradients of weights, and
before(a) and after(a) what one micro-batch takes through the layers before, forwards and backwards, on the fastest
group there is. `alone` is how many layers a node could serve for the whole batch in T; all others that one of its
groups holds are held on another node too, and their gradients, half of their bytes at least, have to pass the node's
NIC: `sync` for each, after the group has begun its last backward, which takes `last`. Messages are not counted.

Give every layer a price. If even the dearest run that each group can serve, all GPUs together, earns less than all
micro-batches cost over all layers, no layout makes T: the dual of a linear program, in which any prices prove
something, and better ones are found by raising what is served too little. The bound is the largest T that is refuted,
of the micro-batch size for which that is least.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from holmes_hpc.planner.cost.network import NetworkCost
from holmes_hpc.planner.layout.node_kinds import Kind
from holmes_hpc.planner.simulation.prices import compute_cost, stage_seconds, weight_seconds
from holmes_hpc.planner.strategies.fleets.space import Space
from holmes_hpc.planner.task import Task
from holmes_hpc.values import Group

_ROUNDS = 80
_RATE = 0.15
_BISECTIONS = 12


def least_step_seconds(task: Task) -> float:
    """Return a step time that no layout beats, at any micro-batch size."""
    space = Space(task)
    best = float("inf")
    for size in (n for n in range(1, task.settings.global_batch_size + 1) if task.settings.global_batch_size % n == 0):
        microbatches = task.settings.global_batch_size // size
        low, high = space.work_bound(size, microbatches), best
        if low >= best:
            continue
        columns = _Columns(task, space, size, microbatches)
        high = min(high, 3 * low)
        if columns.refutes(high):
            low = high
        for _ in range(_BISECTIONS if low < high else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if columns.refutes(middle) else (low, middle)
        best = min(best, low)
    return best


class _Group(NamedTuple):
    """A group of a kind and a degree: by run the seconds of a micro-batch, and what comes before and after."""

    kind: int
    tensor: int
    whole: NDArray[numpy.float64]
    split: NDArray[numpy.float64]
    before: NDArray[numpy.float64]
    both: NDArray[numpy.float64]
    last: NDArray[numpy.float64]


class _Columns:
    """What a group of each kind and degree may serve, at one micro-batch size: one row for each run of layers."""

    def __init__(self, task: Task, space: Space, size: int, microbatches: int) -> None:
        self.layers, self.microbatches = space.num_layers, microbatches
        self.gpus = [kind.total_gpus for kind in space.kinds]
        runs = [(a, n) for a in range(self.layers) for n in range(1, self.layers - a + 1)]
        self.first = numpy.array([a for a, _ in runs])
        self.end = numpy.array([a + n for a, n in runs])
        count, last = self.end - self.first, self.end == self.layers
        groups = [(k, tensor) for k, degrees in enumerate(space.degrees) for tensor in degrees]
        layer = {group: _times(task, space.kinds[group[0]], group[1], size, ("layers.0",)) for group in groups}
        ends = task.architecture.stage_units(0, 0, first=False, last=True)
        head = {group: _times(task, space.kinds[group[0]], group[1], size, ends) for group in groups}
        forward = min(times[0] for times in layer.values())
        inputs = min(times[1] for times in layer.values())
        optimizer = min(compute_cost(task).optimizer_seconds(
            kind.node, compute_cost(task).parameter_count(("layers.0",)) / sum(self.gpus)) for kind in space.kinds)
        self.groups = []
        for group in groups:
            own, end = numpy.array(layer[group]), numpy.array(head[group])
            whole = count * own.sum() + last * end.sum()
            split = count * own[:2].sum() + last * end[:2].sum()
            self.groups.append(_Group(*group, whole, split, optimizer + self.first * forward,
                                      optimizer + self.first * (forward + inputs),
                                      count * own[1:].sum() + last * end[1:].sum()))
        self.sync = [_sync_seconds(task, kind) for kind in space.kinds]
        self.alone = [kind.gpus / min(tensor * sum(layer[k, tensor]) for tensor in space.degrees[k]) / microbatches
                      for k, kind in enumerate(space.kinds)]

    def refutes(self, seconds: float) -> bool:
        """Return whether some prices prove that no layout takes so few seconds."""
        served = [(group.kind, group.tensor, self._served(group, seconds)) for group in self.groups]
        prices = numpy.ones(self.layers + 1)
        for _ in range(_ROUNDS):
            earned, passed = self._earn(prices, served)
            if earned < self.microbatches * prices.sum() * (1 - 1e-9):
                return True
            prices *= numpy.exp(_RATE * (1 - passed / self.microbatches).clip(-1, 1))
            prices /= prices.mean()
        return False

    def _served(self, group: _Group, seconds: float) -> NDArray[numpy.float64]:
        """Return the most micro-batches that a group passes through each run."""
        shared = (self.end - self.first - numpy.floor(seconds * self.alone[group.kind])).clip(0)
        synced = seconds - group.before + group.last - shared * self.sync[group.kind]
        most = numpy.minimum((seconds - group.before) / group.whole, (seconds - group.both) / group.split)
        return numpy.floor(numpy.where(shared > 0, numpy.minimum(most, synced / group.whole), most)).clip(
            0, self.microbatches)

    def _earn(self, prices: NDArray[numpy.float64],
              served: list[tuple[int, int, NDArray[numpy.float64]]]) -> tuple[float, NDArray[numpy.float64]]:
        """Return the most that all GPUs earn, and how many micro-batches then pass each layer and the head."""
        sums = numpy.concatenate([[0.0], prices[:-1].cumsum()])
        worth = sums[self.end] - sums[self.first] + (self.end == self.layers) * prices[-1]
        earned, passed = 0.0, numpy.zeros(self.layers + 1)
        for k, gpus in enumerate(self.gpus):
            most, best = -1.0, (0, 0.0)
            for kind, tensor, count in served:
                if kind == k:
                    values = count * worth / tensor
                    i = int(values.argmax())
                    if values[i] > most:
                        most, best = float(values[i]), (i, float(count[i]) / tensor)
            earned += gpus * most
            i, count_a_gpu = best
            passed[self.first[i]:self.end[i]] += gpus * count_a_gpu
            passed[-1] += gpus * count_a_gpu * (self.end[i] == self.layers)
        return earned, passed


def _sync_seconds(task: Task, kind: Kind) -> float:
    """Return how long the gradients of a layer that two nodes hold occupy the NIC of one of them at least."""
    cluster, network = task.cluster, NetworkCost(task.machine)
    size = 4 * compute_cost(task).parameter_count(("layers.0",))
    rank = cluster.ranks_of(kind.node)[0]
    pairs = [(rank, cluster.ranks_of(node)[0]) for node in cluster.nodes if node.slot != kind.node.slot]
    sums = [network.all_reduce(Group("data", pair, cluster.shared_network(pair)), size) for pair in pairs]
    return min(max(seconds for key, seconds in each.busy.items() if key[0] == kind.node.slot) for each in sums) / 2


def _times(task: Task, kind: Kind, tensor: int, size: int, units: tuple[str, ...]) -> tuple[float, float, float]:
    """Return the forward and both parts of the backward of units on a group."""
    ranks, cost = task.cluster.ranks_of(kind.node)[:tensor], compute_cost(task)
    forward, backward = stage_seconds(task, cost, ranks, units, size)
    weight = weight_seconds(task, cost, ranks, units, size)
    return forward, backward - weight, weight
