"""A kind of data that a plug-in adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SourceKind:
    """`read(settings)` returns the tokens; `vocab_size` is that of the tokens, None where it is not known."""

    read: Callable[[Any], Any]
    needs_path: bool = False
    vocab_size: int | None = None
