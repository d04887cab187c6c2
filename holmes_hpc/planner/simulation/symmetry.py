"""Ranks that do the same at the same time are simulated as one.

The tensor-parallel ranks of a stage compute and send together. So do pipelines that take equally many micro-batches
through equal stages on the same nodes, and sets of pipelines that share ranks in equal ways, unless they take turns.
One of them stands for all, and its messages fill the NICs as all of theirs do.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holmes_hpc.planner.cost.network import Traffic, occupied
from holmes_hpc.planner.simulation.collectives import Bucket
from holmes_hpc.planner.simulation.events import Prices
from holmes_hpc.schedule.alike import alike as alike_pipelines
from holmes_hpc.schedule.building import edge_ranks, transfers
from holmes_hpc.values import Group, Pipeline, Reduction, Stage


@dataclass(frozen=True)
class Folded:
    """What is left to simulate. `kept` are indices of pipelines; `like[p]` is the index in `kept` of the one like p.

    `rank_like` is for every rank the one that stands for it.
    """

    pipelines: tuple[Pipeline, ...]
    groups: tuple[Group, ...]
    reductions: tuple[Reduction, ...]
    prices: Prices
    kept: tuple[int, ...]
    like: tuple[int, ...]
    rank_like: Mapping[int, int]

    def spread_peaks(self, pipelines: Sequence[Pipeline],
                     peaks: Mapping[tuple[int, int, int], int]) -> dict[tuple[int, int, int], int]:
        """Return the activations in flight of every (rank, pipeline, stage) from those simulated."""
        return {(rank, p, s): peaks[self.rank_like[rank], self.like[p], s]
                for p, pipeline in enumerate(pipelines) for s, stage in enumerate(pipeline.stages)
                for rank in stage.ranks if (self.rank_like[rank], self.like[p], s) in peaks}


def fold(pipelines: Sequence[Pipeline], groups: Sequence[Group], reductions: Sequence[Reduction], prices: Prices,
         slot_of: Callable[[int], str], *, turns: bool) -> Folded:
    """Return the layout with one rank for each set of ranks that do the same; `slot_of` gives a rank's node."""
    like, kept = alike(pipelines, slot_of, turns=turns)
    leaders = _leaders(pipelines)
    rank_like = {}
    for p, pipeline in enumerate(pipelines):
        for stage, same in zip(pipeline.stages, pipelines[kept[like[p]]].stages, strict=True):
            for rank, other in zip(stage.ranks, same.ranks, strict=True):
                rank_like[rank] = leaders[other]
    few = tuple(
        Pipeline(pipelines[p].microbatches,
                 tuple(Stage(tuple(dict.fromkeys(leaders[rank] for rank in stage.ranks)), stage.first_layer,
                             stage.num_layers) for stage in pipelines[p].stages)) for p in kept)
    folded, sizes = _reductions(reductions, rank_like)
    counts = Counter(like)
    compute = {(kind, i, s): prices.compute[kind, p, s] for i, p in enumerate(kept)
               for s in range(len(pipelines[p].stages)) for kind in {kind for kind, _, _ in prices.compute}}
    slots = {slot_of(rank) for pipeline in few for stage in pipeline.stages for rank in stage.ranks}
    merged = dataclasses.replace(
        prices, compute=compute,
        messages=_messages([(pipelines[p], counts[i]) for i, p in enumerate(kept)], prices.messages, leaders),
        reductions=[_together([_at(prices.reductions[i], slots) for i in same]) for same in sizes],
        optimizer={rank: prices.optimizer[rank] for rank in set(rank_like.values())},
        buckets=_buckets(prices.buckets, sizes, like, slots), gathers=_buckets(prices.gathers, sizes, like, slots))
    return Folded(few, _groups(pipelines, few, kept, groups, rank_like), folded, merged, tuple(kept), tuple(like),
                  rank_like)


def alike(pipelines: Sequence[Pipeline], slot_of: Callable[[int], str], *,
          turns: bool) -> tuple[list[int], list[int]]:
    """Return what `schedule.alike` does of pipelines on the same nodes; with turns each one stands for itself."""
    if turns:
        return list(range(len(pipelines))), list(range(len(pipelines)))
    return alike_pipelines(pipelines, slot_of)


def _leaders(pipelines: Sequence[Pipeline]) -> dict[int, int]:
    """Return the first of each rank's tensor-parallel group; the rank itself where groups overlap."""
    group_of: dict[int, tuple[int, ...]] = {}
    overlap = False
    for pipeline in pipelines:
        for stage in pipeline.stages:
            for rank in stage.ranks:
                overlap |= group_of.setdefault(rank, stage.ranks) != stage.ranks
    return {rank: rank if overlap else ranks[0] for rank, ranks in group_of.items()}


