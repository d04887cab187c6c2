"""The index of a checkpoint, `checkpoint.json`: every stored rectangle, its place on disk and its checksum.

The file holds `content` and the CRC-32 of its canonical JSON, so that a torn or flipped index is seen. Needs no torch.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holmes_hpc.checkpoint.rectangles import Rectangle
from holmes_hpc.errors import CheckpointError
from holmes_hpc.foreign import ForeignError, parse_json, read_bytes, whole_number

INDEX_NAME = "checkpoint.json"
FORMAT = "holmes_hpc checkpoint"
FORMAT_VERSION = 1
_NAME = re.compile(r"step-([0-9]+)")


@dataclass(frozen=True)
class Shard:
    """One stored rectangle: `length` bytes from `begin` of `file`, of torch type `dtype`, with their CRC-32."""

    key: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: str
    file: str
    begin: int
    length: int
    checksum: int

    @property
    def rectangle(self) -> Rectangle:
        """Where the shard lies in its global tensor."""
        return Rectangle(self.offsets, self.sizes)


@dataclass(frozen=True)
class Index:
    """What a checkpoint holds: `files` by name with their bytes, `shards`, and `extra`, the state that is no tensor."""

    step: int
    files: Mapping[str, int]
    shards: tuple[Shard, ...]
    extra: Mapping[str, Any]

    def shapes(self, prefix: str) -> dict[str, tuple[int, ...]]:
        """Return the global shapes of the tensors whose keys begin with `prefix`, by the rest of the key."""
        return {shard.key.removeprefix(prefix): shard.shape for shard in self.shards if shard.key.startswith(prefix)}

    def check_shapes(self, prefix: str, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Raise CheckpointError unless exactly the `expected` tensors are here, with their global shapes."""
        found = self.shapes(prefix)
        differences = [
            *(f"{name} {list(shape)} is not in it" for name, shape in expected.items() if name not in found),
            *(f"{name} {list(shape)} is not in this model" for name, shape in found.items() if name not in expected),
            *(f"{name} is {list(found[name])} in it and {list(shape)} in this model"
              for name, shape in expected.items() if found.get(name, shape) != tuple(shape)),
        ]
        if differences:
            more = f", and {len(differences) - 3} more differences" if len(differences) > 3 else ""
            raise CheckpointError(f"it is of another model: {'; '.join(differences[:3])}{more}")


def pack(content: Mapping[str, Any]) -> str:
    """Return JSON text that holds `content` and its checksum."""
    content = json.loads(json.dumps(content))  # as a reader will see it: keys as text, tuples as lists
    return json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION, "checksum": _checksum(content),
                       "content": content})


def unpack(text: bytes, name: str) -> dict[str, Any]:
    """Return the content of what `pack` made. Raises CheckpointError for a torn, changed or foreign file."""
    try:
        data = parse_json(text, name)
    except ForeignError:
        raise CheckpointError(f"it is torn: {name} is no whole JSON") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("content"), dict):
        raise CheckpointError(f"it is foreign: {name} is no index of holmes_hpc")
    if data.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(f"it has the format {data.get('format_version')!r}, and this version of holmes_hpc "
                              f"reads format {FORMAT_VERSION}")
    if data.get("checksum") != _checksum(data["content"]):
        raise CheckpointError(f"it is damaged: the checksum of {name} does not fit its content")
    return data["content"]


def pack_index(index: Index) -> str:
    """Return the text of `checkpoint.json`."""
    return pack({"step": index.step, "files": dict(index.files), "extra": index.extra,
                 "shards": pack_shards(index.shards)})


def pack_shards(shards: Iterable[Shard]) -> list[list[Any]]:
    """Return shards as rows for JSON, in the order of their fields."""
    return [[getattr(shard, field.name) for field in dataclasses.fields(Shard)] for shard in shards]


def unpack_shards(rows: list[list[Any]]) -> tuple[Shard, ...]:
    """Return the shards of `pack_shards`. Raises CheckpointError where a row is none."""
    try:
        shards = tuple(Shard(key, tuple(shape), tuple(offsets), tuple(sizes), *rest)
                       for key, shape, offsets, sizes, *rest in rows)
    except (TypeError, ValueError):
        raise CheckpointError("it is foreign: its index lists something else than shards") from None
    for shard in shards:
        if not shard.rectangle.fits(shard.shape) or "/" in shard.file:
            raise CheckpointError(f"it is foreign: {shard.key} cannot lie at {shard.offsets} in {shard.file}")
    return shards


def read_index(path: Path) -> Index:
    """Read the index of the checkpoint folder `path`, and see that its files are there with all their bytes.

    Raises CheckpointError that says why the checkpoint cannot be used. What the files hold is checked when it is read.
    """
    try:
        text = read_bytes(path / INDEX_NAME)
    except ForeignError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise CheckpointError(f"it is torn: it has no {INDEX_NAME}, which is written last") from None
        raise CheckpointError(f"{INDEX_NAME} {str(error).removeprefix(str(path / INDEX_NAME)).lstrip(': ')}") from error
    content = unpack(text, INDEX_NAME)
    try:
        index = Index(_step(content["step"], path), dict(content["files"]), unpack_shards(content["shards"]),
                      dict(content["extra"]))
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"it is foreign: {INDEX_NAME} lacks what an index holds") from None
    for name, size in index.files.items():
        try:
            status = os.lstat(path / name)
        except OSError:
            raise CheckpointError(f"a shard is missing: {name} is not there") from None
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"it is foreign: {name} is no regular file")
        found = status.st_size
        if found != size:
            raise CheckpointError(f"a shard is torn: {name} has {found:,} of {size:,} bytes")
    return index


def _step(value: Any, path: Path) -> int:
    """Return the step of an index. Raises CheckpointError where it is none, or not the one of the folder's name."""
    step = whole_number(value)
    named = _NAME.fullmatch(path.name)
    if step is None or (named is not None and int(named[1]) != step):
        raise CheckpointError(f"it is foreign: its index says step {value!r}, and its folder is called {path.name}")
    return step


def _checksum(content: Any) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
