"""Writes a checkpoint: every rank its part into a hidden folder, then rank 0 the index and the name.

Parts meet on the file system alone, so nothing here waits for another rank: the caller says when all parts are there.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holmes_hpc.checkpoint.cover import Cover, pack_covers, unpack_covers
from holmes_hpc.checkpoint.entries import Entry
from holmes_hpc.checkpoint.index import INDEX_NAME, Index, Shard, pack, pack_index, pack_shards, unpack, unpack_shards
from holmes_hpc.checkpoint.naming import partial_path, publish, sync_folder
from holmes_hpc.checkpoint.shard_file import write_shards
from holmes_hpc.errors import CheckpointError
from holmes_hpc.runs.process_limits import file_size_words

PATIENCE_SECONDS = 30.0
"""How long rank 0 looks for a part that another rank has written, on file systems that show new files late."""


@dataclass(frozen=True)
class Attempt:
    """One checkpoint in the making; all ranks have an equal one.

    `token` keeps attempts of ended runs apart; with `hashed` its files get SHA-256 beside their checksums.
    """

    folder: Path
    step: int
    world_size: int
    token: str
    hashed: bool = False

    @property
    def path(self) -> Path:
        """Where it is written until it is whole."""
        return partial_path(self.folder, self.step, self.token)


def write_part(attempt: Attempt, rank: int, entries: Sequence[Entry]) -> None:
    """Write a rank's entries and their list, and bring both to disk. Raises CheckpointError."""
    path = attempt.path / f"rank-{rank:04d}.safetensors"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        header, shards = write_shards(path, entries, hashed=attempt.hashed)
        _write(_part_path(attempt, rank), pack({"size": path.stat().st_size, "shards": pack_shards(shards),
                                                "covers": pack_covers({path.name: header})}))
        sync_folder(path.parent)
    except OSError as error:
        raise storage_error(error, path) from error


def commit(attempt: Attempt, extra: Mapping[str, Any], texts: Mapping[str, str]) -> Path:
    """Join the parts of all ranks, which must be written, into a checkpoint under its name; return its path.

    `texts` are further files by name. Raises CheckpointError; the checkpoint is then not there.
    """
    files: dict[str, int] = {}
    covers: dict[str, Cover] = {}
    shards: dict[tuple[str, tuple[int, ...], tuple[int, ...]], Shard] = {}
    try:
        for rank in range(attempt.world_size):
            part = _read_part(attempt, rank)
            files[f"rank-{rank:04d}.safetensors"] = int(part["size"])
            covers |= unpack_covers(part["covers"])
            for shard in unpack_shards(part["shards"]):
                shards.setdefault((shard.key, shard.offsets, shard.sizes), shard)
        for name, text in texts.items():
            _write(attempt.path / name, text)
            covers[name] = Cover.of(text.encode(), hashed=attempt.hashed)
            files[name] = covers[name].length
        index = Index(attempt.step, files, tuple(shards.values()), extra, covers)
        _write(attempt.path / INDEX_NAME, pack_index(index, hashed=attempt.hashed))
        for rank in range(attempt.world_size):
            _part_path(attempt, rank).unlink(missing_ok=True)
        sync_folder(attempt.path)
        return publish(attempt.path, attempt.step, attempt.token)
    except OSError as error:
        raise storage_error(error, attempt.path) from error


def abandon(attempt: Attempt) -> None:
    """Remove what an attempt has written, as far as the file system lets us; every rank has stopped writing."""
    shutil.rmtree(attempt.path, ignore_errors=True)


def storage_error(error: OSError, path: Path) -> CheckpointError:
    """Return the error for a checkpoint whose file `path` could not be written."""
    remedy = file_size_words(error) or "free space there, or check who may write"
    return CheckpointError(f"{error.filename or path} cannot be written: {error.strerror or error}; {remedy}")


def _part_path(attempt: Attempt, rank: int) -> Path:
    return attempt.path / f"rank-{rank:04d}.json"


def _read_part(attempt: Attempt, rank: int) -> dict[str, Any]:
    path = _part_path(attempt, rank)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return unpack(path.read_bytes(), path.name)[0]
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise CheckpointError(f"rank {rank} wrote {path}, and rank 0 does not see it: is the run folder "
                                      "(run.folder) on a file system that all nodes share?") from None
            time.sleep(0.1)


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
