"""What is wrong with a run folder, in words: files that are missing or no such files, and figures that cannot be.

A table that left this out would show `real` for a run whose plan is lost, or a median of negative seconds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holmes_hpc.foreign import number
from holmes_hpc.runs.result import STATUSES

Record = dict[str, Any]

POSITIVE = ("step_seconds", "tokens_per_second", "samples_per_second", "tokens", "samples")
"""Figures of a step that are above 0 or unknown."""
NOT_NEGATIVE = ("exposed_comm_seconds", "bubble_fraction", "bytes_ethernet", "bytes_fabric", "memory_gib", "mfu",
                "tflops_per_gpu", "lr")
"""Figures of a step that are at least 0 or unknown."""
_FIGURES = (*POSITIVE, *NOT_NEGATIVE)
_FILES = {"config.yaml": "model and cluster are unknown", "plan.json": "layout and prediction are unknown",
          "job.json": "where it ran is unknown"}


def damages(folder: Path, read: dict[str, Record], dropped: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return what is wrong with a run: of its files (`read`: what they hold, empty where nothing is) and figures.

    `dropped` are, by file, the names of figures that were taken as unknown.
    """
    found = []
    for name, meaning in _FILES.items():
        if not read[name]:
            state = "is damaged or empty" if (folder / name).exists() else "is missing"
            found.append(f"{name} {state} ({meaning})")
    status = read["result.json"].get("status")
    if (folder / "result.json").exists() and status not in STATUSES:
        found.append(f"result.json has no status of {', '.join(STATUSES)}" if status is None
                     else f"result.json has the unknown status {status!r}, perhaps of another version")
    for name, figures in dropped.items():
        if figures:
            found.append(f"{name} has figures that cannot be, taken as unknown: {', '.join(sorted(set(figures)))}")
    return tuple(found)


def all_possible(records: list[Record], dropped: set[str]) -> list[Record]:
    """Return the records of steps without figures that cannot be; add their names to `dropped`.

    Whole columns are looked at first, since almost all are right: 2,000 steps take a tenth of the time so.
    """
    if all(_is_right([record.get(name) for record in records], zero=name in NOT_NEGATIVE) for name in _FIGURES):
        return records
    return [_possible(record, dropped) for record in records]


def _is_right(values: list[Any], *, zero: bool) -> bool:
    """Whether all are known for certain to be right; where one is not a number, all have to be looked at singly."""
    kinds = set(map(type, values))
    if kinds == {type(None)}:
        return True
    # The least of figures is not above 0 either where the first is NaN.
    least = min(values) if kinds <= {int, float} and values else math.nan
    return (least > 0 or (zero and least == 0)) and max(values) <= sys.float_info.max


def _possible(record: Record, dropped: set[str]) -> Record:
    wrong: set[str] = set()
    for name in _FIGURES:
        value = record.get(name)
        # A figure above 0 is right everywhere; most are.
        if not (type(value) is float and 0.0 < value < math.inf) and _is_wrong(value, zero=name in NOT_NEGATIVE):
            wrong.add(name)
    dropped |= wrong
    return {name: value for name, value in record.items() if name not in wrong} if wrong else record


def _is_wrong(value: Any, *, zero: bool) -> bool:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return False
    known = number(value)
    return known is None or known < 0 or (known == 0 and not zero)
