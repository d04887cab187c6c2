"""Looking a name up in a catalogue, with a message that helps whoever mistyped it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from holmes_hpc.errors import ConfigurationError

Entry = TypeVar("Entry")


def find(catalogue: Mapping[str, Entry], name: str, kind: str, path: str) -> Entry:
    """Return `catalogue[name]`.

    `kind` says in a few words what is looked up, `path` is the setting that named it. Raises
    ConfigurationError with the near match and all valid names.
    """
    if name in catalogue:
        return catalogue[name]
    raise ConfigurationError(unknown(name, catalogue, kind, path))


def unknown(name: str, valid: Iterable[str], kind: str, path: str) -> str:
    """Return the message for a name that is not among the valid ones."""
    names = list(valid)
    text = str(name).casefold()
    near = ([entry for entry in names if entry == text]
            or [entry for entry in names if text and entry.startswith(text)]
            or difflib.get_close_matches(text, names, n=1, cutoff=0.5))
    hint = f"; did you mean {' or '.join(near[:3])}?" if near else "."
    return f"{path}: unknown {kind} {name!r}{hint} Valid: {', '.join(names)}"
