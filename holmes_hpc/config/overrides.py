"""Check overrides before Hydra composes, so that its messages need not be guessed at afterwards."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException

from holmes_hpc.config.check import unknown_key
from holmes_hpc.config.describe import Setting, expected, item_schema, listed, near, settings
from holmes_hpc.config.files import check_file, own_file, shadowed_file, why_not_a_file
from holmes_hpc.config.schema import Root
from holmes_hpc.config.written_overrides import corrected, nesting
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.paths import is_folder
from holmes_hpc.quoting import for_shell

MOST_JOBS = 1000
"""Jobs that one sweep may start: each is composed and planned before the first one starts."""
NO_DEFAULT_GROUPS = ("cluster",)
"""Groups that the defaults list does not name, so that an option of theirs is written with `+`."""
_DEEPEST = 64
_UNREADABLE = re.compile(r"^Lexer\w*Exception: .*")
"""What Hydra's parser says of a character that it has no rule for."""


def parse(overrides: Sequence[str], loader: ConfigLoader) -> list[Override]:
    """Parse overrides. Raises ConfigurationError for one that does not follow Hydra's grammar."""
    parser = OverridesParser.create(config_loader=loader)
    parsed = []
    for text in overrides:
        if nesting(text) > _DEEPEST:
            raise ConfigurationError(f"{text[:60]}...: its brackets are nested more than {_DEEPEST} deep. Write what "
                                     "is meant, as in KEY=VALUE.")
        try:
            parsed += parser.parse_overrides([text])
        except OverrideParseException as error:
            words = _UNREADABLE.sub("a character that needs quotes", str(error).splitlines()[0])
            raise ConfigurationError(
                f"cannot read the override {text!r}: {words}. Overrides are written key=value; a value with special "
                f"characters is quoted twice, for the shell and for Hydra: {for_shell(corrected(text))}"
            ) from error
    return parsed


def check_overrides(overrides: Sequence[str], loader: ConfigLoader) -> None:
    """Check search paths, group options and keys. Raises ConfigurationError for the first that does not exist."""
    parsed = parse(overrides, loader)
    _check_search_paths(parsed)
    groups = set(_names(loader, "", ObjectType.GROUP))
    for override in parsed:
        if override.is_sweep_override():
            raise ConfigurationError(_sweep_without_m(override, groups))
        if override.key_or_group in groups:
            _check_option(override, loader, overrides)
        elif "/" not in override.key_or_group:
            _check_key(override, groups)


def expand_sweep(overrides: Sequence[str], loader: ConfigLoader) -> list[list[str]]:
    """Return the override list of every job of a sweep, in the order in which Hydra's own sweeper runs them.

    Raises ConfigurationError for what that sweeper cannot expand, such as an interval.
    """
    choices = []
    for override in parse(overrides, loader):
        if not override.is_sweep_override():
            choices.append([override.input_line or ""])
        elif override.is_discrete_sweep():
            choices.append(_values(override, loader))
        else:
            raise ConfigurationError(f"{override.input_line}: an interval needs another sweeper; list the values, "
                                     "or write range(first, end, step).")
    jobs = math.prod(map(len, choices))
    if jobs > MOST_JOBS:
        longest = max(choices, key=len)[0].partition("=")[0].lstrip("+")
        raise ConfigurationError(f"{longest}: the values of this sweep make {jobs:,} jobs, and at most {MOST_JOBS:,} "
                                 "start at once. Sweep over fewer values.")
    return [list(job) for job in itertools.product(*choices)]


def _values(override: Override, loader: ConfigLoader) -> list[str]:
    """Return the overrides of a sweep's values. Raises ConfigurationError where there are none, or too many."""
    key = override.get_key_element()
    try:
        values = list(itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1))
    except (ValueError, TypeError) as error:  # such as a range whose step is zero
        raise ConfigurationError(f"{override.input_line}: {error}. Write range(first, end, step), or list the values."
                                 ) from error
    if not values:
        names = loader.get_group_options(override.key_or_group, ObjectType.CONFIG)
        valid = f" Valid: {listed(names)}." if names else ""
        raise ConfigurationError(f"{override.input_line}: these are no values, so no job would start.{valid}")
    if len(values) > MOST_JOBS:
        raise ConfigurationError(f"{override.input_line}: a sweep starts at most {MOST_JOBS:,} jobs, and these are "
                                 "more values. Sweep over fewer.")
    return [f"{key}={value}" for value in values]


def _check_search_paths(parsed: Iterable[Override]) -> None:
    for override in parsed:
        if override.key_or_group != "hydra.searchpath":
            continue
        paths = override.value()
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise ConfigurationError(f"{override.input_line}: expected a list of folders, as in "
                                     "hydra.searchpath=[/path/to/site].")
        for path in paths:
            folder = Path(path.removeprefix("file://"))
            if not path.startswith("pkg://") and not is_folder(folder, "hydra.searchpath"):
                raise ConfigurationError(
                    f"hydra.searchpath: no folder {str(folder)!r} (from {Path.cwd()}). Name a folder that holds "
                    "cluster/NAME.yaml."
                )


