"""What a reduction owns: whole units of the architecture, or slices of them under tensor parallelism.

An entry of `Reduction.owns` is one of

    layers.3               every parameter of the unit
    layers.3#replicated    those of its parameters that tensor parallelism does not split
    layers.3#1-2/4         the second quarter, along their split dim, of those that it does
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SLICE = re.compile(r"(\d+)-(\d+)/(\d+)")


def cut_of(whole: int, number: int, parts: int) -> int:
    """Return where cut `number` of 0 to `parts` lies in a dim of `whole` entries; parts differ by one at most.

    Cuts into other numbers of parts agree with it: cut 1 of 2 is cut 2 of 4.
    """
    return whole * number // parts


@dataclass(frozen=True)
class Owned:
    """One entry of `Reduction.owns`; `begin`, `end` and `of` are meaningful for a slice (`of` > 0) only."""

    unit: str
    replicated: bool = False
    begin: int = 0
    end: int = 0
    of: int = 0

    def __str__(self) -> str:
        if self.replicated:
            return f"{self.unit}#replicated"
        return f"{self.unit}#{self.begin}-{self.end}/{self.of}" if self.of else self.unit

    def bounds(self, whole: int) -> tuple[int, int]:
        """Return where a slice begins and ends in a split dim of `whole` entries, which need not divide evenly."""
        return cut_of(whole, self.begin, self.of), cut_of(whole, self.end, self.of)

    @classmethod
    def parse(cls, text: str) -> Owned:
        """Read an entry. Raises ValueError when it has none of the three forms."""
        unit, mark, part = text.partition("#")
        if not mark:
            return cls(unit)
        if part == "replicated":
            return cls(unit, replicated=True)
        match = _SLICE.fullmatch(part)
        if match is None or not unit:
            raise ValueError(f"{text!r} names no parameters: write UNIT, UNIT#replicated or UNIT#1-2/4")
        begin, end, of = (int(number) for number in match.groups())
        if not begin < end <= of:
            raise ValueError(f"{text!r}: a slice runs from a lower to a higher part, at most to {of}")
        return cls(unit, begin=begin, end=end, of=of)
