"""Texts of a configuration: no control characters, since settings become lines of scripts and names of files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.quoting import control_character, for_terminal

_SEVERAL_LINES = "launch.setup."
"""Its items are lines of a script already, so one of several lines is what it says."""


def check_texts(config: DictConfig, *, resolve: bool) -> None:
    """Raise ConfigurationError for the first text or key with a control character in it, also where `${...}` leads."""
    for name in config:
        if name == "hydra" or OmegaConf.is_missing(config, str(name)):
            continue
        node = config._get_node(name)
        value = OmegaConf.to_container(node, resolve=resolve) if OmegaConf.is_config(node) else \
            (config[str(name)] if resolve else getattr(node, "_value", lambda: None)())
        for path, text in _texts(value, str(name)):
            found = control_character(text, "\n\t" if path.startswith(_SEVERAL_LINES) else "")
            if found is not None:
                raise ConfigurationError(f"{for_terminal(path)}={text!r}: it has "
                                         f"the control character {found}. Write it without; only the lines of "
                                         "launch.setup may have line breaks and tabs.")


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield every text in a value with its path, keys of mappings among them."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield path, str(key)
            yield from _texts(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}.{index}")
