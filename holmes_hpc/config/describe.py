"""What a setting may be, in words: for error messages and for `--help`."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig

from holmes_hpc.registry import ALL

NOT_RUN = " (not yet run by this version)"


@dataclasses.dataclass(frozen=True)
class Setting:
    """One field of the schema: its dotted path, its type, and its metadata (help line and limits)."""

    path: str
    kind: Any
    optional: bool
    metadata: Mapping[str, Any]

    @property
    def help(self) -> str:
        """The help line of the schema."""
        return str(self.metadata.get("help", ""))


def settings(schema: Any, path: str = "") -> Mapping[str, Setting]:
    """Return the settings of the dataclass `schema` by name; `path` stands before their names."""
    return _kept_settings(schema, path)


@functools.lru_cache(maxsize=1024)
def _kept_settings(schema: Any, path: str) -> Mapping[str, Setting]:
    """Return the settings, once for each schema and path: resolving annotations is a tenth of composing."""
    hints = typing.get_type_hints(schema)
    found = {}
    for field in dataclasses.fields(schema):
        kind, optional = _strip_none(hints[field.name])
        found[field.name] = Setting(f"{path}{field.name}", kind, optional, field.metadata)
    return types.MappingProxyType(found)


def item_schema(kind: Any) -> Any:
    """Return the dataclass that a dict or list of dataclasses holds, or None for any other type."""
    arguments = typing.get_args(kind)
    return arguments[-1] if arguments and dataclasses.is_dataclass(arguments[-1]) else None


def near(word: str, names: Iterable[str]) -> str:
    """Return ` Did you mean X?` when a name is close to `word`, else nothing."""
    matches = difflib.get_close_matches(word, [str(name) for name in names], 1, 0.6)
    return f" Did you mean {matches[0]}?" if matches else ""


def listed(names: Iterable[str]) -> str:
    """Return the names with commas between, or `none`."""
    return ", ".join(str(name) for name in names) or "none"


def expected(setting: Setting) -> str:
    """Return what a setting takes, such as `a whole number from 1` or `one of auto, holmes`."""
    text = _limits(setting)
    return f"{text}, or null" if setting.optional else text


def valid_words(limits: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values that a word may take: those of the schema, and what plug-ins added."""
    added = ALL[limits["added"]] if "added" in limits else ()
    return (*limits["valid"], *added)


def _limits(setting: Setting) -> str:
    limits = setting.metadata
    if "valid" in limits:
        not_run = limits.get("not_run", ())
        return f"one of {listed(f'{word}{NOT_RUN}' if word in not_run else word for word in valid_words(limits))}"
    text = _kind_in_words(setting.kind)
    if "minimum" in limits:
        text += f" from {_number(limits['minimum'])}"
    if "maximum" in limits:
        text += f" up to {_number(limits['maximum'])}"
    if "below" in limits:
        text += f" and below {limits['below']:g}"
    return text


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def fits(value: Any, kind: Any) -> bool:
    """Tell whether a composed value has the type that the schema asks for; whole numbers pass as numbers."""
    if kind is Any:
        return True
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    origin = typing.get_origin(kind) or kind
    if origin is list:
        return isinstance(value, Sequence | ListConfig) and not isinstance(value, str)
    if origin is dict or dataclasses.is_dataclass(kind):
        return isinstance(value, Mapping | DictConfig)
    return isinstance(value, origin)


def _kind_in_words(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Any: "a value"}
    if kind in names:
        return names[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return f"a list, each item {_kind_in_words(arguments[0])}"
    if origin is dict:
        return f"a mapping of names, each to {_kind_in_words(arguments[1])}"
    return f"a mapping with the keys {listed(settings(kind))}"


def _strip_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return kinds[0], True
