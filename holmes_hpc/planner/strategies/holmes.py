"""The Holmes strategy: stages cut at fabric borders, data-parallel ranks in one fabric, tensor ranks in one node."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from holmes_hpc.cluster import Node
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.strategies.shapes import Part, Shape, divisors, tensor_groups
from holmes_hpc.planner.task import Task
from holmes_hpc.values.strategy_kinds import HOLMES
from holmes_hpc.words import counted

_MOST_ORDERED_FABRICS = 6
_MOST_COUNTS = 400
"""Stage counts by fabric that are looked at, shallow pipelines first."""
_MOST_ASKED = 2000
"""The same of an asked depth, even ones first."""


def shapes(task: Task, tensor: int) -> tuple[Shape, ...]:
    """Return the layouts for a tensor-parallel degree: fabric orders, stages of each fabric, placements.

    Raises PlanRefusedError when the asked degrees fit no division of the fabrics.
    """
    parts = {name: _parts(task, nodes, tensor) for name, nodes in task.cluster.fabrics.items()}
    found: dict[tuple[tuple[Part, ...], ...], Shape] = {}
    for order in fabric_orders(task):
        for counts in _stage_counts(task, [len(parts[name]) for name in order]):
            for spread in (True, False):
                stages = tuple(stage for name, count in zip(order, counts, strict=True)
                               for stage in divide(parts[name], count, spread))
                if stages not in found:
                    found[stages] = Shape(HOLMES.name, _words(order, counts, stages, tensor, spread), stages,
                                          GroupRules(two_level=task.settings.two_level))
    return tuple(found.values())


def fabric_orders(task: Task) -> tuple[tuple[str, ...], ...]:
    """Return the fabric orders to consider: the cheapest chain of links, fast fabric first, and its reverse.

    Every chain of F fabrics crosses F - 1 borders; its cost is the sum of the seconds a bit over them. Both
    directions cost the same on the links, but differ in what hides behind them: the slower fabric's gradient sync
    hides in the idle time of the last stage, and the first stages keep more activations. So both are priced.
    """
    names = sorted(task.cluster.fabrics, key=lambda name: (-_fabric_gbps(task, name), name))
    if len(names) == 1:
        return (tuple(names),)
    orders = itertools.permutations(names) if len(names) <= _MOST_ORDERED_FABRICS else [_nearest(task, names)]
    best = min(orders, key=lambda order: _chain_cost(task, order))
    return best, tuple(reversed(best))


def divide(parts: Sequence[Part], count: int, spread: bool) -> tuple[tuple[Part, ...], ...]:
    """Return the parts of each of `count` stages of one fabric.

    Spread gives every node a share of every stage: hops between these stages stay inside the node, gradients use
    the fabric's NICs, and the stage at the border has the Ethernet of all nodes, which is the scarce network.
    Packed gives a stage whole nodes: gradients of a stage on one node stay inside it, and its neighbours are
    reached by NIC. Spread is proposed first and wins ties; the prediction decides.
    """
    if spread:
        return tuple(tuple(parts[s::count]) for s in range(count))
    share, rest = divmod(len(parts), count)
    cuts = list(itertools.accumulate((share + (s < rest) for s in range(count)), initial=0))
    return tuple(tuple(parts[a:b]) for a, b in itertools.pairwise(cuts))


def _parts(task: Task, nodes: Iterable[Node], tensor: int) -> tuple[Part, ...]:
    return tuple(part for node in nodes for part in tensor_groups(task.cluster.ranks_of(node), tensor))


def _stage_counts(task: Task, widths: Sequence[int]) -> list[tuple[int, ...]]:
    """Return how many stages each fabric may have, given its number of parts.

    Stages of a fabric are equally wide where an asked depth allows it; else they differ by one part.
    """
    settings, layers = task.settings, task.architecture.num_layers
    if settings.pipeline is not None and settings.pipeline < len(widths):
        raise PlanRefusedError(
            f"holmes: parallel.pipeline={settings.pipeline} on {len(widths)} fabrics: every fabric holds at least one "
            f"stage. Set parallel.pipeline to at least {len(widths)}, or for data parallelism across fabrics "
            "parallel=auto, flashflex or megatron.")
    if len(widths) > layers:
        raise PlanRefusedError(f"holmes: {len(widths)} fabrics need at least as many layers, and the model has "
                               f"{layers}. Raise model.num_layers to at least {len(widths)}.")
    even = [[n for n in divisors(width) if n <= layers and settings.data in (None, width // n)] for width in widths]
    counts = _of_depth(even, settings.pipeline, layers)
    if not counts and settings.data is None:
        counts = _of_depth([list(range(1, min(width, layers) + 1)) for width in widths], settings.pipeline, layers)
    if counts:
        return counts
    what = f"parallel.data={settings.data}" if settings.data is not None else f"parallel.pipeline={settings.pipeline}"
    both = f" with parallel.pipeline={settings.pipeline}" if settings.data and settings.pipeline else ""
    raise PlanRefusedError(
        f"holmes: {what}{both}: the fabrics have {', '.join(map(str, widths))} tensor-parallel groups, the model "
        f"{counted(layers, 'layer')}, and every fabric is divided into stages of its own. Set parallel.pipeline to a "
        "number "
        f"from {len(widths)} to {min(layers, sum(widths))}, and leave parallel.data null.")


def _of_depth(choices: Sequence[Sequence[int]], depth: int | None, layers: int) -> list[tuple[int, ...]]:
    """Return the combinations of choices that sum to `depth`, or to at most `layers`; shallow ones first."""
    sums: list[tuple[int, ...]] = [()]
    most = layers if depth is None else min(depth, layers)
    for done, fabric in enumerate(choices):
        missing = len(choices) - done - 1
        sums = [(*counts, n) for counts in sums for n in fabric if sum(counts) + n + missing <= most]
        if depth is not None and len(sums) > _MOST_ASKED:
            even = depth / len(choices)
            sums = sorted(sums, key=lambda counts: sum(abs(count - even) for count in counts))[:_MOST_ASKED]
        sums = sorted(sums, key=lambda counts: (sum(counts), max(counts) - min(counts), counts))
        if depth is None:
            sums = sums[:_MOST_COUNTS]
    return [counts for counts in sums if depth is None or sum(counts) == depth]


def _words(order: Sequence[str], counts: Sequence[int], stages: Sequence[Sequence[Part]], tensor: int,
           spread: bool) -> str:
    words, first = [], 0
    for name, count in zip(order, counts, strict=True):
        widths = sorted({len(stage) for stage in stages[first:first + count]})
        first += count
        words.append(f"{name} {count} stage{'s' if count > 1 else ''} x data {'/'.join(map(str, widths))}")
    placed = ("" if max(counts) == 1 or max(map(len, stages)) == 1
              else ", stages spread over nodes" if spread else ", stages on whole nodes")
    return ", ".join(words) + (f", tensor {tensor}" if tensor > 1 else "") + placed


def _fabric_gbps(task: Task, name: str) -> float:
    node = task.cluster.fabrics[name][0]
    return task.machine.node_bandwidth_gbps(node, node.network)


def _chain_cost(task: Task, order: Sequence[str]) -> float:
    return sum(_border_cost(task, a, b) for a, b in itertools.pairwise(order))


def _border_cost(task: Task, a: str, b: str) -> float:
    """Return the seconds a gigabit over the border of two fabrics, all their nodes together."""
    left, right = task.cluster.fabrics[a], task.cluster.fabrics[b]
    pair = task.machine.link("ethernet", left[0], right[0])
    gbps = pair.bandwidth_gbps * min(len(left), len(right))
    trunk = task.machine.trunk_gbps(a, b)
    return 1 / min(gbps, trunk or gbps) + pair.latency_us * 1e-6


def _nearest(task: Task, names: Sequence[str]) -> tuple[str, ...]:
    """Return a chain that always goes on to the cheapest fabric left."""
    chain, left = [names[0]], list(names[1:])
    while left:
        chain.append(min(left, key=lambda name: (_border_cost(task, chain[-1], name), name)))
        left.remove(chain[-1])
    return tuple(chain)
