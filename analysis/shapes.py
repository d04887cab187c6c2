"""What the values of a run's files have to be for a table to use them; what is otherwise counts as unknown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from holmes_hpc.foreign import number, whole_number

Shape = Any
"""A check of a value, {name: shape} (a name that ends with `!` has to be there), or [shape of each item]."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return whole_number(value) is not None


def _is_number(value: Any) -> bool:
    return number(value) is not None


def _is_not_negative(value: Any) -> bool:
    return value is None or (number(value) is not None and (number(value) or 0.0) >= 0)


def _is_positive(value: Any) -> bool:
    return (number(value) or 0.0) > 0


CONFIG: Shape = {
    "cluster": {"name": _is_text, "order": _is_text, "emulate": {"compute": _is_text}},
    "model": {"name": _is_text, "num_layers": _is_whole, "hidden_size": _is_whole},
    "parallel": {"strategy": _is_text}, "train": {"precision": _is_text}, "launch": {}, "run": {"name": _is_text},
}
PLAN: Shape = {
    "predicted": {"machine": _is_text, "step_seconds": _is_positive, "tokens_per_second": _is_number,
                  "memory_gib_per_rank": [_is_not_negative]},
    "pipelines": [{"stages!": [{"ranks!": [_is_whole], "num_layers!": _is_whole, "tensor": _is_whole}]}],
    "groups": [{"ranks!": [_is_whole], "kind!": _is_text, "network!": _is_text}],
    "ranks": [{"rank!": _is_whole, "node": _is_text, "slot": _is_text, "fabric": _is_text, "gpu": _is_text}],
    "schedule": {"name": _is_text, "warmup_extra": _is_whole},
    "strategy": _is_text, "world_size": _is_whole, "micro_batch_size": _is_whole,
    "global_batch_size": _is_whole,
}
STEP: Shape = {"memory_gib_per_rank": [_is_not_negative], "stragglers": [_is_whole], "disturbed": [_is_text],
               "bytes_ethernet_per_rank": [_is_not_negative], "bytes_fabric_per_rank": [_is_not_negative]}


class _WrongError(Exception):
    """A value is not of its shape."""


def shaped(value: dict[str, Any], shape: Shape, wrong: set[str]) -> dict[str, Any]:
    """Return a mapping without the values that are not of their shape, whose paths are added to `wrong`.

    null counts as unknown everywhere. A list of which one item is wrong is left out whole: a layout without some of its
    stages would be another one.
    """
    found: dict[str, Any] = {}
    for name, item in value.items():
        inner = shape.get(name, shape.get(f"{name}!"))
        if inner is None or item is None:
            found[name] = item
        elif isinstance(inner, dict) and isinstance(item, dict):
            deeper: set[str] = set()
            found[name] = shaped(item, inner, deeper)
            wrong |= {f"{name}.{each}" for each in deeper}
        else:
            try:
                _check(item, inner)
                found[name] = item
            except _WrongError:
                wrong.add(str(name))
    return found


def _check(value: Any, shape: Shape) -> None:
    """Raise _WrongError where a value, or one inside of it, is not of its shape."""
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise _WrongError
        for item in value:
            _check(item, shape[0])
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            raise _WrongError
        for name, inner in shape.items():
            item = value.get(name.rstrip("!"))
            if item is not None or name.endswith("!"):
                _check(item, inner)
    else:
        is_right: Callable[[Any], bool] = shape
        if not is_right(value) or (isinstance(value, float) and math.isnan(value)):
            raise _WrongError
