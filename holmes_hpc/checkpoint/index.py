"""The index of a checkpoint, `checkpoint.json`: every stored rectangle, its place on disk and its checksum.

The file holds `content` and the CRC-32 of its canonical JSON, so that a torn or flipped index is seen. Needs no torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holmes_hpc.checkpoint.cover import Cover, check_file, pack_covers, unpack_covers
from holmes_hpc.checkpoint.rectangles import Rectangle
from holmes_hpc.errors import CheckpointError
from holmes_hpc.foreign import ForeignError, parse_json, read_bytes, whole_number

INDEX_NAME = "checkpoint.json"
FORMAT = "holmes_hpc checkpoint"
FORMAT_VERSION = 1
_NAME = re.compile(r"step-([0-9]+)")
_MOST_DIMS = 8


@dataclass(frozen=True)
class Shard:
    """One stored rectangle: `length` bytes from `begin` of `file`, of torch type `dtype`, with their CRC-32.

    `sha256` is empty where `train.checkpoint_sha256` was false.
    """

    key: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: str
    file: str
    begin: int
    length: int
    checksum: int
    sha256: str = ""

    @property
    def rectangle(self) -> Rectangle:
        """Where the shard lies in its global tensor."""
        return Rectangle(self.offsets, self.sizes)


@dataclass(frozen=True)
class Index:
    """What a checkpoint holds: `files` by name with their bytes, `shards`, and `extra`, the state that is no tensor.

    `covers` has, by file, checksums of what is no shard: headers and texts; checkpoints of older versions have none.
    `manifest` is the SHA-256 of all of that, which itself holds that of every shard; empty where there are none.
    """

    step: int
    files: Mapping[str, int]
    shards: tuple[Shard, ...]
    extra: Mapping[str, Any]
    covers: Mapping[str, Cover] = field(default_factory=dict)
    manifest: str = ""

    @property
    def is_hashed(self) -> bool:
        """Whether SHA-256 vouch for all that it holds."""
        hashes = [each.sha256 for each in self.shards] + [each.sha256 for each in self.covers.values()]
        return bool(self.manifest) and all(hashes)

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


    def check_texts(self, path: Path) -> None:
        """Raise CheckpointError where a file of the folder `path` that holds no shard, as the plan, has changed."""
        for name in self.covers.keys() - {shard.file for shard in self.shards}:
            check_file(path, name, self.covers[name])


def pack(content: Mapping[str, Any], *, hashed: bool = False) -> str:
    """Return JSON text that holds `content` and its checksum, and where it is to be `hashed` its SHA-256."""
    content = json.loads(json.dumps(content))  # as a reader will see it: keys as text, tuples as lists
    sha256 = {"sha256": _sha256(content)} if hashed else {}
    return json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION, "checksum": _checksum(content), **sha256,
                       "content": content})


def unpack(text: bytes, name: str) -> tuple[dict[str, Any], str]:
    """Return the content of what `pack` made, and its SHA-256, "" where it was not to be hashed.

    Raises CheckpointError for a torn, changed or foreign file.
    """
    try:
        data = parse_json(text, name)
    except ForeignError:
        raise CheckpointError(f"it is torn: {name} is no whole JSON; copy it again from where it is whole") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("content"), dict):
        raise CheckpointError(f"it is foreign: {name} is no index of holmes_hpc")
    if data.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(f"it has the format {data.get('format_version')!r}, and this version of holmes_hpc "
                              f"reads format {FORMAT_VERSION}")
    if data.get("checksum") != _checksum(data["content"]):
        raise CheckpointError(f"it is damaged: the checksum of {name} does not fit its content")
    sha256 = data.get("sha256", "")
    if sha256 != "" and sha256 != _sha256(data["content"]):
        raise CheckpointError(f"it is damaged: the SHA-256 of {name} does not fit its content")
    return data["content"], sha256


def pack_index(index: Index, *, hashed: bool = False) -> str:
    """Return the text of `checkpoint.json`, with its manifest's SHA-256 where it is to be `hashed`."""
    return pack({"step": index.step, "files": dict(index.files), "extra": index.extra,
                 "covers": pack_covers(index.covers), "shards": pack_shards(index.shards)}, hashed=hashed)


