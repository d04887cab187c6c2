"""Small parts of sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_SECONDS_DIGITS = 3


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it is not one: `1 pipeline`, `2 pipelines`."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"


def seconds_words(seconds: float) -> str:
    """Return a duration with three digits: `21.2 ms`, `6.3 s`."""
    return f"{1000 * seconds:.{_SECONDS_DIGITS}g} ms" if seconds < 1 else f"{seconds:.{_SECONDS_DIGITS}g} s"


def numbers(ranks: Iterable[int]) -> str:
    """Return ranks in short: `0-3, 8`."""
    ordered = sorted(ranks)
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def shorten(names: Iterable[str]) -> str:
    """Return names in short: the first and the last of many."""
    listed: Sequence[str] = list(names)
    return ", ".join(listed) if len(listed) <= 4 else f"{listed[0]} ... {listed[-1]} ({len(listed)})"
