"""Check a composed configuration against the schema: keys, types, limits; then the rules between settings."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from holmes_hpc.config import folders, rules
from holmes_hpc.config.describe import Setting, expected, fits, item_schema, listed, near, settings, valid_words
from holmes_hpc.config.plugins import load_plugins
from holmes_hpc.config.pretrained import fill_in
from holmes_hpc.config.schema import Root
from holmes_hpc.config.texts import check_texts
from holmes_hpc.config.written_files import give_types
from holmes_hpc.errors import ConfigurationError

VARIABLES = ("${NAME} stands for another setting, such as ${run.name}. For a variable of the shell in which the job "
             "runs write \\${NAME} or $NAME; for one of this shell, now, ${oc.env:NAME}.")
"""What to say where somebody wrote `${...}` that leads nowhere."""
_MOST = 1e18
"""No setting means more than this: larger numbers leave the range of whole numbers with 64 bits, or of floats."""
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def check(config: DictConfig, *, cluster_required: bool = True, overrides: Sequence[str] = ()) -> None:
    """Load the plug-ins, then check everything that can be told without knowing GPUs, NICs and fabrics.

    Where `model.from_pretrained` names a folder, the group `model` is set from it first; `overrides` are those of the
    command line, which say what of the group was asked for.

    Raises ConfigurationError for the first key that is unknown or missing, value that is of the wrong type or out
    of its limits, or rule between settings that is broken; and, with `cluster_required`, when no cluster is named.
    """
    give_types(config)
    check_texts(config, resolve=False)
    fill_in(config, overrides)
    named = not OmegaConf.is_missing(config, "cluster") and not OmegaConf.is_missing(config.cluster, "name")
    _check_keys(config, Root, "")
    _check_inside(config.plugins, "plugins")
    load_plugins(config)
    if cluster_required and not named and not config.cluster.partitions:
        raise ConfigurationError(missing_cluster())
    _check_values(config, Root, "", skip=() if named or cluster_required else ("cluster",))
    check_texts(config, resolve=True)
    rules.check_rules(config, cluster_named=named)


def missing_cluster() -> str:
    """Return the message for a command without a cluster: how to name one, and the names that were found."""
    place = folders.user_folder()
    lines = [
        "no cluster is named, or its file is empty. Add +cluster=NAME, and a name and partitions in the file.",
        f"  ship with holmes_hpc: {listed(folders.options('cluster', folders.package_folder()))}",
        *([] if place is None else [f"  in {place / 'cluster'}: {listed(folders.options('cluster', place))}"]),
    ]
    return "\n".join(lines)


def unknown_key(path: str, key: str, names: Iterable[str]) -> str:
    """Return the message for a key that the schema does not have; `path` is what stands before it, with its dot."""
    names = list(names)
    close = near(key, names).replace("Did you mean ", f"Did you mean {path}")
    where = f"Valid keys of {path[:-1]}" if path else "Valid keys"
    return f"{path}{key}: no such key.{close} {where}: {listed(names)}."


def _check_keys(node: DictConfig, schema: Any, path: str) -> None:
    known = settings(schema, path)
    for key in node:
        if not path and key == "hydra":
            continue
        if key not in known:
            raise ConfigurationError(unknown_key(path, str(key), known))
    present = set(node)  # unlike `in`, this counts a key whose value is missing
    for name, setting in known.items():
        if name not in present:
            raise ConfigurationError(f"{setting.path}: this key was removed, and is needed ({expected(setting)}). "
                                     f"Leave ~{setting.path} out.")
        for where, child, kind in _children(node, name, setting):
            _check_keys(child, kind, where)


def _children(node: DictConfig, name: str, setting: Setting) -> list[tuple[str, DictConfig, Any]]:
    """Return the nodes below a setting that have a schema of their own: (path with its dot, node, schema)."""
    if OmegaConf.is_missing(node, name):
        return []
    value = _value(node, name, setting)
    if dataclasses.is_dataclass(setting.kind):
        return [(f"{setting.path}.", _mapping(value, setting.path), setting.kind)]
    kind = item_schema(setting.kind)
    if kind is None or value is None:
        return []
    if not fits(value, setting.kind):
        raise ConfigurationError(_wrong(setting, value))
    keys = list(value) if isinstance(value, DictConfig) else range(len(value))
    return [(f"{setting.path}.{key}.", _mapping(value[key], f"{setting.path}.{key}"), kind) for key in keys]


def _mapping(value: Any, path: str) -> DictConfig:
    if not isinstance(value, DictConfig):
        raise ConfigurationError(f"{path}={_shown(value)}: expected a mapping of settings.")
    return value


def _check_values(node: DictConfig, schema: Any, path: str, skip: tuple[str, ...] = ()) -> None:
    for name, setting in settings(schema, path).items():
        if name in skip:
            continue
        if OmegaConf.is_missing(node, name):
            raise ConfigurationError(f"{setting.path}: needs a value: {expected(setting)} ({setting.help}).")
        children = _children(node, name, setting)
        for where, child, kind in children:
            _check_values(child, kind, where)
        if not children:
            check_value(_value(node, name, setting), setting)


def _value(node: DictConfig, name: str, setting: Setting) -> Any:
    try:
        return node[name]
    except OmegaConfBaseException as error:
        raise _leads_nowhere(node, name, setting.path, error) from error


def _leads_nowhere(node: DictConfig | ListConfig, name: Any, path: str, error: Exception) -> ConfigurationError:
    """Return the error for an interpolation `${...}` without a value, of the setting that has it or refers to it."""
    inner = node._get_node(name)
    written = str(inner._value()) if isinstance(inner, Node) and not OmegaConf.is_config(inner) else ""
    root = node._get_root()
    for key in _REFERENCE.findall(written):
        owner, _, last = key.rpartition(".")
        holder = OmegaConf.select(root, owner) if owner else root
        if isinstance(holder, DictConfig) and last in set(holder) and holder is not node:
            try:
                holder[last]
            except OmegaConfBaseException as deeper:
                return _leads_nowhere(holder, last, key, deeper)
    fact = str(error).splitlines()[0].rstrip(".")
    return ConfigurationError(f"{path}{'=' if written else ''}{written}: {fact}. {VARIABLES}")


def _check_inside(value: Any, path: str) -> None:
    """Resolve what is written inside of lists and mappings, which would fail where it is used."""
    if not isinstance(value, DictConfig | ListConfig):
        return
    keys: list[Any] = list(value) if isinstance(value, DictConfig) else list(range(len(value)))
    for key in keys:
        try:
            inner = value[key]
        except OmegaConfBaseException as error:
            raise _leads_nowhere(value, key, f"{path}.{key}", error) from error
        _check_inside(inner, f"{path}.{key}")


def check_value(value: Any, setting: Setting) -> None:
    """Check a value against its setting's type and limits. Raises ConfigurationError that says what is valid."""
    if value is None:
        if not setting.optional and setting.kind is not Any:
            raise ConfigurationError(_wrong(setting, value))
        return
    if not fits(value, setting.kind):
        raise ConfigurationError(_wrong(setting, value))
    _check_inside(value, setting.path)
    limits = setting.metadata
    if "valid" in limits and value not in valid_words(limits):
        raise ConfigurationError(_wrong(setting, value) + near(str(value), valid_words(limits)))
    for path, number in _numbers(value, setting):
        if abs(number) > _MOST:
            raise ConfigurationError(f"{path}={number:g}: expected {expected(setting)}, and nothing beyond "
                                     f"{_MOST:g} ({setting.help}).")
        if not _inside(number, limits):
            raise ConfigurationError(_wrong(setting, number, path))


def _numbers(value: Any, setting: Setting) -> Iterator[tuple[str, float]]:
    """Yield the numbers that a setting's limits hold for, with their paths: itself, or its items."""
    keyed: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, DictConfig | Mapping):
        keyed = value.items()
    elif isinstance(value, ListConfig | list | tuple):
        keyed = enumerate(value)
    for path, each in [(setting.path, value), *((f"{setting.path}.{key}", item) for key, item in keyed)]:
        if isinstance(each, int | float) and not isinstance(each, bool):
            yield path, each


def _inside(value: float, limits: Any) -> bool:
    return (
        math.isfinite(value)
        and value >= limits.get("minimum", -math.inf)
        and value <= limits.get("maximum", math.inf)
        and value < limits.get("below", math.inf)
    )


def _wrong(setting: Setting, value: Any, path: str | None = None) -> str:
    return f"{path or setting.path}={_shown(value)}: expected {expected(setting)} ({setting.help})."


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
