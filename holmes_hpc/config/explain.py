"""Turn what Hydra, OmegaConf and YAML raise while composing into one message: the fact, its place, the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any

from hydra.errors import MissingConfigException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    GrammarParseError,
    OmegaConfBaseException,
    ValidationError,
)
from yaml import MarkedYAMLError

from holmes_hpc.config.check import VARIABLES, unknown_key
from holmes_hpc.config.describe import Setting, expected, fits, item_schema, listed, settings
from holmes_hpc.config.files import own_file, own_files
from holmes_hpc.config.list_items import wrong_item
from holmes_hpc.config.schema import Root
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.foreign import ForeignError, read_yaml

_ALREADY = re.compile(r"An item is already at '([^']+)'")
_MEND = f" Mend the ${{...}} there. {VARIABLES}"


def explain(error: Exception, overrides: Sequence[str]) -> ConfigurationError:
    """Return the error to raise instead of `error`, which composing `overrides` raised."""
    for cause in _chain(error):
        if isinstance(cause, ConfigurationError):
            return cause
        if isinstance(cause, RecursionError):
            return ConfigurationError(_named(overrides) + "a configuration file leads back to itself, by its name in "
                                      "`defaults` or by an anchor. Take that out.")
        if isinstance(cause, MarkedYAMLError):
            return ConfigurationError(_yaml(cause))
        if isinstance(cause, MissingConfigException):
            return ConfigurationError(_place(error, overrides) + _missing_file(cause))
        if isinstance(cause, UnicodeDecodeError):  # of a file that another one names in its defaults
            return ConfigurationError(_named(overrides) + f"the file is not UTF-8 text: {cause}. Save it as UTF-8.")
        if isinstance(cause, PermissionError):
            return ConfigurationError(f"{cause.filename}: it may not be read ({cause.strerror}). Make it readable, or "
                                      "name another folder by XDG_CONFIG_HOME or hydra.searchpath.")
        if isinstance(cause, OmegaConfBaseException) and cause.full_key:
            if _is_in_a_list(str(cause.full_key)) and (inside := wrong_item(overrides)):
                return ConfigurationError(inside)
            return ConfigurationError(_setting(cause, _place(error, overrides)))
    unlike = _unlike_container(overrides)
    if unlike:
        return ConfigurationError(unlike)
    for cause in _chain(error):
        if isinstance(cause, OmegaConfBaseException) and "$VALUE" not in str(cause):
            return ConfigurationError(_place(error, overrides) + str(cause).splitlines()[0])
    words = _two_clusters(str(error), overrides)
    if words:
        return ConfigurationError(words)
    taken = _ALREADY.search(str(error))
    if taken:
        key = taken[1]
        override = next((text for text in overrides if text.lstrip("+").startswith(f"{key}=")), f"+{key}")
        return ConfigurationError(f"{override}: {key} is there already, and nothing can be added in its place. Write "
                                  f"{key}=VALUE without the plus, or +{key}.NAME=VALUE for what is to come into it.")
    first = str(error).strip().splitlines()[:1] or [type(error).__name__]
    return ConfigurationError(_place(error, overrides) + first[0])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes, the innermost first.

    Under a debugger, or where OC_CAUSE=1 is set, causes of OmegaConf's lead back to the error itself.
    """
    errors: list[BaseException] = []
    while error is not None and not any(error is each for each in errors):
        errors.append(error)
        error = error.__cause__ or error.__context__
    yield from reversed(errors)


def _is_in_a_list(key: str) -> bool:
    """Whether an error may be of an item of a list: its key is a bare name in there, or ends with its number."""
    return key.split(".")[0] not in settings(Root) or key[-1:] == "]" or key.rpartition(".")[2].isdigit()


def _unlike_container(overrides: Sequence[str]) -> str:
    """Return which setting of a user's own file is a list and should be a mapping, or the other way, else nothing.

    OmegaConf says neither which setting it is nor in which file.
    """
    for group, path in own_files(overrides):
        try:
            value = read_yaml(path)
        except ForeignError:
            continue
        wrong = _first_unlike(value, group)
        if wrong is not None:
            return f"file {path}: {wrong.path}: expected {expected(wrong)} ({wrong.help})."
    return ""


def _first_unlike(value: Any, path: str) -> Setting | None:
    setting = _find(path)[0]
    if setting is not None and isinstance(value, dict | list) and not fits(value, setting.kind):
        return setting
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next((wrong for name, entry in entries if (wrong := _first_unlike(entry, f"{path}.{name}"))), None)


