"""Which ranks own which slice of the model.

A stage's ranks are its tensor-parallel group in shard order: rank j of t holds, of every parameter that is split, the
part from j/t to (j+1)/t along its split dim, and all of every other parameter. Where pipelines split a unit by
different degrees, all their cuts together divide it into slices that no rank holds partly; each slice then has its
own owners.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

from holmes_hpc.architecture import Architecture, ParameterInfo
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.values import Pipeline
from holmes_hpc.values.owned import Owned

TOKEN_TABLE = "embedding.token"


def stage_units(architecture: Architecture, pipeline: Pipeline, s: int) -> tuple[str, ...]:
    """Return the units that stage `s` of a pipeline holds."""
    stage = pipeline.stages[s]
    return architecture.stage_units(stage.first_layer, stage.num_layers,
                                    first=s == 0, last=s == len(pipeline.stages) - 1)


def owned_parts(architecture: Architecture,
                pipelines: Sequence[Pipeline]) -> dict[tuple[int, ...], tuple[Owned, ...]]:
    """Return the parts (in data-flow order) of every set of owners, sets ordered from the head backwards.

    Raises PlanRefusedError when a rank would hold two different slices of one unit.
    """
    held = _tensor_groups(architecture, pipelines)
    shared: dict[tuple[int, ...], list[Owned]] = {}
    layers: dict[tuple[tuple[int, ...], ...], list[tuple[Owned, tuple[int, ...]]]] = {}
    for unit in reversed(architecture.units):
        groups = tuple(held[unit])
        if not unit.startswith("layers."):
            found = _owners(architecture, unit, groups)
        else:
            # Layers are alike, and those of a stage have the same owners.
            if groups not in layers:
                layers[groups] = _owners(architecture, unit, groups)
            found = [(dataclasses.replace(part, unit=unit), owners) for part, owners in layers[groups]]
        for part, owners in found:
            shared.setdefault(owners, []).append(part)
    return {owners: tuple(reversed(parts)) for owners, parts in shared.items()}


def _owners(architecture: Architecture, unit: str,
            groups: Sequence[tuple[int, ...]]) -> list[tuple[Owned, tuple[int, ...]]]:
    """Return the parts of a unit that these tensor-parallel groups hold, each with its owners."""
    _refuse_two_slices(unit, groups)
    return [(part, tuple(sorted({rank for ranks in groups for rank in holders(ranks, part)})))
            for part in _parts(architecture, unit, groups)]


def holders(ranks: Sequence[int], part: Owned) -> tuple[int, ...]:
    """Return those of a stage's ranks that hold a part of a unit of this stage."""
    if not part.of:
        return tuple(ranks)
    degree = len(ranks)
    return tuple(rank for j, rank in enumerate(ranks)
                 if j * part.of <= part.begin * degree and part.end * degree <= (j + 1) * part.of)


@functools.lru_cache(maxsize=4096)
def element_count(architecture: Architecture, owns: Sequence[str]) -> int:
    """Return the number of elements of what a reduction owns."""
    return sum(_count(architecture, Owned.parse(entry)) for entry in owns)


def _count(architecture: Architecture, part: Owned) -> int:
    parameters = architecture.unit_parameters(part.unit)
    if part.replicated:
        return sum(info.count for info in parameters if info.split_dim is None)
    if part.of:
        return sum(_slice_count(info, part) for info in parameters if info.split_dim is not None)
    return sum(info.count for info in parameters)


def _slice_count(info: ParameterInfo, part: Owned) -> int:
    """Return the elements of a slice of a parameter that is split; slices of a vocabulary differ by a row."""
    whole = info.shape[info.split_dim or 0]
    begin, end = part.bounds(whole)
    return info.count // whole * (end - begin)


def _tensor_groups(architecture: Architecture, pipelines: Sequence[Pipeline]) -> dict[str, list[tuple[int, ...]]]:
    """Return, for every unit, the tensor-parallel groups that hold it, each once."""
    held: dict[str, dict[tuple[int, ...], None]] = {unit: {} for unit in architecture.units}
    for pipeline in pipelines:
        for s, stage in enumerate(pipeline.stages):
            for unit in stage_units(architecture, pipeline, s):
                held[unit][stage.ranks] = None
    return {unit: list(groups) for unit, groups in held.items()}


def _parts(architecture: Architecture, unit: str, groups: Sequence[Sequence[int]]) -> Iterator[Owned]:
    """Yield the parts of a unit: itself where nobody splits it, else every slice and the replicated rest."""
    degrees = {len(ranks) for ranks in groups}
    if degrees <= {1}:
        yield Owned(unit)
        return
    split = {info.split_dim is not None for info in architecture.unit_parameters(unit)}
    if True in split:
        of = math.lcm(*degrees)
        cuts = sorted({j * of // degree for degree in degrees for j in range(degree + 1)})
        for begin, end in itertools.pairwise(cuts):
            yield Owned(unit, begin=begin, end=end, of=of)
    if False in split:
        # Last to be summed, since the first layer's norm ends the backward, and so the first to be gathered: the next
        # forward begins with it.
        yield Owned(unit, replicated=True)


def _refuse_two_slices(unit: str, groups: Sequence[Sequence[int]]) -> None:
    slices: dict[int, tuple[int, int]] = {}
    for ranks in groups:
        for j, rank in enumerate(ranks):
            known = slices.setdefault(rank, (j, len(ranks)))
            if known != (j, len(ranks)):
                raise PlanRefusedError(
                    f"rank {rank} would hold part {known[0] + 1} of {known[1]} and part {j + 1} of {len(ranks)} of "
                    f"{unit}: a rank that serves the same layers in several stages must have the same place in "
                    "tensor-parallel groups of the same size. Change the ranks in parallel.pipelines.")