def _messages(pipelines: Sequence[tuple[Pipeline, int]], prices: Mapping[tuple[int, int], Traffic],
              leaders: Mapping[int, int]) -> dict[tuple[int, int], Traffic]:
    """Return the price of each pair's messages: those that all for whom it stands send at the same time."""
    found = {}
    for pipeline, count in pipelines:
        for before, after in zip(pipeline.stages, pipeline.stages[1:], strict=False):
            for senders, receivers in ((before.ranks, after.ranks), (after.ranks, before.ranks)):
                pairs: dict[tuple[int, int], list[Traffic]] = {}
                for pair in transfers(senders, receivers):
                    pairs.setdefault((leaders[pair[0]], leaders[pair[1]]), []).append(prices[pair])
                found.update({pair: _together(each * count) for pair, each in pairs.items()})
    return found


def _reductions(reductions: Sequence[Reduction],
                rank_like: Mapping[int, int]) -> tuple[tuple[Reduction, ...], list[list[int]]]:
    """Return the reductions by the ranks that are left, and which of all each stands for.

    Reductions of disjoint owners that have become equal, such as the slices of a stage's layers, go on side by side.
    """
    folded: list[Reduction] = []
    sizes: list[list[int]] = []
    taken: list[set[int]] = []
    for index, reduction in enumerate(reductions):
        owners = tuple(dict.fromkeys(rank_like[rank] for rank in reduction.owners))
        same = next((i for i, other in enumerate(folded)
                     if other.owners == owners and taken[i].isdisjoint(reduction.owners)), None)
        if same is None:
            folded.append(dataclasses.replace(reduction, owners=owners))
            sizes.append([index])
            taken.append(set(reduction.owners))
        else:
            sizes[same].append(index)
            taken[same].update(reduction.owners)
    return tuple(folded), sizes


def _buckets(parts: Mapping[int, Sequence[Bucket]], sizes: Sequence[Sequence[int]], like: Sequence[int],
             slots: set[str]) -> dict[int, tuple[Bucket, ...]]:
    """Return the buckets of the reductions that are left; slices of equal size are in equally many buckets."""
    folded = {}
    for index, same in enumerate(sizes):
        each = [parts[i] for i in same if i in parts]
        merged: dict[tuple[int, ...], Traffic] = {}
        buckets = []
        for side_by_side in zip(*each, strict=False):
            # The buckets of a reduction are of one size, and share their traffic.
            key = tuple(id(bucket.traffic) for bucket in side_by_side)
            if key not in merged:
                merged[key] = _together([_at(bucket.traffic, slots) for bucket in side_by_side])
            stages = {(like[p], s): fraction for (p, s), fraction in side_by_side[0].stages.items()}
            buckets.append(Bucket(merged[key], stages))
        if buckets:
            folded[index] = tuple(buckets)
    return folded


def _groups(pipelines: Sequence[Pipeline], few: Sequence[Pipeline], kept: Sequence[int], groups: Sequence[Group],
            rank_like: Mapping[int, int]) -> tuple[Group, ...]:
    """Return the groups that a schedule asks for: pipeline edges, and ranks that take turns."""
    networks = {group.ranks: group.network for group in groups if group.kind == "pipeline"}
    found: dict[Group, None] = {}
    for p, pipeline in zip(kept, few, strict=True):
        for s in range(len(pipeline.stages) - 1):
            edge = edge_ranks(pipelines[p], s)
            if edge in networks:
                found[Group("pipeline", edge_ranks(pipeline, s), networks[edge])] = None
    for group in groups:
        if group.kind == "turn":
            left = tuple(rank for rank in group.ranks if rank_like.get(rank) == rank)
            if len(left) > 1:
                found[dataclasses.replace(group, ranks=left)] = None
    return tuple(found)


def _together(traffics: Sequence[Traffic]) -> Traffic:
    """Return the price of transfers that go on side by side: what they occupy adds up."""
    return Traffic(max(traffic.seconds for traffic in traffics), max(each.latency_seconds for each in traffics),
                   occupied(traffic.busy for traffic in traffics))


def _at(traffic: Traffic, slots: set[str]) -> Traffic:
    """Return a reduction's price with the NICs that anything else is simulated on; the others are as busy as they."""
    return dataclasses.replace(traffic, busy={key: seconds for key, seconds in traffic.busy.items()
                                              if key[0] in slots or key[0] == "trunk"})
