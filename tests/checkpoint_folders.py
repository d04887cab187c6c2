"""Folders that look like checkpoints to whoever reads no tensor; made without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holmes_hpc.checkpoint.index import INDEX_NAME, Index, Shard, pack_index


def make_checkpoint(path: Path, step: int, extra: Mapping[str, Any] | None = None,
                    shapes: Mapping[str, tuple[int, ...]] | None = None) -> Path:
    """Make the folder of a whole checkpoint of `step` at `path`, of a model with these `shapes`, and return it."""
    path.mkdir(parents=True)
    (path / "rank-0000.safetensors").write_bytes(b"12345678")
    shards = tuple(Shard(f"model/{name}", shape, (0,) * len(shape), shape, "float32", "rank-0000.safetensors", 0, 8, 0)
                   for name, shape in (shapes or {}).items())
    (path / INDEX_NAME).write_text(pack_index(Index(step, {"rank-0000.safetensors": 8}, shards, dict(extra or {}))))
    return path
