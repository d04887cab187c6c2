"""Whether predictions put layouts into the order of measurements: Kendall's tau, and what choosing by them costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import sqrt
from statistics import fmean

from benchmarks.published import Row

FEWEST = 3
"""Layouts of one problem, below which there is no order to speak of."""
Pair = tuple[float, float]
"""Predicted and measured seconds for a sample."""


def problems(rows: Iterable[Row]) -> Mapping[str, Sequence[Pair]]:
    """Return rows by what was to be trained on what, where several layouts of it were measured.

    Repeated measurements of a layout count as their mean. Batches that differ a little (some layouts do not divide
    the others') are compared by the sample.
    """
    found: dict[str, dict[object, tuple[float, list[float]]]] = {}
    for row in rows:
        run, model = row.run, row.run.architecture
        name = f"{model.num_layers} x {model.hidden_size}, {run.gpus} {run.gpu}"
        name += f", {model.num_heads} heads, {model.sequence_length} tokens"
        layout = replace(run, global_batch=0, architecture=replace(model, name=""))
        _, measured = found.setdefault(name, {}).setdefault(layout, (run.seconds / run.global_batch, []))
        measured.append(row.seconds / run.global_batch)
    pairs = {name: [(predicted, fmean(measured)) for predicted, measured in layouts.values()]
             for name, layouts in found.items()}
    return {name: each for name, each in pairs.items() if len(each) >= FEWEST}


def tau(pairs: Sequence[Pair]) -> float:
    """Return Kendall's tau-b: 1 where both orders agree, -1 where one is the other backwards."""
    both = predicted_ties = measured_ties = 0
    for (a, x), (b, y) in combinations(pairs, 2):
        both += _sign(a - b) * _sign(x - y)
        predicted_ties += a == b
        measured_ties += x == y
    count = len(pairs) * (len(pairs) - 1) // 2
    scale = sqrt((count - predicted_ties) * (count - measured_ties))
    return both / scale if scale else 0.0


def _sign(difference: float) -> int:
    return (difference > 0) - (difference < 0)


def regret_percent(pairs: Sequence[Pair]) -> float:
    """Return how much slower than the fastest the layout is that is predicted to be the fastest."""
    return 100 * (min(pairs)[1] / min(measured for _, measured in pairs) - 1)
