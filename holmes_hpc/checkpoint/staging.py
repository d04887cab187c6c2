"""Copies of what is saved, so that training goes on while they are written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from holmes_hpc.checkpoint.entries import Entry


class Staging:
    """Buffers on the CPU for the entries of one rank, made once and used again by every save.

    They need as much memory as what this rank writes. A save must be on disk before the next is copied.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def copy(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return copies of the entries that this rank writes; they are done when the call returns."""
        written = [entry for entry in entries if entry.written]
        copies = []
        for entry in written:
            buffer = self._buffer(entry)
            buffer.copy_(entry.tensor.detach(), non_blocking=buffer.is_pinned())
            copies.append(replace(entry, tensor=buffer))
        for device in {entry.tensor.device for entry in written if entry.tensor.device.type == "cuda"}:
            torch.cuda.synchronize(device)
        return copies

    def _buffer(self, entry: Entry) -> Tensor:
        key, tensor = (entry.key, entry.offsets), entry.tensor
        known = self._buffers.get(key)
        if known is None or known.shape != tensor.shape or known.dtype != tensor.dtype:
            known = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
            self._buffers[key] = known
        return known