def _named(overrides: Sequence[str]) -> str:
    """Return the override that names a cluster file, in front of a message about it."""
    return next((f"{override}: " for override in overrides if override.lstrip("+").startswith("cluster=")), "")


def _two_clusters(text: str, overrides: Sequence[str]) -> str:
    """Return what to say where two clusters were named, or nothing."""
    named = [override for override in overrides if override.lstrip("+").startswith("cluster=")]
    if "Multiple values for cluster" not in text or len(named) < 2:
        return ""
    return f"{' '.join(named)}: a run has one cluster. Keep one; a cluster file may hold several partitions."


def _yaml(error: MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else "a configuration file"
    return f"{place}: {error.problem or error.context}; not readable as YAML. Mend that line."


def _missing_file(error: MissingConfigException) -> str:
    name = error.missing_cfg_file or "a configuration file"
    valid = f" Valid: {listed(error.options)}." if error.options else ""
    return f"no configuration file {name}.{valid}"


def _place(error: Exception, overrides: Sequence[str]) -> str:
    """Return where it went wrong: a file or an override by Hydra's message, else the only file of a user's own."""
    text = str(error)
    for override in overrides:
        if f"'{override}'" in text or text.endswith(f" {override}"):
            return f"{override}: "
    if text.startswith("In '") and "':" in text:
        group, _, name = text[4 : text.index(chr(39), 4)].rpartition("/")
        return f"file {own_file(group, name, overrides) or f'{group}/{name}.yaml'}: "
    own = list(own_files(overrides))
    return f"file {own[0][1]}: " if len(own) == 1 and "'" not in text.partition(":")[0] else ""


def _setting(error: OmegaConfBaseException, place: str) -> str:
    key = str(error.full_key).replace("[", ".").replace("]", "")
    if place.startswith("+cluster.partitions.") and "." not in key:
        return _no_such_label(place.split("=")[0].split(".")[2])
    setting, known, prefix = _find(key)
    first = str(error.msg or error).splitlines()[0].rstrip(".")
    if isinstance(error, ConfigKeyError | ConfigAttributeError):
        if key.startswith("cluster.partitions.") and key.count(".") == 2:
            return _no_such_label(key.split(".")[2])
        if setting is not None and not place.startswith("+"):
            return f"{key}: {setting.path} has no such name yet; add it with a plus, as in '+{key}=VALUE'."
        return place + _no_such_key(error, key, prefix, known, first)
    if setting is None or not isinstance(error, ValidationError):
        return f"{place}{key}: {first}.{_MEND if isinstance(error, GrammarParseError) else ''}"
    if place.startswith(f"{key}="):
        return f"{place}expected {expected(setting)} ({setting.help})."
    return f"{place}{key}: {first}. Expected {expected(setting)} ({setting.help})."


def _no_such_key(error: OmegaConfBaseException, key: str, prefix: str, known: list[str], first: str) -> str:
    if is_dataclass(error.object_type):  # the key may stand in an item of a list, where full_key has no path
        return unknown_key(prefix if known else "", key.removeprefix(prefix), settings(error.object_type))
    if key.startswith("cluster.partitions."):
        return _no_such_label(key.split(".")[2])
    return unknown_key(prefix, key.removeprefix(prefix), known) if known else f"{key}: {first}."


def _no_such_label(label: str) -> str:
    return (
        f"cluster.partitions.{label}: the cluster has no such label. Add one as "
        f"'+cluster.partitions={{{label}: {{nodes: 1, gpu: a100-80g, nic: hdr200}}}}', or in a cluster file of yours."
    )


def _find(key: str) -> tuple[Setting | None, list[str], str]:
    """Return the setting at a dotted path; where there is none, the valid names and the path that leads to them."""
    known, prefix, setting = settings(Root), "", None
    parts = key.split(".")
    while parts:
        part = parts.pop(0)
        if part not in known:
            return None, list(known), prefix
        setting = known[part]
        prefix += f"{part}."
        item = item_schema(setting.kind)
        if item is not None and parts:
            prefix += f"{parts.pop(0)}."
            known = settings(item, prefix)
        elif is_dataclass(setting.kind):
            known = settings(setting.kind, prefix)
        else:
            return setting, [], prefix
    return setting, list(known), prefix
