"""The settings of one source, whether it is the only one or a member of a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.paths import at_home
from holmes_hpc.values.packings import BY_KIND

MADE_HERE = ("text", "chat")
"""Kinds whose tokens we make, and keep."""

ARGUMENTS = "arguments"
"""The prefix of a source that the arguments of `holmes tokenize` name."""
_ARGUMENTS = {"path": "FILE"}


@dataclass(frozen=True)
class SourceSettings:
    """One source: `prefix` is what stands before its settings in messages: `data`, `data.sources.N` or ARGUMENTS."""

    prefix: str
    kind: str
    path: str | None = None
    dtype: str = "uint16"
    pattern: str = "*.txt"
    tokenizer: str | None = None
    end_of_document: str | None = None
    special_tokens: str = "text"
    add_special_tokens: bool | None = None
    format: str = "auto"
    text_field: str = "text"
    messages_field: str = "messages"
    chat_template: str | None = None
    validation_fraction: float = 0.05
    cache: Path = Path("token_cache")
    packing: str = "causal"
    packing_unsaid: bool = False
    """whether nobody chose how documents are packed"""

    def key(self, name: str) -> str:
        """Return the name of a setting as the user writes it."""
        if self.prefix == ARGUMENTS:
            return _ARGUMENTS.get(name, f"--{name.replace('_', '-')}")
        return f"{self.prefix}.{name}"

    @property
    def label(self) -> str:
        """Name the source in messages."""
        return f"{self.key('path')}={self.path}" if self.path else f"{self.key('name')}={self.kind}"

    @property
    def required_path(self) -> Path:
        """The path of a kind that needs one. Raises ConfigurationError when it is not set."""
        if not self.path:
            raise ConfigurationError(f"{self.key('name')}={self.kind} reads files, and {self.key('path')} is not set. "
                                     f"Set {self.key('path')}, or use data=python_docs.")
        return at_home(self.path, self.key("path"))


def sources_of(data: Any) -> list[tuple[SourceSettings, Fraction]]:
    """Return the settings of every source that `config.data` names, each with its share; the shares sum to 1.

    Raises ConfigurationError for a mixture of nothing.
    """
    if data.name != "mixture":
        return [(_settings(data, data, "data"), Fraction(1))]
    if not data.sources:
        raise ConfigurationError("data.name=mixture mixes data.sources, and there are none. Set data.sources to a list "
                                 "such as [{name: tokens, path: a.tokens, weight: 7}, {name: python_docs, weight: 3}].")
    # By way of its decimal digits, 0.7 is seven tenths and not the nearest binary fraction.
    weights = [Fraction(str(source.weight)) for source in data.sources]
    return [(_settings(data, source, f"data.sources.{index}"), weights[index] / sum(weights))
            for index, source in enumerate(data.sources)]


def _settings(data: Any, source: Any, prefix: str) -> SourceSettings:
    shared: dict[str, Any] = {}
    for name in ("dtype", "pattern", "tokenizer", "end_of_document", "special_tokens", "add_special_tokens", "format",
                 "text_field", "messages_field", "chat_template", "validation_fraction"):
        shared[name] = data[name] if source[name] is None else source[name]
    wanted = data.packing if source.packing is None else source.packing
    shared["packing"] = BY_KIND.get(str(source.name), "causal") if wanted == "auto" else wanted
    shared["packing_unsaid"] = wanted == "auto"
    # Only text has a cache; its default refers to run.folder, which other kinds do not need.
    if source.name in MADE_HERE:
        shared["cache"] = at_home(data.cache, "data.cache")
    return SourceSettings(prefix, str(source.name), source.path, **shared)
