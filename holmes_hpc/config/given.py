"""Settings as a script has them, a mapping of Python values, written as overrides."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holmes_hpc.config.folders import options, package_folder
from holmes_hpc.config.written_overrides import quoted
from holmes_hpc.errors import ConfigurationError


def overrides_of(settings: str | Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Return the overrides that mean the same as `settings`.

    A text is split as a shell would; a sequence is taken as it is. Of a mapping, keys are dotted or nested; a text at a
    group's name chooses its file, as `{"cluster": "mixed", "train": {"steps": 5}, "optimizer.lr": 1e-3}`. Raises
    ConfigurationError for what is none of these.
    """
    if isinstance(settings, str):
        return shlex.split(settings)
    if isinstance(settings, Mapping):
        return list(_of_mapping(settings, ""))
    if isinstance(settings, Sequence) and all(isinstance(text, str) for text in settings):
        return list(settings)
    raise ConfigurationError(f"settings are given as {type(settings).__name__}; give overrides such as "
                             '["+cluster=mixed", "train.steps=5"], or a mapping such as '
                             '{"cluster": "mixed", "train.steps": 5}.')


def _of_mapping(mapping: Mapping[str, Any], path: str) -> Iterator[str]:
    for key, value in mapping.items():
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"{path}{key!r}: the names of settings are texts, such as train.steps.")
        bare = key.lstrip("+")
        where = f"{path}{bare}"
        if not path and isinstance(value, str) and options(bare, package_folder()):
            yield f"{'+' if bare == 'cluster' else ''}{bare}={value}"
        elif isinstance(value, Mapping) and value:
            yield from _of_mapping(value, f"{where}.")
        else:
            yield f"{'++' if '.' in where else ''}{where}={_written(value, where)}"


def _written(value: Any, where: str) -> str:
    """Return a value in Hydra's grammar; `where` names its setting in errors."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else str(float(value))
    if isinstance(value, str | os.PathLike):
        return quoted(os.fspath(value))
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_written(item, where)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(_written(item, where) for item in value) + "]"
    raise ConfigurationError(f"{where}={value!r}: is of {type(value).__name__}; give a number, text, truth value, "
                             "None, or lists and mappings of these.")
