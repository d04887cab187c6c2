"""Slurm's node lists: `node[01-03,7]` and the like, expanded as `scontrol show hostnames` does.

Order and duplicates are kept, since the position in the list is the node's number in the job. Text after a
bracket (`gpu[1-2].site`) is understood as from Slurm 23.11 on. What Slurm refuses is refused, and so is what
some releases turn into wrong names without a word, such as `node[1-3` or `node[1, 3]`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from holmes_hpc.errors import HolmesError

# Slurm's own limit for one range; it keeps a typing error from filling the memory.
LARGEST_RANGE = 64 * 1024
MOST_NAMES_OF_AN_ENTRY = 1024 * 1024
# strtoul's largest value, which Slurm cannot tell from an overflow.
NUMBER_LIMIT = 2**64 - 1

_SEPARATORS = frozenset(", \t\n\r")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


class HostlistError(HolmesError, ValueError):
    """A node list that Slurm refuses, or would turn into names of no node."""


def expand_hostlist(text: str) -> list[str]:
    """Return the host names of a Slurm node list, in its order, duplicates kept.

    Entries are separated by commas or white space; empty entries are skipped, so an empty text has no names.
    Raises HostlistError for unbalanced brackets, a malformed, descending or huge range, and text that is no
    list.
    """
    return [name for entry in _entries(text) for name in _expand_entry(entry)]


def _entries(text: str) -> Iterator[str]:
    """Split at the separators that are outside of brackets."""
    start, opened = 0, False
    for position, letter in enumerate(text):
        if letter == "[":
            if opened:
                raise HostlistError(f"node list {text!r}: '[' inside brackets at character {position + 1}; "
                                    "brackets cannot be nested")
            opened = True
        elif letter == "]":
            if not opened:
                raise HostlistError(f"node list {text!r}: ']' without '[' at character {position + 1}")
            opened = False
        elif letter in _SEPARATORS and not opened:
            if position > start:
                yield text[start:position]
            start = position + 1
    if opened:
        raise HostlistError(f"node list {text!r}: '[' is never closed; write ranges as node[1-3]")
    if start < len(text):
        yield text[start:]


def _expand_entry(entry: str) -> Iterable[str]:
    if "(" in entry or ")" in entry:
        raise HostlistError(f"node list entry {entry!r} is no host name; Slurm prints (null) and the like "
                            "where a job has no nodes yet")
    pieces = re.split(r"[\[\]]", entry)
    texts, brackets = pieces[0::2], [_numbers(inside, entry) for inside in pieces[1::2]]
    if not brackets:
        return [entry]
    if any("/" in piece for piece in texts):
        raise HostlistError(f"node list entry {entry!r}: '/' is not part of a host name, "
                            "and a node list has no steps; list the numbers")
    total = 1
    for numbers in brackets:
        total *= len(numbers)
    if total > MOST_NAMES_OF_AN_ENTRY:
        raise HostlistError(f"node list entry {entry!r} has {total} names; "
                            f"at most {MOST_NAMES_OF_AN_ENTRY} are expanded")
    return _combine(texts, brackets)


def _combine(texts: list[str], brackets: list[list[str]]) -> Iterator[str]:
    """Yield every combination in Slurm's order.

    Slurm takes the last bracket as the running number and resolves the others from the right, so the last but
    one varies slowest, then the one before it, and the last varies fastest.
    """
    slow_to_fast = [*range(len(brackets) - 2, -1, -1), len(brackets) - 1]
    for chosen in itertools.product(*(brackets[place] for place in slow_to_fast)):
        numbers = dict(zip(slow_to_fast, chosen, strict=True))
        yield texts[0] + "".join(numbers[place] + texts[place + 1] for place in range(len(brackets)))


def _numbers(inside: str, entry: str) -> list[str]:
    """Return the numbers of one bracket as text; a range has at least the width of its first number."""
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise HostlistError(f"node list entry {entry!r}: {part!r} is no number and no range; "
                                "inside brackets only forms such as 3 and 01-16 are valid, without blanks")
        width, first, last = len(match[1]), int(match[1]), int(match[2] or match[1])
        if last < first:
            raise HostlistError(f"node list entry {entry!r}: the range {part!r} goes down; "
                                f"write {match[2]}-{match[1]}")
        if last >= NUMBER_LIMIT or last - first >= LARGEST_RANGE:
            raise HostlistError(f"node list entry {entry!r}: the range {part!r} is too large; "
                                f"Slurm takes at most {LARGEST_RANGE} nodes in a range")
        numbers.extend(f"{number:0{width}d}" for number in range(first, last + 1))
    return numbers
