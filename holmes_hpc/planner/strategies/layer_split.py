"""How many layers each stage gets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from holmes_hpc.errors import DepthRefusedError, MemoryRefusedError, PlanRefusedError
from holmes_hpc.planner.cost.rank_memory import USABLE_FRACTION
from holmes_hpc.planner.strategies.closed_form import Floats
from holmes_hpc.words import counted


@dataclass(frozen=True)
class StageCost:
    """What a stage costs: seconds of a step for each layer, seconds that it costs without layers, its capacity."""

    layer_seconds: float
    fixed_seconds: float = 0.0
    max_layers: int | None = None


def uniform(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return equal shares; what remains goes one layer each to the first stages, since the last has the head.

    Raises PlanRefusedError when there are more stages than layers.
    """
    check_enough(num_layers, num_stages)
    share, rest = divmod(num_layers, num_stages)
    return tuple(share + (1 if stage < rest else 0) for stage in range(num_stages))


def holmes(num_layers: int, speeds: Sequence[float], alpha: float) -> tuple[int, ...]:
    """Return the split of the Holmes paper (arXiv 2312.03549): floor(alpha * S_i / sum S * N) layers for stage i.

    The floors do not sum to N. So the stages slower than the fastest take theirs (at least one layer), and the
    fastest stages share what is left, evenly, earlier ones first. With the paper's speeds (InfiniBand 197, RoCE
    160) and alpha 1.05 that gives the authors' own 26/22 of 48 layers and 16/14 of 30.
    Raises PlanRefusedError when there are more stages than layers, or nothing is left for the fastest.
    """
    check_enough(num_layers, len(speeds))
    if min(speeds) <= 0 or not all(math.isfinite(speed) for speed in speeds):
        raise PlanRefusedError(f"layer_split=holmes needs positive stage speeds, and has {list(speeds)}.")
    total, fastest = sum(speeds), max(speeds)
    shares = [max(1, math.floor(alpha * speed / total * num_layers)) for speed in speeds]
    fast = [stage for stage, speed in enumerate(speeds) if math.isclose(speed, fastest, rel_tol=1e-9)]
    left = num_layers - sum(share for stage, share in enumerate(shares) if stage not in fast)
    if left < len(fast):
        raise PlanRefusedError(
            f"layer_split=holmes with alpha={alpha} leaves {left} of {counted(num_layers, 'layer')} for the "
            f"{len(fast)} "
            f"fastest stages. Lower parallel.alpha, or set parallel.layer_split to adaptive or uniform."
        )
    for stage, share in zip(fast, uniform(left, len(fast)), strict=True):
        shares[stage] = share
    return tuple(shares)


def adaptive(num_layers: int, stages: Sequence[StageCost], layout: str = "the layout",
             remedies: str = "Take more nodes or a smaller model") -> tuple[int, ...]:
    """Return the split whose longest stage time is least, within each stage's capacity: see `cut_layers`.

    Raises PlanRefusedError when there are more stages than layers, MemoryRefusedError when the capacities hold fewer
    layers; `layout` are words for it, and `remedies` says what to do then.
    """
    check_enough(num_layers, len(stages))
    capacities = [num_layers if stage.max_layers is None else stage.max_layers for stage in stages]
    check_capacities(num_layers, capacities, layout, remedies)
    layer, end, caps = (numpy.array([each], dtype=float) for each in (
        [stage.layer_seconds for stage in stages], [stage.fixed_seconds for stage in stages], capacities))
    return tuple(cut_layers(layer, end, caps, num_layers)[0][0].astype(int).tolist())


def check_capacities(num_layers: int, capacities: Sequence[int], layout: str, remedies: str) -> None:
    """Raise MemoryRefusedError when stages hold fewer layers than there are; the arguments are those of `adaptive`."""
    check_enough(num_layers, len(capacities))
    if min(capacities) < 1 or sum(capacities) < num_layers:
        raise MemoryRefusedError(
            f"memory: the stages of {layout} can hold {', '.join(str(max(0, each)) for each in capacities)} layers in "
            f"the usable {100 * USABLE_FRACTION:.0f} % of their GPUs' memory, and {num_layers} are to be placed (each "
            f"stage at least 1). {remedies}."
        )


def cut_layers(layer: Floats, end: Floats, caps: Floats,
               num_layers: int) -> tuple[Floats, NDArray[numpy.bool_]]:
    """Return the layers of every stage (rows: pipelines) and which rows are possible: the longest stage is least.

    `layer` and `end` are a stage's seconds for each layer and without layers, `caps` the most layers it holds.
    """
    good = (caps.min(axis=1) >= 1) & (caps.sum(axis=1) >= num_layers) & (layer.shape[1] <= num_layers)
    # No cut is shorter than one of fractions of layers; from its floor on, each layer goes where it ends earliest.
    level = (num_layers + (end / layer).sum(axis=1)) / (1 / layer).sum(axis=1)
    most = numpy.maximum(caps, 1)
    layers = numpy.clip(numpy.floor((level[:, None] - end) / layer + 1e-9), 1, most)
    rows = numpy.arange(len(layers))
    missing = numpy.where(good, num_layers - layers.sum(axis=1), 0)
    while (missing > 0).any():
        after = numpy.where(layers < most, (layers + 1) * layer + end, numpy.inf)
        some = missing > 0
        layers[rows[some], after.argmin(axis=1)[some]] += 1
        missing[some] -= 1
    while (missing < 0).any():
        times = numpy.where(layers > 1, layers * layer + end, -1.0)
        some = missing < 0
        layers[rows[some], times.argmax(axis=1)[some]] -= 1
        missing[some] += 1
    return layers, good


def explicit(num_layers: int, counts: Sequence[int], num_stages: int) -> tuple[int, ...]:
    """Return the counts that the user gave.

    Raises PlanRefusedError when they are not one positive number a stage with the right sum.
    """
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 1 for count in counts):
        raise PlanRefusedError(f"parallel.layer_split={list(counts)}: every stage needs a whole number of layers, "
                               "at least 1.")
    if len(counts) != num_stages:
        raise PlanRefusedError(f"parallel.layer_split={list(counts)} names {counted(len(counts), 'stage')}, and the "
                               "pipeline "
                               f"has {num_stages}. Give {num_stages} numbers that sum to {num_layers}.")
    if sum(counts) != num_layers:
        raise PlanRefusedError(f"parallel.layer_split={list(counts)} sums to {sum(counts)}, and the model has "
                               f"{counted(num_layers, 'layer')}. Give {num_stages} numbers that sum to {num_layers}.")
    return tuple(counts)


def check_enough(num_layers: int, num_stages: int) -> None:
    """Raise DepthRefusedError when there are more stages than layers."""
    if num_stages > num_layers:
        raise DepthRefusedError(f"{num_stages} pipeline stages need at least as many layers, and the model has "
                                f"{num_layers}. Raise model.num_layers to at least {num_stages}.")
