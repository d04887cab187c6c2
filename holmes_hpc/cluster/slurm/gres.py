"""Generic resources: `gpu:a100:4(S:0-1),nic:hdr200:1`, and the lines of gres.conf."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from holmes_hpc.cluster.hostlist import expand_hostlist
from holmes_hpc.cluster.slurm.records import configuration_lines

_COUNT = re.compile(r"([0-9]+)([KMGTP]?)", re.IGNORECASE)
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}


@dataclass(frozen=True)
class Gres:
    """One kind of generic resource of a node: `gpu`, of type `a100` (None: not said), and how many."""

    name: str
    type: str | None
    count: int


@dataclass(frozen=True)
class GresLine:
    """One line of gres.conf: the nodes that it is about (none: all), and what it says of them."""

    nodes: tuple[str, ...]
    gres: Gres | None
    files: tuple[str, ...]
    autodetect: str | None


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


def count_of(gres: Iterable[Gres], name: str, type: str | None = None) -> int:
    """Return how many of a resource a node has, over all its types or of one."""
    return sum(entry.count for entry in gres if entry.name == name and type in (None, entry.type))


def _files(text: str) -> tuple[str, ...]:
    """Expand a list of paths, which are written like host names but for the slashes."""
    return tuple(name.replace("\0", "/") for name in expand_hostlist(text.replace("/", "\0")))


def read_gres_conf(text: str) -> tuple[GresLine, ...]:
    """Return the lines of a gres.conf. Raises HostlistError for a malformed list of nodes or files."""
    lines = []
    for settings in configuration_lines(text):
        files = _files(settings.get("file", ""))
        name = settings.get("name")
        match = _COUNT.fullmatch(settings.get("count", ""))
        count = _number(match) if match else len(files) or 1
        lines.append(GresLine(tuple(expand_hostlist(settings.get("nodename", ""))),
                              Gres(name, settings.get("type"), count) if name else None, files,
                              settings.get("autodetect")))
    return tuple(lines)
