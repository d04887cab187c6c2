"""How a buffer is cut into buckets, which are summed and gathered at once."""

from __future__ import annotations

_SMALLEST = 4
"""The last buckets have this fraction of the size: see `bucket_cuts`."""


def bucket_cuts(total: int, size: int, step: int = 1) -> list[int]:
    """Return where the buckets of a buffer of `total` elements begin, and `total`.

    Buckets have `size` elements, but those at the end, which a backward finishes last and a forward uses first, are
    smaller: a quarter, a quarter and a half, and the first one has what is left. Nothing hides the sum of the last
    bucket, nor the gather of what the first layer waits for. `total` and `size` are multiples of `step`, and so is
    every cut.
    """
    smallest = max(1, size // _SMALLEST // step) * step
    cuts, take = [total], smallest
    while cuts[-1] > 0:
        cuts.append(max(0, cuts[-1] - take))
        take = min(size, max(smallest, total - cuts[-1]))
    return cuts[::-1]
