"""Every setting that there is, with its default: what `--help`, `holmes settings` and the reference page show.

The schema is the one source of names, types and meanings. Some defaults come from the files that `conf/config.yaml`
chooses, such as `conf/optimizer/adamw.yaml`; they go before those of the schema, as when Hydra composes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from holmes_hpc.config import folders
from holmes_hpc.config.describe import Setting, expected, item_schema, settings
from holmes_hpc.config.schema import Root

GROUPS = ("cluster", "model", "parallel", "data", "train", "optimizer", "launch")
"""Groups with files to choose among."""
_ITEM_NAMES = {"cluster.partitions": "LABEL"}
"""What stands for the key of an item; for those of a list it is N, from 0."""


@dataclass(frozen=True)
class Listed:
    """A setting as it is shown: its path (LABEL or N for the key of an item), the schema's words, and its default.

    `others`: what files that one may choose instead set it to, such as `optimizer=sgd` -> 0.05.
    """

    path: str
    setting: Setting
    default: Any
    others: Mapping[str, Any]

    @property
    def group(self) -> str:
        """What the path begins with; "" for a setting of no group."""
        return self.path.partition(".")[0] if "." in self.path else ""

    @property
    def takes(self) -> str:
        """What the setting takes, in words."""
        if item_schema(self.setting.kind) is not None:
            return f"{'a list' if _item_name(self.path) == 'N' else 'names'}, each item with the keys that follow"
        return expected(self.setting)


def listed_settings(base: Path) -> list[Listed]:
    """Return every setting in the order of the schema; `base` is the folder of the files that ship with the package."""
    chosen, others = _files(base)
    return [Listed(path, setting, chosen.get(path, default), others.get(path, {}))
            for path, setting, default in _walk(Root, "")]


def shown(value: Any) -> str:
    """Return a value as one writes it in an override: `null`, `true`, `0.002`, `[]`, `text`."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return "none: it must be set" if value == "???" else str(value)


def _walk(schema: Any, path: str) -> Iterator[tuple[str, Setting, Any]]:
    """Yield path, setting and the schema's default of every setting that holds a value, those of items too."""
    fields = {field.name: field for field in dataclasses.fields(schema)}
    for name, setting in settings(schema, path).items():
        item = item_schema(setting.kind)
        if dataclasses.is_dataclass(setting.kind):
            yield from _walk(setting.kind, f"{setting.path}.")
            continue
        yield setting.path, setting, _default(fields[name])
        if item is not None:
            yield from _walk(item, f"{setting.path}.{_item_name(setting.path)}.")


def _item_name(path: str) -> str:
    return _ITEM_NAMES.get(path, "N")


def _default(field: Any) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _files(base: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return what the files that are chosen by default set, and what others set, by path; of clusters and models none.

    Those describe things, and each sets nearly all.
    """
    chosen: dict[str, Any] = {}
    others: dict[str, dict[str, Any]] = {}
    entries = _read(base / "config.yaml").get("defaults", [])
    defaults = {group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}
    for group in GROUPS:
        for name in folders.options(group, base):
            for key, value in _read(base / group / f"{name}.yaml").items():
                if name == defaults.get(group):
                    chosen[f"{group}.{key}"] = value
                elif key not in ("name", "strategy", "defaults") and group not in ("cluster", "model"):
                    others.setdefault(f"{group}.{key}", {})[f"{group}={name}"] = value
    return chosen, others


def _read(path: Path) -> dict[str, Any]:
    value = yaml.safe_load(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}
