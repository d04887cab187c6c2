"""Generic resources: `gpu:a100:4(S:0-1),nic:hdr200:1`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holmes_hpc.cluster.slurm.records import reads

_COUNT = re.compile(r"([0-9]+)([KMGTP]?)", re.IGNORECASE)
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}


@dataclass(frozen=True)
class Gres:
    """One kind of generic resource of a node: `gpu`, of type `a100` (None: not said), and how many."""

    name: str
    type: str | None
    count: int


@reads("a gres list")
def read_gres(text: str | None) -> tuple[Gres, ...]:
    """Return the resources of a gres string; nothing for None, `(null)` and an empty text.

    A part without a number counts once. Sockets and indices in parentheses, and words such as `no_consume`, are left
    out.
    """
    if text is None or text.strip() in ("", "(null)", "N/A"):
        return ()
    # Parentheses may hold commas: gpu:a100:4(IDX:0,2-3).
    bare = re.sub(r"\([^)]*\)", "", text)
    return tuple(_read_one(part.strip()) for part in bare.split(",") if part.strip())


def _read_one(part: str) -> Gres:
    name, *rest = [word for word in part.removeprefix("gres:").removeprefix("gres/").split(":")
                   if word and word != "no_consume"]
    match = _COUNT.fullmatch(rest[-1]) if rest else None
    if match:
        rest = rest[:-1]
    return Gres(name, ":".join(rest) or None, _number(match) if match else 1)


def _number(match: re.Match[str]) -> int:
    return int(match[1]) * _FACTORS[match[2].upper()]
