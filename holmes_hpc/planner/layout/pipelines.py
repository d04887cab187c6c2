"""Building pipelines for stages of unequal width."""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.values import Pipeline, Stage
from holmes_hpc.words import counted


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
    common = math.lcm(*widths)
    cuts = sorted({i * (common // width) for width in set(widths) for i in range(width + 1)})
    return tuple(
        (Fraction(end - start, common), tuple(start * width // common for width in widths))
        for start, end in zip(cuts, cuts[1:], strict=False)
    )


def apportion(total: int, shares: Sequence[Fraction]) -> tuple[int, ...]:
    """Divide `total` micro-batches in proportion to `shares`: largest remainders first, each at least one.

    Ties go to the earlier pipeline. Raises PlanRefusedError when there are fewer micro-batches than pipelines.
    """
    if total < len(shares):
        raise PlanRefusedError(
            f"{counted(total, 'micro-batch')} for {counted(len(shares), 'pipeline')}: each needs at least one. Raise "
            f"train.global_batch_size, lower parallel.micro_batch_size, or use fewer pipelines "
            f"(a larger parallel.pipeline)."
        )
    common = math.lcm(*(Fraction(share).denominator for share in shares))
    parts = [int(share * common) for share in shares]
    whole = sum(parts)
    counts = [max(1, total * part // whole) for part in parts]
    # What is missing in each, in parts of a micro-batch; below nothing where one is more than its share.
    missing = [total * part - count * whole for part, count in zip(parts, counts, strict=True)]
    left = total - sum(counts)
    for i in sorted(range(len(counts)), key=lambda i: (-missing[i], i))[:max(0, left)]:
        counts[i] += 1
    surplus = [(missing[i], i) for i in range(len(counts)) if counts[i] > 1] if left < 0 else []
    heapq.heapify(surplus)
    for _ in range(-left):
        less, i = heapq.heappop(surplus)
        counts[i] -= 1
        if counts[i] > 1:
            heapq.heappush(surplus, (less + whole, i))
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
