"""Fills the tensors of any layout from the rectangles that a checkpoint has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from holmes_hpc.checkpoint.entries import Entry
from holmes_hpc.checkpoint.index import Index, Shard
from holmes_hpc.checkpoint.rectangles import Rectangle, intersection, remainder
from holmes_hpc.checkpoint.shard_file import read_shard
from holmes_hpc.errors import CheckpointError
from holmes_hpc.foreign import open_regular

_Copy = tuple[Entry, Rectangle]


def fill(path: Path, index: Index, destinations: Sequence[Entry]) -> None:
    """Fill every destination from the checkpoint folder `path`, whatever rectangles it was cut into.

    Only shards that are needed are read, each once, and each is held against its checksum, as is the header of each
    file that is read. Values are converted to the destination's type. Raises CheckpointError when a part is missing or
    damaged; some destinations may then be filled already.
    """
    wanted = _plan(index, destinations)
    by_file: dict[str, list[Shard]] = defaultdict(list)
    for shard in wanted:
        by_file[shard.file].append(shard)
    with torch.no_grad():
        for name, shards in by_file.items():
            try:
                with open_regular(path / name) as file:
                    if name in index.covers:
                        cover = index.covers[name]
                        cover.check(file.read(cover.length), name)
                    for shard in sorted(shards, key=lambda each: each.begin):
                        source = read_shard(file, shard)
                        for entry, box in wanted[shard]:
                            entry.tensor[box.within(entry.rectangle)].copy_(source[box.within(shard.rectangle)])
            except OSError as error:
                raise CheckpointError(f"a shard cannot be read: {name}: {error.strerror or error}") from error


def _plan(index: Index, destinations: Sequence[Entry]) -> dict[Shard, list[_Copy]]:
    """Return the boxes to copy out of each shard; together they cover every destination once."""
    stored: dict[str, list[Shard]] = defaultdict(list)
    for shard in index.shards:
        stored[shard.key].append(shard)
    wanted: dict[Shard, list[_Copy]] = defaultdict(list)
    for entry in destinations:
        if entry.tensor.numel() == 0:
            continue
        if entry.key not in stored:
            raise CheckpointError(f"it holds no {entry.key}")
        if stored[entry.key][0].shape != entry.shape:
            raise CheckpointError(f"it is of another model: {entry.key} is {list(stored[entry.key][0].shape)} in it, "
                                  f"and {list(entry.shape)} here")
        missing = [entry.rectangle]
        for shard in stored[entry.key]:
            if missing:
                missing = _take(shard, entry, missing, wanted)
        if missing:
            raise CheckpointError(f"a part is missing: it holds no {entry.key} at {list(missing[0].offsets)}")
    return wanted


def _take(shard: Shard, entry: Entry, missing: list[Rectangle],
          wanted: dict[Shard, list[_Copy]]) -> list[Rectangle]:
    """Note what `shard` has of the `missing` boxes, and return what is missing still."""
    left: list[Rectangle] = []
    for box in missing:
        shared = intersection(box, shard.rectangle)
        if shared is None:
            left.append(box)
        else:
            wanted[shard].append((entry, shared))
            left.extend(remainder(box, shared))
    return left
