"""Memory that is lent out and taken back, since fresh memory of this size costs a page fault per 4 kB."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from holmes_hpc.comm.streams import Point, Streams


class Scratch:
    """Flat tensors for the steps of collectives.

    On a device with `streams` a tensor may be given back in one queue and taken in another: what is done with it there
    waits for what was done here. The one that was given back first is then taken first.
    """

    def __init__(self, device: torch.device, streams: Streams | None = None) -> None:
        self._device, self._streams = device, streams
        self._free: dict[tuple[int, torch.dtype], deque[tuple[Tensor, Point | None]]] = {}

    def take(self, length: int, dtype: torch.dtype) -> Tensor:
        """Return an uninitialised flat tensor."""
        free = self._free.get((length, dtype))
        if not free:
            return torch.empty(length, dtype=dtype, device=self._device)
        if self._streams is None:
            return free.pop()[0]
        tensor, given = free.popleft()
        if given is not None:
            self._streams.wait(given)
        return tensor

    def give(self, tensor: Tensor) -> None:
        """Take a tensor back."""
        given = self._streams.point() if self._streams is not None else None
        self._free.setdefault((tensor.numel(), tensor.dtype), deque()).append((tensor, given))


class Loan:
    """A scratch tensor that is taken when it is first asked for."""

    def __init__(self, scratch: Scratch, length: int, dtype: torch.dtype) -> None:
        self._scratch, self._length, self._dtype = scratch, length, dtype
        self._tensor: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """The tensor."""
        if self._tensor is None:
            self._tensor = self._scratch.take(self._length, self._dtype)
        return self._tensor

    def give_back(self) -> None:
        """Give the tensor back, if it was taken."""
        if self._tensor is not None:
            self._scratch.give(self._tensor)
            self._tensor = None
