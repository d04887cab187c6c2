"""Small parts of sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_SECONDS_DIGITS = 3
_MINUTE, _HOUR = 60, 3600


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it is not one: `1 pipeline`, `2 pipelines`."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"


def seconds_words(seconds: float, digits: int = _SECONDS_DIGITS) -> str:
    """Return a duration with so many digits: `21.2 ms`, `6.3 s`, from two minutes on `45 min`, then `3.1 h`."""
    size, unit = seconds, "s"
    if seconds < 1:
        size, unit = 1000 * seconds, "ms"
    elif seconds >= 2 * _HOUR:
        size, unit = seconds / _HOUR, "h"
    elif seconds >= 2 * _MINUTE:
        size, unit = seconds / _MINUTE, "min"
    text = f"{size:.{digits}g}"
    return f"{f'{size:,.0f}' if 'e+' in text else text} {unit}"


def size_words(size_bytes: float) -> str:
    """Return a size with at least two digits that say something: `12.55 GiB`, `0.14 GiB`, `3.2 MiB`, `512 B`."""
    for unit, power, digits in (("GiB", 30, 2), ("MiB", 20, 1), ("KiB", 10, 1)):
        if size_bytes >= 0.1 * 2**power:
            return f"{size_bytes / 2**power:.{digits}f} {unit}"
    return f"{size_bytes:.0f} B"


def about(name: str, fact: object) -> str:
    """Return a fact behind what it is about, which is not said twice where the fact begins with it."""
    text = str(fact)
    return text if text.startswith(name) else f"{name}: {text}"


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
