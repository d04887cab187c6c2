"""What is wrong inside a list of settings, such as `cluster.links`, of which OmegaConf's errors tell no path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException

from holmes_hpc.config.check import unknown_key
from holmes_hpc.config.describe import Setting, expected, fits, item_schema, settings
from holmes_hpc.config.files import own_files
from holmes_hpc.config.schema import Root
from holmes_hpc.foreign import ForeignError, read_yaml

_TRUTH = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}
_FROM_TEXT: Mapping[Any, Callable[[str], Any]] = {int: int, float: float, bool: lambda text: _TRUTH[text.lower()]}


def wrong_item(overrides: Sequence[str]) -> str:
    """Return the first item of a list of settings, of an override or the user's own files, that is none; else nothing.

    It is told with its path, after the file where it stands in one, and with what is valid.
    """
    for text in overrides:
        key, value = _parsed(text)
        for problem in _wrong(settings(Root), key.split("."), value):
            return problem
    for group, path in own_files(overrides):
        try:
            value = read_yaml(path)
        except ForeignError:
            continue
        for problem in _wrong(settings(Root), [group], value):
            return f"file {path}: {problem}"
    return ""


def _parsed(text: str) -> tuple[str, Any]:
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException:
        return "", None
    return override.key_or_group, _plain(override.value()) if not override.is_sweep_override() else None


def _plain(value: Any) -> Any:
    """Return a value of Hydra's grammar without the marks of how it was quoted."""
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _wrong(known: Mapping[str, Setting], parts: Sequence[str], value: Any) -> Iterator[str]:
    """Yield what is wrong in lists of settings below the setting that `parts` lead to."""
    setting = known.get(parts[0])
    if setting is None:
        return
    item, path = item_schema(setting.kind), f"{setting.path}."
    if dataclasses.is_dataclass(setting.kind):
        inner = settings(setting.kind, path)
        if len(parts) > 1:
            yield from _wrong(inner, parts[1:], value)
        elif isinstance(value, Mapping):
            for name, each in value.items():
                yield from _wrong(inner, [str(name)], each)
    elif item is not None and len(parts) == 1 and isinstance(value, list):
        for number, each in enumerate(value):
            yield from _wrong_in_item(item, f"{path}{number}", each, setting)


def _wrong_in_item(schema: Any, path: str, item: Any, of: Setting) -> Iterator[str]:
    if isinstance(item, str) and "${" in item:
        return
    known = settings(schema, f"{path}.")
    if not isinstance(item, Mapping):
        yield f"{path}={item}: expected a mapping with some of the keys {', '.join(known)} ({of.help})."
        return
    for name, value in item.items():
        setting = known.get(str(name))
        if setting is None:
            yield unknown_key(f"{path}.", str(name), known)
        elif not _converts(value, setting):
            yield f"{setting.path}={value}: expected {expected(setting)} ({setting.help})."


def _converts(value: Any, setting: Setting) -> bool:
    """Whether OmegaConf takes a value: it makes numbers and truth values of text, as files hold it."""
    if value is None:
        return setting.optional
    if isinstance(value, str):
        if "${" in value or setting.kind is str:
            return True
        if setting.kind not in _FROM_TEXT:
            return False
        try:
            _FROM_TEXT[setting.kind](value)
        except (LookupError, ValueError):
            return False
        return True
    return setting.kind is str or fits(value, setting.kind)
