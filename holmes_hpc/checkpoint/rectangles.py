"""Rectangles of a global tensor: where two of them meet, and what one leaves of the other."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Rectangle:
    """A box of a global tensor: its first element and its extent in each dim; a scalar's has no dims."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def volume(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Say whether the box lies inside a tensor of this shape."""
        if not len(shape) == len(self.offsets) == len(self.sizes):
            return False
        return all(offset >= 0 and size >= 0 and offset + size <= whole
                   for offset, size, whole in zip(self.offsets, self.sizes, shape, strict=True))

    def within(self, other: Rectangle) -> tuple[slice, ...]:
        """Return the slices that take this box out of a tensor that holds `other`."""
        return tuple(slice(mine - base, mine - base + size)
                     for mine, base, size in zip(self.offsets, other.offsets, self.sizes, strict=True))


def intersection(first: Rectangle, second: Rectangle) -> Rectangle | None:
    """Return what two boxes of one tensor share, or None."""
    begins = tuple(map(max, first.offsets, second.offsets))
    ends = tuple(min(a + s, b + t) for a, s, b, t in
                 zip(first.offsets, first.sizes, second.offsets, second.sizes, strict=True))
    sizes = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
    return Rectangle(begins, sizes) if all(size > 0 for size in sizes) else None


def remainder(whole: Rectangle, part: Rectangle) -> list[Rectangle]:
    """Return disjoint boxes that make up `whole` without `part`; `part` lies inside it."""
    boxes = []
    offsets, sizes = list(whole.offsets), list(whole.sizes)
    for dim in range(len(sizes)):
        begin, end = part.offsets[dim], part.offsets[dim] + part.sizes[dim]
        for low, high in ((offsets[dim], begin), (end, offsets[dim] + sizes[dim])):
            if high > low:
                boxes.append(Rectangle((*offsets[:dim], low, *offsets[dim + 1:]),
                                       (*sizes[:dim], high - low, *sizes[dim + 1:])))
        offsets[dim], sizes[dim] = begin, end - begin
    return boxes