def _sweep_without_m(override: Override, groups: Iterable[str]) -> str:
    key = override.key_or_group
    message = f"{override.input_line}: several values make a sweep, which needs -m."
    if key in groups:
        return message
    return (f"{message} A list is written {key}=[a,b]; a text with a comma is quoted twice, as in "
            f"{for_shell(corrected(override.input_line or ''))}")


def _check_option(override: Override, loader: ConfigLoader, overrides: Sequence[str]) -> None:
    group, value = override.key_or_group, override.value()
    own = group in NO_DEFAULT_GROUPS
    if override.is_delete() or value is None:
        remedy = f"name one, as in +{group}=NAME" if own else "leave this out"
        raise ConfigurationError(f"{override.input_line}: {group} is needed; {remedy}.")
    if isinstance(value, dict):
        key = next(iter(value), "KEY")
        raise ConfigurationError(f"{override.input_line}: {group} is a group of settings: write each on its own, as in "
                                 f"{group}.{key}=VALUE.")
    if own != (override.is_add() or override.is_force_add()):
        right = f"+{group}" if own else group
        raise ConfigurationError(f"{override.input_line}: write {right}={value}.")
    if isinstance(value, list):
        each = f"{'+' if own else ''}{group}={','.join(map(str, value))}"
        raise ConfigurationError(f"{override.input_line}: a run has one option of {group}. Name one, or write "
                                 f"-m {each} for a run with each.")
    search = [text for text in overrides if text.lstrip("+").startswith("hydra.searchpath=")]
    names = loader.get_group_options(group, ObjectType.CONFIG, overrides=search) if search else \
        _names(loader, group, ObjectType.CONFIG)
    name = str(value)
    shadowed = shadowed_file(group, name, overrides)
    if shadowed is not None:
        raise ConfigurationError(f"{override.input_line}: {shadowed} has the name of a file that ships with "
                                 "holmes_hpc, which Hydra would take. Rename yours, and name it here.")
    path = own_file(group, name, overrides)
    if path is not None and (problem := why_not_a_file(path)):
        raise ConfigurationError(f"{override.input_line}: {problem}")
    if name not in names:
        raise ConfigurationError(f"{override.input_line}: {group} has no option {name}.{near(name, names)} Valid: "
                                 f"{listed(names)}.")
    if path is not None:
        check_file(group, path)


def _names(loader: ConfigLoader, group: str, kind: ObjectType) -> list[str]:
    """Return the names in a group of the folders that need no override, as the loader itself would say them.

    It copies all that is registered with Hydra before it looks, which takes a sixth of composing.
    """
    sources = [source for source in loader.get_sources() if source.is_group(config_path=group)]
    return sorted({name for source in sources for name in source.list(config_path=group, results_filter=kind)})


def _check_key(override: Override, groups: Iterable[str]) -> None:
    """Check the dotted key of an override against the schema, or against Hydra's own for `hydra.`."""
    parts = override.key_or_group.split(".")
    schema: Any
    schema, path = (HydraConf, "hydra.") if parts[0] == "hydra" else (Root, "")
    rest = parts[1:] if path else list(parts)
    while rest:
        known = settings(schema, path)
        part = rest.pop(0)
        if part not in known:
            raise ConfigurationError(unknown_key(path, part, known) + _group_hint(part, parts, groups))
        kind, path = known[part].kind, f"{path}{part}."
        item = item_schema(kind)
        if item is not None and rest:  # a label, such as ib in cluster.partitions.ib.nodes
            path, schema = f"{path}{rest.pop(0)}.", item
        elif dataclasses.is_dataclass(kind):
            schema = kind
        else:
            _check_leaf(override, known[part], rest)
            return


def _group_hint(part: str, parts: list[str], groups: Iterable[str]) -> str:
    group = next((name for name in groups if len(parts) == 1 and near(part, [name])), "")
    return f" {group} is a group: its options are written {group}=NAME." if group else ""


def _check_leaf(override: Override, setting: Setting, rest: list[str]) -> None:
    """Check what Hydra and OmegaConf would refuse without a word of the setting, or take for something else."""
    key, value, kind = override.key_or_group, override.value(), setting.kind
    if rest and kind in (int, float, bool, str):
        raise ConfigurationError(f"{key}: {setting.path} is a single value and has no keys.")
    origin = typing.get_origin(kind)
    if rest and origin is list and not rest[0].isdigit():
        raise ConfigurationError(f"{key}: {setting.path} is a list, whose items have numbers and no names: write all "
                                 f"of it, as in {setting.path}=[...].")
    if rest:
        return
    if override.is_delete():
        raise ConfigurationError(f"{override.input_line}: {key} is needed. Leave this out, or give it a value.")
    if value == {} and item_schema(kind) is not None:
        raise ConfigurationError(f"{override.input_line}: this changes nothing, as a mapping is added to what is "
                                 f"there. Take entries out one by one, as in ~{key}.NAME, or leave this out.")
    wrong_container = origin in (list, dict) and value is not None and not isinstance(value, origin)
    wrong_truth = kind is bool and isinstance(value, int | float) and value not in (0, 1)
    if wrong_container or wrong_truth:
        raise ConfigurationError(f"{override.input_line}: expected {expected(setting)} ({setting.help}).")
