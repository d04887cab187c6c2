"""What is saved and what is filled: a local tensor, and where it lies in a global one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from holmes_hpc.checkpoint.rectangles import Rectangle

LARGEST_PIECE_BYTES = 64 * 2**20
"""A larger rectangle is written as several, so that a reader who needs a part of it reads and checks that part."""


@dataclass(frozen=True)
class Entry:
    """A part of a global tensor that this rank holds.

    `key` names the global tensor (`model/NAME`, `optimizer/exp_avg/NAME`), `shape` is its global shape. `tensor` is
    shaped `sizes`, may be a view, is read when saved and filled in place when loaded. `written` is false on all but
    one of the ranks that hold the same part, so that it is written once.
    """

    key: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    tensor: Tensor
    written: bool = True

    def __post_init__(self) -> None:
        if tuple(self.tensor.shape) != self.sizes or not self.rectangle.fits(self.shape):
            raise ValueError(f"{self.key} {list(self.shape)}: a tensor {list(self.tensor.shape)} is no part "
                             f"{list(self.sizes)} at {list(self.offsets)} of it")

    @property
    def rectangle(self) -> Rectangle:
        """Where the part lies."""
        return Rectangle(self.offsets, self.sizes)

    def pieces(self, largest_bytes: int = LARGEST_PIECE_BYTES) -> Iterator[Entry]:
        """Yield the entry cut along its first dim into pieces of at most `largest_bytes` (at least a row each)."""
        if self.tensor.numel() == 0:
            return
        size = self.tensor.numel() * self.tensor.element_size()
        if size <= largest_bytes or not self.sizes:
            yield self
            return
        rows = max(1, largest_bytes // (size // self.sizes[0]))
        for begin in range(0, self.sizes[0], rows):
            count = min(rows, self.sizes[0] - begin)
            yield replace(self, offsets=(self.offsets[0] + begin, *self.offsets[1:]),
                          sizes=(count, *self.sizes[1:]), tensor=self.tensor[begin:begin + count])