def pack_shards(shards: Iterable[Shard]) -> list[list[Any]]:
    """Return shards as rows for JSON, in the order of their fields; without SHA-256 a row has no such field."""
    names = [each.name for each in dataclasses.fields(Shard)]
    return [[getattr(shard, name) for name in (names if shard.sha256 else names[:-1])] for shard in shards]


def unpack_shards(rows: list[list[Any]]) -> tuple[Shard, ...]:
    """Return the shards of `pack_shards`. Raises CheckpointError where a row is none."""
    try:
        shards = tuple(Shard(key, tuple(shape), tuple(offsets), tuple(sizes), *rest)
                       for key, shape, offsets, sizes, *rest in rows)
        if not all(map(_is_shard, shards)):
            raise ValueError
    except (TypeError, ValueError):
        raise CheckpointError("it is foreign: its index lists something else than shards") from None
    for shard in shards:
        if not shard.rectangle.fits(shard.shape) or "/" in shard.file:
            raise CheckpointError(f"it is foreign: {shard.key} cannot lie at {shard.offsets} in {shard.file}")
    return shards


def _is_shard(shard: Shard) -> bool:
    """Say whether the fields of a shard have their types: an index may be forged together with its checksum."""
    texts = (shard.key, shard.dtype, shard.file, shard.sha256)
    numbers = (*shard.shape, *shard.offsets, *shard.sizes, shard.begin, shard.length, shard.checksum)
    return (all(isinstance(text, str) for text in texts) and all(whole_number(each) is not None for each in numbers)
            and len(shard.shape) <= _MOST_DIMS)


def read_index(path: Path) -> Index:
    """Read the index of the checkpoint folder `path`, and see that its files are there with all their bytes.

    Raises CheckpointError that says why the checkpoint cannot be used. What the files hold is checked when it is read.
    """
    try:
        text = read_bytes(path / INDEX_NAME)
    except ForeignError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise CheckpointError(f"it is torn: it has no {INDEX_NAME}, which is written last") from None
        raise CheckpointError(f"{INDEX_NAME}{str(error).removeprefix(str(path / INDEX_NAME))}") from error
    content, manifest = unpack(text, INDEX_NAME)
    try:
        index = Index(_step(content["step"], path), dict(content["files"]), unpack_shards(content["shards"]),
                      dict(content["extra"]), unpack_covers(content.get("covers", {})), manifest)
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"it is foreign: {INDEX_NAME} lacks what an index holds") from None
    if any("/" in name or whole_number(size) is None for name, size in index.files.items()) or (
            index.covers.keys() - index.files.keys()):
        raise CheckpointError(f"it is foreign: {INDEX_NAME} lists files that are not beside it")
    outside = next((shard for shard in index.shards
                    if shard.begin + shard.length > index.files.get(shard.file, -1)), None)
    if outside is not None:
        raise CheckpointError(f"it is foreign: {outside.key} lies outside of its files, in {outside.file}")
    for name, size in index.files.items():
        try:
            status = os.lstat(path / name)
        except OSError:
            raise CheckpointError(f"{_kind(name)} is missing: {name} is not there; if the checkpoint was copied, copy "
                                  "all of its folder") from None
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"it is foreign: {name} is no regular file")
        found = status.st_size
        if found != size:
            raise CheckpointError(f"{_kind(name)} is torn: {name} has {found:,} of {size:,} bytes")
    return index


def _step(value: Any, path: Path) -> int:
    """Return the step of an index. Raises CheckpointError where it is none, or not the one of the folder's name."""
    step = whole_number(value)
    named = _NAME.fullmatch(path.name)
    if step is None:
        raise CheckpointError(f"it is foreign: its index says step {str(value)[:40]!r}")
    if named is not None and int(named[1]) != step:
        raise CheckpointError(f"it is foreign: its index says step {step}, and its folder is called {path.name}; if it "
                              f"was only renamed, call it step-{step:06d} again")
    return step


def _kind(name: str) -> str:
    return "a shard" if name.endswith(".safetensors") else "a file"


def _checksum(content: Any) -> int:
    return zlib.crc32(_canonical(content))


def _sha256(content: Any) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
