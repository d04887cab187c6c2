"""Seconds of a matrix product on a GPU: waves of tiles over the processors, and a floor by bytes."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from holmes_hpc.planner.cost.gpu_constants import (
    ALIGNED,
    ALIGNMENT_SPEED,
    SHORTEST_SPLIT,
    SPLITS,
    TILES,
    UNALIGNED_BATCH_SPEED,
    GpuConstants,
)

_ACCUMULATOR_BYTES = 4


@dataclass(frozen=True)
class Device:
    """A GPU as the products see it: peak of one precision in FLOP/s, memory in byte/s, and its constants."""

    peak: float
    memory: float
    constants: GpuConstants

    @property
    def memory_speed(self) -> float:
        """The bytes a second that elementwise kernels move."""
        return self.memory * self.constants.memory_share


@functools.lru_cache(maxsize=65536)
def product_seconds(device: Device, rows: float, columns: float, inner: float, *, batch: float = 1.0,
                    element_bytes: int = 2, result_bytes: int | None = None) -> float:
    """Return the time of `batch` products of [rows, inner] by [inner, columns].

    The best of a few tile shapes counts, each in whole waves over the processors; a single product may split its
    inner size. `result_bytes` are moved for each element of the result (a weight gradient that is added to a
    float32 buffer moves 8); by default the result is written once.
    """
    moved = batch * ((rows + columns) * inner * element_bytes
                     + rows * columns * (element_bytes if result_bytes is None else result_bytes))
    busy = min(_tiled_seconds(device, rows, columns, inner, batch, tile, split)
               for tile in TILES for split in SPLITS
               if split == 1 or (batch == 1 and inner >= split * SHORTEST_SPLIT))
    return max(busy / _alignment_speed(columns, inner, batch), moved / device.memory_speed)


def _alignment_speed(columns: float, inner: float, batch: float) -> float:
    """Return the speed of a product of lines that long, relative to one whose lines all begin at 16 bytes."""
    aligned = math.gcd(ALIGNED, *(int(size) if size == int(size) else 1 for size in (columns, inner)))
    return UNALIGNED_BATCH_SPEED if batch > 1 and aligned < ALIGNED else ALIGNMENT_SPEED[aligned]


def _tiled_seconds(device: Device, rows: float, columns: float, inner: float, batch: float, tile: tuple[int, int],
                   split: int) -> float:
    constants = device.constants
    tiles = math.ceil(rows / tile[0]) * math.ceil(columns / tile[1]) * batch * split
    waves = math.ceil(tiles / constants.processors)
    speed = device.peak / constants.processors * constants.matrix_share * TILES[tile]
    seconds = waves * 2 * tile[0] * tile[1] * (inner / split + constants.ramp) / speed
    summing = split * rows * columns * _ACCUMULATOR_BYTES / device.memory_speed if split > 1 else 0.0
    return seconds + summing
