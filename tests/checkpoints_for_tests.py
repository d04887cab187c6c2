"""Global tensors cut into rectangles in several ways, saved and filled without any process group."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch

from holmes_hpc.checkpoint.entries import Entry
from holmes_hpc.checkpoint.index import read_index
from holmes_hpc.checkpoint.reading import fill
from holmes_hpc.checkpoint.writing import Attempt, commit, write_part

SHAPES = {"model/matrix": (7, 10), "model/vector": (9,), "optimizer/exp_avg/matrix": (7, 10), "model/scalar": (),
          "model/cube": (4, 3, 5)}


def whole(key: str, step: int = 0) -> torch.Tensor:
    """Return the global tensor of a key at a step."""
    seed = sorted(SHAPES).index(key) + 100 * step
    return torch.randn(SHAPES[key], generator=torch.Generator().manual_seed(seed))


def bounds(length: int, parts: int) -> list[tuple[int, int]]:
    """Return (begin, size) of uneven parts."""
    ends = [length * (part + 1) ** 2 // parts**2 for part in range(parts)]
    return [(begin, end - begin) for begin, end in zip([0, *ends], ends, strict=False) if end > begin]


def cut(ranks: int, parts: tuple[int, ...], step: int | None) -> list[list[Entry]]:
    """Return the entries of each rank, every tensor cut into a grid; `step` None: zeros to be filled."""
    entries: list[list[Entry]] = [[] for _ in range(ranks)]
    turn = itertools.count()
    for key, shape in SHAPES.items():
        for box in itertools.product(*(bounds(length, count) for length, count in zip(shape, parts, strict=False))):
            offsets, sizes = tuple(b for b, _ in box), tuple(s for _, s in box)
            part = torch.zeros(sizes) if step is None else whole(key, step)[
                tuple(slice(b, b + s) for b, s in box)].clone()
            entries[next(turn) % ranks].append(Entry(key, shape, offsets, sizes, part))
    return entries


def save(folder: Path, step: int, ranks: int = 2, parts: tuple[int, ...] = (2, 1, 1), extra: dict | None = None,
         token: str = "t") -> Path:
    """Save the tensors of a step and return the checkpoint."""
    attempt = Attempt(folder, step, ranks, token)
    for rank, entries in enumerate(cut(ranks, parts, step)):
        write_part(attempt, rank, entries)
    return commit(attempt, extra or {"loss_scale": 2.0**16}, {"plan.json": "{}"})


def load(path: Path, ranks: int = 3, parts: tuple[int, ...] = (3, 2, 2)) -> int:
    """Fill zeros of another cut, check every value against the index's step, and return that step."""
    index = read_index(path)
    for entries in cut(ranks, parts, None):
        fill(path, index, entries)
        for entry in entries:
            expected = whole(entry.key, index.step)[tuple(slice(b, b + s) for b, s in
                                                          zip(entry.offsets, entry.sizes, strict=True))]
            assert torch.equal(entry.tensor, expected), f"{entry.key} at {entry.offsets}"
    return index.step
