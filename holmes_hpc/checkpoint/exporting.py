"""Writes the model of a checkpoint as a folder that Hugging Face's libraries load: from any layout, a piece at a time.

Memory holds one piece of the checkpoint (64 MiB at most, or a row). Every piece is read once, held against its
checksum, and goes to its place in a file whose size is known before. The folder gets its name when all is on disk.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from holmes_hpc.architecture import Architecture
from holmes_hpc.checkpoint.cover import check_file
from holmes_hpc.checkpoint.export_files import TYPES, OutputFile, Target, output_files, write_index
from holmes_hpc.checkpoint.index import Index, Shard
from holmes_hpc.checkpoint.model import MODEL_PREFIX
from holmes_hpc.checkpoint.naming import sync_folder
from holmes_hpc.checkpoint.rectangles import Rectangle, intersection, remainder
from holmes_hpc.checkpoint.shard_file import read_shard
from holmes_hpc.errors import CheckpointError, ConfigurationError
from holmes_hpc.families import Family, Source
from holmes_hpc.families.folder import CONFIGURATION
from holmes_hpc.runs.place import missing_folders
from holmes_hpc.runs.private import keep_others_out
from holmes_hpc.words import size_words

_MOST_ROOM_BYTES = 128 * 2**20

Say = Callable[[int, int], None]
"""Told how many bytes of how many are written."""


class UnfitValuesError(CheckpointError):
    """A sound checkpoint has values that cannot be exported as asked."""


@dataclass(frozen=True)
class Export:
    """What is exported: a checkpoint, the model it is of, and what the folder will say of it.

    `texts`: files that go along as they are, by name. `largest_bytes`: of a file of weights.
    """

    checkpoint: Path
    index: Index
    architecture: Architecture
    family: Family
    configuration: Mapping[str, Any]
    texts: Mapping[str, Path]
    dtype: str
    largest_bytes: int


def write_export(export: Export, folder: Path, say: Say = lambda done, of: None) -> int:
    """Write the folder, which must not be there yet; return the bytes of its weights.

    The folder that it is to lie in is made where it is missing. Raises ConfigurationError for a place that cannot be
    written or has no room, CheckpointError where the checkpoint is damaged or not whole. What was made is then removed.
    """
    files = output_files(export.architecture, export.family, export.dtype, export.largest_bytes)
    size = sum(file.size for file in files)
    _check_place(folder, size)
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    made: list[Path] = []
    try:
        made = missing_folders(folder.parent)
        partial.mkdir(0o755, parents=True)
        _write(export, files, partial, say, size)
        if os.path.lexists(folder):
            raise FileExistsError(17, "it has appeared meanwhile", str(folder))
        partial.rename(folder)
        sync_folder(folder.parent)
        made = []
    except OSError as error:
        raise ConfigurationError(f"--to {folder}: it cannot be written: {error.strerror or error}. Name a folder in a "
                                 f"place that you may write, with {size_words(size)} of room.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        for path in made:
            with suppress(OSError):  # it was not made, or holds something of others
                path.rmdir()
    return size


def _check_place(folder: Path, size: int) -> None:
    if os.path.lexists(folder):
        raise ConfigurationError(f"--to {folder}: it is there already. Name a new folder, or remove this one.")
    place = next(path for path in folder.parents if os.path.lexists(path))
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise ConfigurationError(f"--to {folder}: {place} cannot be used: {error.strerror or error}. Name another "
                                 "place.") from error
    if free < size:
        raise ConfigurationError(f"--to {folder}: the weights take {size_words(size)}, and the disk has "
                                 f"{size_words(free)} left. Name another place, or take --dtype bfloat16.")


def _write(export: Export, files: Sequence[OutputFile], partial: Path, say: Say, size: int) -> None:
    shards: dict[str, list[Shard]] = defaultdict(list)
    for shard in export.index.shards:
        if shard.key.startswith(MODEL_PREFIX):
            shards[shard.key.removeprefix(MODEL_PREFIX)].append(shard)
    reader = _Reader(export)
    done = 0
    try:
        for output in files:
            with (partial / output.name).open("xb") as file:
                file.write(output.header)
                file.truncate(output.size)
                for target in output.targets:
                    for name, source in target.parts:
                        _write_part(reader, file, target, source, name, shards[name])
                    done += target.row_length * target.shape[0] * TYPES[export.dtype][1]
                    say(done, size)
                file.flush()
                os.fsync(file.fileno())
    finally:
        reader.close()
    write_index(partial, list(files))
    (partial / CONFIGURATION).write_text(json.dumps(export.configuration, indent=2) + "\n")
    for name, path in export.texts.items():
        shutil.copyfile(path, partial / name)
    for path in partial.iterdir():
        keep_others_out(path)


class _Reader:
    """Reads shards of a checkpoint in the type of the export; each file's header is checked when it is opened."""

    def __init__(self, export: Export) -> None:
        self._export, self._name = export, ""
        self._file: BinaryIO | None = None
        self._checked: set[str] = set()
        self._room = bytearray()

    def read(self, shard: Shard) -> Tensor:
        """Return a shard's tensor, which holds until the next is read.

        Raises CheckpointError for one that is damaged, or not finite.
        """
        path = self._export.checkpoint
        try:
            if shard.file not in self._checked and shard.file in self._export.index.covers:
                check_file(path, shard.file, self._export.index.covers[shard.file])
            self._checked.add(shard.file)
            if self._name != shard.file or self._file is None:
                self.close()
                self._file, self._name = (path / shard.file).open("rb"), shard.file
            if len(self._room) < shard.length <= _MOST_ROOM_BYTES:
                self._room = bytearray(shard.length)
            read = read_shard(self._file, shard, self._room)
        except OSError as error:
            raise CheckpointError(f"a shard cannot be read: {shard.file}: {error.strerror or error}") from error
        name = shard.key.removeprefix(MODEL_PREFIX)
        if not _is_finite(read):
            raise UnfitValuesError(f"{name} has values that are not finite: the training had diverged; take an earlier "
                                   "--step")
        found = read.to(getattr(torch, self._export.dtype))
        if self._export.dtype == "float16" and not _is_finite(found):
            raise UnfitValuesError(f"{name} has values beyond what float16 holds; take --dtype bfloat16")
        return found

    def close(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _is_finite(tensor: Tensor) -> bool:
    """Tell whether all values are finite, by the least and the largest: one pass, and no copy."""
    return bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all())


