"""Pipelines that do the same: one of them stands for all, whatever is asked of their work."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from holmes_hpc.values import Pipeline

Used = TypeVar("Used", str, int)


def alike(pipelines: Sequence[Pipeline], of_rank: Callable[[int], Hashable],
          of_pipeline: Callable[[int], Hashable] = lambda number: None) -> tuple[list[int], list[int]]:
    """Return for every pipeline the number of the kept one like it, and the indices of those that are kept.

    Pipelines that share ranks stand together: a set of them is like another one, each pipeline like its counterpart.
    Like ranks have the same `of_rank`, and like pipelines the same `of_pipeline`.
    """
    models: dict[object, Sequence[int]] = {}
    same = list(range(len(pipelines)))
    for members in connected([{rank for stage in pipeline.stages for rank in stage.ranks} for pipeline in pipelines]):
        places: dict[int, int] = {}
        key = tuple((pipelines[p].microbatches, of_pipeline(p), tuple(
            (stage.first_layer, stage.num_layers,
             tuple((of_rank(rank), places.setdefault(rank, len(places))) for rank in stage.ranks))
            for stage in pipelines[p].stages)) for p in members)
        for p, model in zip(members, models.setdefault(key, members), strict=True):
            same[p] = model
    kept = sorted(set(same))
    number = {p: i for i, p in enumerate(kept)}
    return [number[p] for p in same], kept


def connected(used: Sequence[set[Used]]) -> list[list[int]]:
    """Return the pipelines of every component; `used` are the nodes, or the ranks, of each pipeline."""
    parent = list(range(len(used)))

    def root(p: int) -> int:
        while parent[p] != p:
            parent[p] = parent[parent[p]]
            p = parent[p]
        return p

    first: dict[Used, int] = {}
    for p, names in enumerate(used):
        for name in names:
            a, b = root(first.setdefault(name, p)), root(p)
            parent[max(a, b)] = min(a, b)
    members: dict[int, list[int]] = {}
    for p in range(len(used)):
        members.setdefault(root(p), []).append(p)
    return list(members.values())
