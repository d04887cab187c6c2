"""What a field of the schema says beside its type, and limits that several fields have.

The metadata of a field: `help` (one line), `minimum`, `maximum`, `below` (exclusive upper bound), which hold for each
item where there are several, `valid` (the values that a word may take), `told` (a line of help for each, where they
need one), `not_run` (those that can be planned and not yet run) and `added` (the registry of what plug-ins add to
them). `config.check` applies them and names the path.
"""

from __future__ import annotations

import dataclasses
from typing import Any

MOST_NICS = 256
"""Fast NICs on one node."""
GBPS: dict[str, float] = {"minimum": 1e-6, "maximum": 1e5}
"""Limits of bandwidths in 10^9 bit/s: what is beyond them is mistyped, and not to be planned with."""
SECONDS: dict[str, float] = {"minimum": 0.1, "maximum": 1e6}
"""Limits of times to wait: signs of life are given and looked at several times within the least of them."""
MOST_RATE = 1e3
"""Largest learning rate: plain gradient descent has had tens in earnest, and whatever is beyond this is mistyped."""
MOST_STEPS = 10**12
MOST_RANKS = 1 << 16
"""Ranks that are planned. The search takes a quarter of a minute for 4,096 and longer with each more."""
MOST_WIDTH = 1 << 24
"""Largest dim of a model's matrices."""
FACTOR: dict[str, float] = {"minimum": 1e-6, "maximum": 1e6}
"""Limits of a ratio."""
SCALE: dict[str, float] = {"minimum": 1e-6, "maximum": 1e4}
"""Limits of what activations are multiplied by."""


def setting(default: Any, help: str, **limits: Any) -> Any:  # noqa: A002
    """Return a dataclass field with a default, its help line and its limits."""
    metadata = {"help": help, **limits}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def group(kind: type, help: str) -> Any:  # noqa: A002
    """Return a dataclass field that holds another dataclass of the schema."""
    return dataclasses.field(default_factory=kind, metadata={"help": help})
