"""Building pipelines for stages of unequal width."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.values import Pipeline, Stage


def overlaps(widths: Sequence[int]) -> tuple[tuple[Fraction, tuple[int, ...]], ...]:
    """Return the overlaps of the equal subdivisions of [0, 1) into `widths[s]` parts, one for each stage.

    Each overlap is a pipeline: its share of the batch and, for every stage, the part that it flows through. Six
    parts beside two give 6 pipelines (each of the two serves three of them), five beside three give 7.
    """
    return _overlaps(tuple(widths))


@functools.lru_cache(maxsize=4096)
def count_overlaps(widths: frozenset[int]) -> int:
    """Return how many pipelines stages of these widths make."""
    widest = max(widths)
    if all(widest % width == 0 for width in widths):
        return widest
    common = math.lcm(*widths)
    return len({i * (common // width) for width in widths for i in range(width)})


@functools.lru_cache(maxsize=256)
def _overlaps(widths: tuple[int, ...]) -> tuple[tuple[Fraction, tuple[int, ...]], ...]:
    if len(set(widths)) == 1:
        return tuple((Fraction(1, widths[0]), (i,) * len(widths)) for i in range(widths[0]))
    cuts = sorted({Fraction(i, width) for width in set(widths) for i in range(width + 1)})
    return tuple(
        (end - start, tuple(math.floor(start * width) for width in widths))
        for start, end in zip(cuts, cuts[1:], strict=False)
    )


def apportion(total: int, shares: Sequence[Fraction]) -> tuple[int, ...]:
    """Divide `total` micro-batches in proportion to `shares`: largest remainders first, each at least one.

    Ties go to the earlier pipeline. Raises PlanRefusedError when there are fewer micro-batches than pipelines.
    """
    if total < len(shares):
        raise PlanRefusedError(
            f"{total} micro-batches for {len(shares)} pipelines: each needs at least one. Raise "
            f"train.global_batch_size, lower parallel.micro_batch_size, or use fewer pipelines "
            f"(a larger parallel.pipeline)."
        )
    whole = sum(shares)
    exact = [total * share / whole for share in shares]
    counts = [max(1, math.floor(each)) for each in exact]
    while sum(counts) < total:
        i = max(range(len(counts)), key=lambda i: (exact[i] - counts[i], -i))
        counts[i] += 1
    while sum(counts) > total:
        i = max((i for i in range(len(counts)) if counts[i] > 1), key=lambda i: (counts[i] - exact[i], -i))
        counts[i] -= 1
    return tuple(counts)


def count_microbatches(global_batch_size: int, micro_batch_size: int) -> int:
    """Return the number of micro-batches of a step. Raises PlanRefusedError when it is no whole number."""
    if global_batch_size % micro_batch_size:
        divisors = [n for n in range(1, min(global_batch_size, 64) + 1) if global_batch_size % n == 0]
        raise PlanRefusedError(
            f"train.global_batch_size={global_batch_size} is not divisible by "
            f"parallel.micro_batch_size={micro_batch_size}. Set the micro-batch to one of "
            f"{', '.join(map(str, divisors))}, or change the batch."
        )
    return global_batch_size // micro_batch_size


def build_pipelines(stages: Sequence[Sequence[tuple[int, ...]]], layers: Sequence[int],
                    microbatches: int) -> tuple[Pipeline, ...]:
    """Return the pipelines through `stages`, each a list of tensor-parallel groups, one for each data-parallel part.

    Raises PlanRefusedError when there are fewer micro-batches than pipelines.
    """
    ways = overlaps([len(parts) for parts in stages])
    counts = apportion(microbatches, [share for share, _ in ways])
    first = [sum(layers[:s]) for s in range(len(layers))]
    return tuple(
        Pipeline(count, tuple(Stage(stages[s][part], first[s], layers[s]) for s, part in enumerate(way)))
        for count, (_, way) in zip(counts, ways, strict=True)
    )
