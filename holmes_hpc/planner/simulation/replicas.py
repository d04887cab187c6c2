"""Replicas: parts of a layout that are alike and share no NIC are simulated once.

Pipelines that share a node form a component. Two components are alike when one becomes the other by naming equal
nodes anew; each then does the same at the same time, and a reduction over all of them begins when one of each is
ready. What components still share is a trunk between fabrics, which is taken to be as full as all of them fill it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from holmes_hpc.cluster import ClusterDescription, Node
from holmes_hpc.planner.cost.network import Traffic
from holmes_hpc.planner.simulation.events import Prices
from holmes_hpc.schedule.alike import connected
from holmes_hpc.values import Pipeline, Reduction


@dataclass(frozen=True)
class Replicas:
    """Which pipelines stand for all: `chosen`, and for every pipeline the index in `chosen` of the one like it."""

    chosen: tuple[int, ...]
    like: tuple[int, ...]
    pipelines: tuple[Pipeline, ...]
    components: int
    """Components for each one simulated, on average."""

    @property
    def picked(self) -> tuple[Pipeline, ...]:
        """The pipelines to simulate."""
        return tuple(self.pipelines[p] for p in self.chosen)

    def rank_like(self) -> Mapping[int, int]:
        """Return for every rank the simulated rank that does the same."""
        return self._rank_like

    @cached_property
    def _rank_like(self) -> dict[int, int]:
        same: dict[int, int] = {}
        for p, pipeline in enumerate(self.pipelines):
            model = self.pipelines[self.chosen[self.like[p]]]
            for stage, other in zip(pipeline.stages, model.stages, strict=True):
                same.update(zip(stage.ranks, other.ranks, strict=True))
        return same

    def spread_peaks(self, peaks: Mapping[tuple[int, int, int], int]) -> dict[tuple[int, int, int], int]:
        """Return the activations in flight of every (rank, pipeline, stage) from those simulated."""
        spread = {}
        for p, pipeline in enumerate(self.pipelines):
            model = self.pipelines[self.chosen[self.like[p]]]
            for s, (stage, other) in enumerate(zip(pipeline.stages, model.stages, strict=True)):
                for rank, same in zip(stage.ranks, other.ranks, strict=True):
                    if (same, self.like[p], s) in peaks:
                        spread[rank, p, s] = peaks[same, self.like[p], s]
        return spread

    def restrict(self, reductions: Sequence[Reduction]) -> tuple[Reduction, ...]:
        """Return the reductions as the simulated ranks see them; their prices are those of all owners."""
        kept = {rank for pipeline in self.picked for stage in pipeline.stages for rank in stage.ranks}
        return tuple(dataclasses.replace(reduction, owners=tuple(rank for rank in reduction.owners if rank in kept))
                     for reduction in reductions)

    def fill_trunks(self, prices: Prices) -> Prices:
        """Return the prices with trunks filled by the messages of all components."""
        messages = {pair: _fuller(traffic, self.components) for pair, traffic in prices.messages.items()}
        return dataclasses.replace(prices, messages=messages)


def find_replicas(cluster: ClusterDescription, pipelines: Sequence[Pipeline]) -> Replicas:
    """Return which pipelines of a layout stand for all."""
    nodes = [[[cluster.node_of(rank) for rank in stage.ranks] for stage in pipeline.stages] for pipeline in pipelines]
    components = connected([{node.slot for stage in stages for node in stage} for stages in nodes])
    chosen: list[int] = []
    like = [0] * len(pipelines)
    models: dict[object, int] = {}
    for members in components:
        key = _key([(pipelines[p], nodes[p]) for p in members])
        if key not in models:
            models[key] = len(chosen)
            chosen += members
        for i, p in enumerate(members):
            like[p] = models[key] + i
    return Replicas(tuple(chosen), tuple(like), tuple(pipelines), max(1, round(len(components) / len(models))))


def likeness(cluster: ClusterDescription, pipelines: Sequence[Pipeline]) -> object:
    """Return a key that layouts share where one becomes the other by naming equal nodes and their ranks anew."""
    return _key([(pipeline, [[cluster.node_of(rank) for rank in stage.ranks] for stage in pipeline.stages])
                 for pipeline in pipelines])


def _key(members: Sequence[tuple[Pipeline, Sequence[Sequence[Node]]]]) -> object:
    names: dict[str, int] = {}
    ranks: dict[int, int] = {}
    return tuple(
        (pipeline.microbatches, tuple(
            (stage.first_layer, stage.num_layers, tuple(
                (names.setdefault(node.slot, len(names)), ranks.setdefault(rank, len(ranks)), node.fabric, node.gpu,
                 node.gpus, node.nic, node.nics, node.ethernet_gbps, (node.slot, rank) if node.disturbed else None)
                for rank, node in zip(stage.ranks, on, strict=True)))
            for stage, on in zip(pipeline.stages, stages, strict=True)))
        for pipeline, stages in members)


def _fuller(traffic: Traffic, times: int) -> Traffic:
    busy = {key: seconds * (times if key[0] == "trunk" else 1) for key, seconds in traffic.busy.items()}
    return dataclasses.replace(traffic, busy=busy)