def _write_part(reader: _Reader, file: BinaryIO, target: Target, source: Source, name: str,
                shards: Sequence[Shard]) -> None:
    """Write one parameter of ours to its places. Raises CheckpointError where a part of it is missing."""
    if not shards:
        raise CheckpointError(f"it holds no {name}")
    missing = [Rectangle((0,) * len(shards[0].shape), shards[0].shape)]
    for shard in shards:
        left = [rest for box in missing for rest in _without(box, shard.rectangle)]
        if left != missing:
            _place(file, target, source, shard.rectangle, reader.read(shard))
            missing = left
    if missing:
        raise CheckpointError(f"a part is missing: it holds no {name} at {list(missing[0].offsets)}")


def _without(box: Rectangle, part: Rectangle) -> list[Rectangle]:
    shared = intersection(box, part)
    return [box] if shared is None else remainder(box, shared)


def _place(file: BinaryIO, target: Target, source: Source, rectangle: Rectangle, tensor: Tensor) -> None:
    """Write a rectangle of our parameter [rows, columns] to where the stored tensor has it."""
    element, width = tensor.element_size(), target.row_length
    own = tensor.reshape(tensor.shape[0], -1)
    first, column = rectangle.offsets[0], rectangle.offsets[1] if len(rectangle.offsets) > 1 else 0
    for ours, stored, count in source.spans(first, first + rectangle.sizes[0]):
        block = own[ours - first: ours - first + count]
        row, at = stored, column
        if source.transposed:
            block, row, at = block.T, column, stored
        data = block.contiguous().view(torch.uint8).numpy()
        if block.shape[1] == width:
            file.seek(target.begin + row * width * element)
            file.write(data.data)
            continue
        for number in range(block.shape[0]):
            file.seek(target.begin + ((row + number) * width + at) * element)
            file.write(data[number].data)
