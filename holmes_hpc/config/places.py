"""The configuration as a run keeps it: the paths of its data mean the same from every folder."""

from __future__ import annotations

import copy
import os
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from holmes_hpc.paths import at_home
from holmes_hpc.registry import SOURCES

_PATHS = ("path", "tokenizer", "chat_template")


def text_to_keep(config: DictConfig) -> str:
    """Return a composed configuration as YAML, with the paths of the data made absolute from the current folder.

    What refers to another setting and leads to an absolute path stays as it is written. The path of a kind that a
    plug-in added stays too, unless something lies there: it may be no path of a file system.
    """
    kept = copy.deepcopy(config)
    with open_dict(kept):
        _make_absolute(kept.data, _PATHS)
        for source in kept.data.sources:
            _make_absolute(source, _PATHS)
    return OmegaConf.to_yaml(kept)


def _make_absolute(node: Any, names: tuple[str, ...]) -> None:
    for name in names:
        value = node[name]
        if not isinstance(value, str) or not value:
            continue
        path = at_home(value).absolute()
        if str(path) != value and not (name == "path" and node.name in SOURCES and not os.path.lexists(path)):
            node[name] = str(path)


def named_in(data: Any, name: str) -> str | None:
    """Return a setting of the group `data`, such as its tokenizer, or that of the first source of a mixture with one.

    `data` is composed, or as a run keeps it; None where it is not set, or refers to a setting that is not there.
    """
    places = [data, *(data.get("sources") or [])]
    found = (each.get(name) for each in places if hasattr(each, "get"))
    return next((value for value in found if isinstance(value, str) and value and not value.startswith("${")), None)
