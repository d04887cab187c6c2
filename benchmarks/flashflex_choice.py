"""What the published FlashFlex planner chooses, reimplemented from its description for comparison.

Follows the public code's structure: recursive bisection of the machines' graph into pipelines and groups, a fixed
table of tensor-parallel shapes for the GPUs of a machine that fall into a group, layers in proportion to *memory*,
and a random walk over the number of pipelines of which the fastest by its own estimate is kept. Its estimate keeps the
number of micro-batches of the first number of pipelines; samples are counted truly here, as `samples`.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from benchmarks.flashflex_model import Model, StageOf

_SHAPES = {8: ((8,), (4, 4), (4, 2, 2)), 7: ((4, 2, 1), (2, 2, 2, 1)), 6: ((4, 2), (2, 2, 2)), 5: ((4, 1), (2, 2, 1)),
           4: ((4,), (2, 2), (2, 1, 1)), 3: ((2, 1), (1, 1, 1)), 2: ((2,), (1, 1)), 1: ((1,),)}
_ROUNDS = 40
_SEED = 40404


@dataclass(frozen=True)
class Choice:
    """The pipelines chosen, their seconds under its model, and the samples that they really take."""

    pipelines: tuple[tuple[StageOf, ...], ...]
    seconds: float
    samples: int


def choose(model: Model, pipelines: int, batch: int) -> Choice | None:
    """Return the choice of the random walk from a number of pipelines; None where nothing fits."""
    generator = random.Random(_SEED)
    gpus = [node.slot for node in model.cluster.nodes for _ in range(node.gpus)]
    microbatches = batch // pipelines
    most = max(1, len(gpus) // 5)
    count, best = pipelines, None
    for _ in range(_ROUNDS):
        parts = [_pipeline(model, part, generator) for part in _bisect(gpus, count)]
        if all(parts):
            chosen = tuple(part for part in parts if part)
            seconds = model.step_seconds(chosen, [microbatches] * count)
            # Its throughput counts the whole batch whatever the pipelines take, so it compares seconds alone.
            if best is None or seconds < best.seconds:
                best = Choice(chosen, seconds, microbatches * count)
        count = min(most, max(len(gpus) // model.layers + 1, count + generator.choice((-1, 1))))
    return best


def _bisect(gpus: list[str], parts: int) -> list[list[str]]:
    """Return the GPUs, in the order of their machines, in parts of equal number: the least cut of slow links."""
    if parts == 1:
        return [gpus]
    left = parts // 2
    at = round(len(gpus) * left / parts)
    return _bisect(gpus[:at], left) + _bisect(gpus[at:], parts - left)


def _pipeline(model: Model, gpus: list[str], generator: random.Random) -> tuple[StageOf, ...] | None:
    groups = 1 + sum(generator.random() < 0.2 for _ in range(2))
    best: tuple[float, tuple[StageOf, ...]] | None = None
    fragments = [fragment for group in _bisect(gpus, min(groups, len(gpus))) for fragment in Counter(group).items()]
    choices: list[list[tuple[str, int]]] = [[]]
    for node, number in fragments:
        choices = [[*chosen, *((node, tensor) for tensor in shape)] for chosen in choices for shape in _SHAPES[number]]
    for chosen in choices:
        stages = _by_memory(model, chosen)
        if stages is not None:
            seconds = model.pipeline_seconds(stages, 8)
            if best is None or seconds < best[0]:
                best = seconds, stages
    return None if best is None else best[1]


def _by_memory(model: Model, chosen: list[tuple[str, int]]) -> tuple[StageOf, ...] | None:
    kinds = {node.slot: node.gpu for node in model.cluster.nodes}
    memory = [model.specs[kinds[node]].memory_gb * tensor for node, tensor in chosen]
    if len(chosen) > model.layers:
        return None
    layers = [max(1, round(model.layers * each / sum(memory))) for each in memory]
    while sum(layers) != model.layers:
        s = layers.index(max(layers))
        layers[s] += 1 if sum(layers) < model.layers else -1
    stages = tuple(StageOf(node, kinds[node], tensor, count)
                   for (node, tensor), count in zip(chosen, layers, strict=True))
    fits = all(model.fits(stage, first=s == 0, last=s == len(stages) - 1) for s, stage in enumerate(stages))
    return stages if fits else None
