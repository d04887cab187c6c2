"""Reads the configuration that a run or a sweep keeps, also one that an older version wrote."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from holmes_hpc.config.describe import item_schema, settings
from holmes_hpc.config.schema import Root
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.foreign import ForeignError, parse_yaml, read_text

UNREADABLE = (OmegaConfBaseException, LookupError, ValueError, TypeError, AttributeError, ArithmeticError)
"""What reading a configuration that nobody checked may raise: settings are missing, or of another type."""

_REMEDY = "without its settings the run cannot go on, so start it anew"


def read_kept(path: Path, say: Callable[[str], None] = lambda text: None) -> DictConfig:
    """Return the configuration in a `config.yaml`; settings that it lacks have the schema's defaults.

    Those are settings that are newer than the run; `say` is told of them in one line. Raises ConfigurationError for a
    file that is missing, damaged, or holds no configuration.
    """
    try:
        text = read_text(path)
        if not isinstance(parse_yaml(text, str(path)), dict):  # which bounds it
            raise ForeignError(f"{path}: it holds no settings")
        value = OmegaConf.to_container(OmegaConf.create(text))  # numbers as OmegaConf writes and reads them
        added: list[str] = []
        config = OmegaConf.create(_filled(value, Root, "", added))
    except ForeignError as error:
        raise ConfigurationError(f"{error}; {_REMEDY}") from error
    except (OmegaConfBaseException, YAMLError, ValueError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigurationError(f"{path}: its settings cannot be read ({reason}); {_REMEDY}") from error
    if added:
        say(f"{path} was written by another version and lacks {', '.join(added)}; each has its default")
    return config


def _filled(value: Any, schema: Any, path: str, added: list[str]) -> Any:
    """Return a mapping with what it lacks of the dataclass `schema`, whose names `added` is given."""
    if not isinstance(value, Mapping):
        return value
    filled = dict(value)
    for name, setting in settings(schema, path).items():
        if name not in filled:
            filled[name] = _default(schema, name)
            added.append(setting.path)
        elif dataclasses.is_dataclass(setting.kind):
            filled[name] = _filled(filled[name], setting.kind, f"{setting.path}.", added)
        elif (item := item_schema(setting.kind)) is not None:
            filled[name] = _filled_items(filled[name], item, setting.path, added)
    return filled


def _default(schema: Any, name: str) -> Any:
    return copy.deepcopy(_defaults(schema)[name])


@cache
def _defaults(schema: Any) -> dict[str, Any]:
    defaults = OmegaConf.to_container(OmegaConf.structured(schema))
    return {str(name): value for name, value in defaults.items()} if isinstance(defaults, dict) else {}


def _filled_items(value: Any, item: Any, path: str, added: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _filled(each, item, f"{path}.{name}.", added) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, item, f"{path}.{number}.", added) for number, each in enumerate(value)]
    return value
