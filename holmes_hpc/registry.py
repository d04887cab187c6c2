"""What plug-ins add to the built-in kinds: one registry for each, read by the part that knows the kinds.

The only state of the package that lives as long as the process. It is filled while `config.plugins` loads the modules
of the setting `plugins`, before anything is planned, and by nothing else; so it is the same on all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.values.strategy_kinds import AUTO, STRATEGY_KINDS
from holmes_hpc.values.tracker_kinds import TRACKER_KINDS

_NAME = re.compile(r"[a-z][a-z0-9_-]*")


class Registry(Mapping[str, Any]):
    """The added kinds of one sort by name; `setting` is the one that names them, `builtin` names that are taken."""

    def __init__(self, what: str, setting: str, builtin: tuple[str, ...] = ()) -> None:
        self.what, self.setting = what, setting
        self._builtin = builtin
        self._entries: dict[str, Any] = {}

    def add(self, name: str, entry: Any, taken: tuple[str, ...] = ()) -> None:
        """Add a kind. Raises ConfigurationError for a name that is malformed or taken, also by one of `taken`."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(f"the {self.what} {name!r}: a name is lower-case letters, digits, _ and -, and "
                                     "begins with a letter.")
        if name in self._builtin or name in taken:
            raise ConfigurationError(f"the {self.what} {name!r} is built in. Give yours another name.")
        if name in self._entries and self._entries[name] != entry:
            raise ConfigurationError(f"the {self.what} {name!r} was added before, by another plug-in. Rename one.")
        self._entries[name] = entry

    def replace_all(self, entries: Mapping[str, Any]) -> None:
        """Put the registry back into an earlier state, `dict(registry)`."""
        self._entries.clear()
        self._entries.update(entries)

    def __getitem__(self, name: str) -> Any:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


NICS = Registry("NIC kind", "cluster.partitions.LABEL.nic")
ACTIVATIONS = Registry("activation", "model.activation", ("gelu", "swiglu"))
NORMALIZATIONS = Registry("normalisation", "model.normalization", ("layernorm", "rmsnorm"))
STRATEGIES = Registry("strategy", "parallel.strategy", (AUTO, *STRATEGY_KINDS))
SOURCES = Registry("kind of data", "data.name", ("python_docs", "tokens", "megatron", "text", "chat", "mixture"))
TRACKERS = Registry("tracker", "run.trackers", tuple(TRACKER_KINDS))

ALL: Mapping[str, Registry] = {
    "nics": NICS, "activations": ACTIVATIONS, "normalizations": NORMALIZATIONS, "strategies": STRATEGIES,
    "sources": SOURCES, "trackers": TRACKERS,
}


def unknown(registry: Registry, name: str, builtin: tuple[str, ...]) -> ConfigurationError:
    """Return the error for a kind that nobody knows, such as that of a plug-in which is not loaded."""
    valid = ", ".join((*builtin, *registry)) or "none so far"
    return ConfigurationError(
        f"{registry.setting}={name}: no such {registry.what}. Valid: {valid}; one of your "
        "own needs its module in `plugins`, on every node.")
